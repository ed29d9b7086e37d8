//! The edge: one thin module per transport. It decodes, calls the operation layer, replies, and
//! decides nothing.

pub mod errno;
pub mod fuser;
