//! A session with the kernel: the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use quayfs_fuse::{Options, Stats};

use crate::edge::service::Edge;
use crate::fs::Fs;

/// Serves requests until the file system is unmounted. The volume is not closed. Calls `started` when
/// the kernel has begun to ask, so that whoever uses the tree is answered.
pub fn serve(
    fs: Arc<Fs>,
    device: OwnedFd,
    options: &Options,
    started: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let stats = Arc::new(Stats::default());
    let edge = Edge {
        fs,
        stats: Arc::clone(&stats),
        started: Box::new(started),
    };
    quayfs_fuse::serve(&edge, device, options, &stats)
}
