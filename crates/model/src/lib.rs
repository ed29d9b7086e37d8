//! An executable model of the crash-consistency protocol, checked exhaustively within bounds.

pub mod checker;
#[allow(missing_docs)]
pub mod credits;
#[allow(missing_docs)]
pub mod image;
#[allow(missing_docs)]
pub mod intent;
#[allow(missing_docs)]
pub mod lane;
pub mod medium;
pub mod ordering;
#[allow(missing_docs)]
pub mod ppt;
#[allow(missing_docs)]
pub mod reader;
pub mod suite;
#[allow(missing_docs)]
pub mod volume;
