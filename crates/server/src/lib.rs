//! The server: takes the kernel's requests, calls the operation layer, answers, and decides nothing. Both transports are in
//! `quayfs-fuse`; what is here knows of neither.

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
mod once;
pub mod outside;
mod service;
pub mod session;
mod special;
mod trace;
mod xattrs;

pub use convert::{FOREVER, open_flags, set_attr, writes};
pub use service::wish;

/// Names of attributes that are none begin with it.
const PREFIX: &[u8] = b"quayfs.";

/// Name of the extended attribute that a running mount answers with its status as JSON.
pub const STATUS_XATTR: &str = "quayfs.status";
/// Name of the extended attribute by which a scrub is started, stopped and watched.
pub const SCRUB_XATTR: &str = "quayfs.scrub";
/// Name of the extended attribute by which requests are watched: the first answer has the number to ask with from then
/// on, behind a dot.
pub const TRACE_XATTR: &str = "quayfs.trace";
/// Name of the extended attribute by which the volume is given another size: what is written to it is a wish
/// (`quayfs_restart::Wish`) that the next daemon fulfils, to which the mount is left at once.
pub const RESIZE_XATTR: &str = "quayfs.resize";
/// Extended attribute of the root directory that holds the quotas of projects, and sets limits. Those of users and groups
/// are in `quayfs.quota.user` and `quayfs.quota.group`.
pub const QUOTA_XATTR: &str = "quayfs.quota";
