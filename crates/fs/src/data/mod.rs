//! File data: from LBNs to bytes and back.

pub mod atomic;
pub mod read;
pub mod write;
