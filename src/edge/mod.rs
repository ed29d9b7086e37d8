//! The edge: decodes the kernel's requests, calls the operation layer, replies, and decides nothing.
//! Both transports are in `quayfs-fuse`; what is here knows of neither.

mod answers;
mod atomic;
mod attributes;
mod caller;
mod convert;
mod data;
pub mod errno;
mod exchange;
mod files;
mod ioctl;
mod listing;
mod names;
pub mod outside;
mod service;
pub mod session;
mod special;
mod xattrs;

pub use convert::{FOREVER, open_flags, set_attr, writes};
pub use service::wish;
