//! The two ways on which requests come and answers go.

pub(crate) mod dev;
pub(crate) mod ring;
