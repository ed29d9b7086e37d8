//! File data: from LBNs to bytes and back.

pub mod read;
pub mod write;
