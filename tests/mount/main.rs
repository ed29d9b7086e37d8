//! The program on real mounts. Most of it needs `/dev/fuse`, some of it root and other programs, as the modules say.
//!
//! Tests of different modules run side by side. What must not run beside others is a test binary of its own and says
//! why. A mount namespace has copies of the mounts of all tests, see `program::namespace`.

mod acl;
mod authority;
mod calls;
mod confined;
mod daemon;
mod draining;
mod exchange;
mod fenced;
mod health;
mod idle;
mod idmap;
mod inherited;
mod limits;
mod load;
mod log;
mod media;
mod migrate;
mod mute;
mod names;
mod owners;
mod processes;
#[path = "../program/mod.rs"]
mod program;
mod quota;
mod remount;
mod requests;
mod resize;
mod restart;
mod scrub_mount;
mod semantics;
mod shown;
mod trace;
mod tune;
mod umount;
mod unserved;
