//! The namespace: node pages, allocators, inodes, directories, extents, extended attributes.

pub mod alloc;
pub mod blob;
pub mod dir;
pub mod extent;
pub mod inode;
pub mod intent;
mod nat;
pub mod node;
pub mod quota;
mod runs;
pub mod tags;
