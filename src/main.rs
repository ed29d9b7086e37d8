//! quayfs
fn main() {}
