//! QuayFS
