//! File data: from LBNs to bytes and back.

pub mod ahead;
pub mod behind;
pub mod partial;
pub mod read;
pub mod together;
pub mod write;
