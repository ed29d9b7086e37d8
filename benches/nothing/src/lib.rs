//! A tree in memory with as little behind each operation as can be, behind two ways to talk to the kernel: the
//! protocol crate of QuayFS, and `fuser`.

pub mod pool;
pub mod tree;
