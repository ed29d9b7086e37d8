//! A session with the kernel: what is agreed at its start, and the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};

use crate::config::OpenPolicy;
use crate::edge::fuser::Edge;
use crate::fs::Fs;

/// Nobody else changes the volume, so the kernel may keep names and attributes for good.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Largest request the kernel sends.
const WRITE_MAX: u32 = 1 << 20;

/// What the kernel is asked for, where it has it.
const CAPABILITIES: [InitFlags; 12] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
];

/// Serves requests until the file system is unmounted. The volume is not closed. Calls `started` when
/// the kernel has begun to ask, so that whoever uses the tree is answered.
pub fn serve(
    fs: Arc<Fs>,
    fuse_fd: OwnedFd,
    threads: usize,
    started: impl FnOnce() + Send + Sync + 'static,
) -> io::Result<()> {
    let edge = Edge {
        fs,
        started: Some(Box::new(started)),
    };
    let mut config = Config::default();
    config.n_threads = Some(threads.max(1));
    // Who may enter is the kernel's business: it knows the mount options.
    config.acl = SessionACL::All;
    Session::from_fd(edge, fuse_fd, SessionACL::All, config)?.run()
}

/// Agrees with the kernel on what it sends and may keep.
pub(super) fn negotiate(fs: &Fs, config: &mut KernelConfig) -> io::Result<()> {
    let options = &fs.e.options;
    let mut want = CAPABILITIES.to_vec();
    if options.open == OpenPolicy::Elide {
        want.push(InitFlags::FUSE_NO_OPEN_SUPPORT);
    }
    if options.writeback_cache {
        want.push(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    for flag in want {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!("this kernel has no {flag:?}");
        }
    }
    let max = (fs.request_max() as u32).min(WRITE_MAX);
    config
        .set_max_write(max)
        .map_err(|n| io::Error::other(format!("max_write {n}")))?;
    Ok(())
}
