//! QuayFS

pub mod config;
pub mod mount;
