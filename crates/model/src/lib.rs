//! An executable model of the crash-consistency protocol, checked exhaustively within bounds.

pub mod checker;
#[allow(missing_docs)]
pub mod image;
#[allow(missing_docs)]
pub mod lane;
pub mod medium;
pub mod ordering;
pub mod suite;
#[allow(missing_docs)]
pub mod volume;
