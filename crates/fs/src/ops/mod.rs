//! Operations, one file per family.

pub mod acl;
pub mod create;
pub mod data;
pub mod dirs;
pub mod exchange;
pub mod flags;
pub mod link;
pub mod lookup;
pub mod quota;
pub mod reap;
pub mod rename;
pub mod setattr;
pub mod space;
pub mod statfs;
pub mod sync;
pub mod truncate;
pub mod unlink;
pub mod xattr;
