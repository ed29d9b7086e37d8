//! File data: from LBNs to bytes and back.

pub mod ahead;
pub mod read;
pub mod tails;
pub mod together;
pub mod write;
