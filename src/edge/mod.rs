//! The edge: one thin module per transport. It decodes, calls the operation layer, replies, and
//! decides nothing.

mod convert;
pub mod errno;
pub mod fuser;
mod listing;
pub mod session;
