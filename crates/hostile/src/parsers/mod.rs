//! One target per parser of `quayfs-layout`: what decodes must encode to something that decodes to
//! the same.

pub mod journal;
pub mod nodes;
pub mod volume;
