//! File data: from LBNs to bytes and back.

pub mod read;
pub mod together;
pub mod write;
