//! QuayFS

pub mod config;
