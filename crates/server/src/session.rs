//! A session with the kernel: the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use quayfs_fs::Fs;
use quayfs_fuse::{Keeper, Left, Notifier, Options, Stats};
use quayfs_options::{Idle, MountOptions, Transport};
use quayfs_restart::Requests;

use crate::atomic::Sessions;
use crate::outside::Outside;
use crate::service::{Once, Server};

/// How a mount goes on when its daemon ends.
pub struct Succession {
    /// What is left for the next daemon.
    pub requests: Arc<Requests>,
    /// Holds the descriptors meanwhile.
    pub keeper: Box<dyn Keeper>,
    /// What the last daemon has left, if there was one.
    pub left: Option<Left>,
    /// Called when this one has answered its first request.
    pub answered: Box<dyn Fn() + Send + Sync>,
}

/// Serves requests until the file system is unmounted. The volume is not closed. `number`: the device number of the
/// mount (`MAJOR:MINOR`), by which files of other file systems are told from its own. Calls `started` when the kernel
/// has begun to ask, so that processes that use the tree are answered. `outside` looks at callers. With a `succession`
/// the connection outlives this process.
pub fn serve(
    fs: Arc<Fs>,
    (device, number): (OwnedFd, Option<Arc<str>>),
    outside: Outside,
    succession: Option<Succession>,
    started: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let stats = Arc::new(Stats::default());
    let (requests, answered, kept) = match succession {
        Some(Succession {
            requests,
            keeper,
            left,
            answered,
        }) => (Some(requests), answered, Some((keeper, left))),
        None => (None, Box::new(|| ()) as Box<_>, None),
    };
    let server = Server {
        fs,
        stats: Arc::clone(&stats),
        kernel: Arc::new(Notifier::new(&device)?),
        outside,
        device: number,
        kernel_checks_flags: AtomicBool::new(false),
        atomic: match &requests {
            Some(requests) => Sessions::outlived(Arc::clone(requests)),
            None => Sessions::default(),
        },
        started: Box::new(started),
        requests,
        answered: Once::new(answered),
        trace: Arc::default(),
    };
    let mut how = how(&server.fs.e.options);
    if kept.is_some() {
        // What rings hold cannot be had back from the kernel.
        how.transport = quayfs_fuse::Transport::Dev;
    }
    quayfs_sync::run_waits_in(|wait| quayfs_fuse::waiting(wait));
    match kept {
        Some((keeper, Some(left))) => {
            quayfs_fuse::resume(&server, device, left, &how, &stats, &*keeper)
        }
        Some((keeper, None)) => quayfs_fuse::serve(&server, device, &how, &stats, Some(&*keeper)),
        None => quayfs_fuse::serve(&server, device, &how, &stats, None),
    }
}

/// Threads for answers that wait for the kernel, where there are such answers.
const PATIENT: usize = 4;

/// Threads that serve while others wait for a device: so many calls can wait for one flush together, or have reads under
/// way at once.
const SPARE: usize = 16;

/// How a mount with these options is served, if its connection does not outlive this process.
pub fn how(options: &MountOptions) -> Options {
    let workers = options.threads.unwrap_or_else(|| {
        thread::available_parallelism()
            .map_or(2, |n| n.get())
            .clamp(2, 16)
    });
    Options {
        transport: match options.transport {
            Transport::Auto => quayfs_fuse::Transport::Auto,
            Transport::Dev => quayfs_fuse::Transport::Dev,
            Transport::Uring => quayfs_fuse::Transport::Uring,
        },
        workers,
        spare: SPARE,
        idle: match options.idle {
            Idle::Auto => quayfs_fuse::Idle::Auto,
            Idle::Poll => quayfs_fuse::Idle::Poll,
            Idle::Halt => quayfs_fuse::Idle::Halt,
        },
        patient: if options.atomic_writes { PATIENT } else { 0 },
        ..Options::default()
    }
}
