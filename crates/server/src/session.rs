//! A session with the kernel: the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use quayfs_fs::Fs;
use quayfs_fuse::{Notifier, Options, Stats};
use quayfs_options::{Idle, MountOptions, Transport};

use crate::atomic::Sessions;
use crate::outside::Outside;
use crate::service::Server;

/// Serves requests until the file system is unmounted. The volume is not closed. `number`: the device number of the
/// mount (`MAJOR:MINOR`), by which files of other file systems are told from its own. Calls `started` when the kernel
/// has begun to ask, so that processes that use the tree are answered. `outside` looks at callers.
pub fn serve(
    fs: Arc<Fs>,
    (device, number): (OwnedFd, Option<Arc<str>>),
    outside: Outside,
    started: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let stats = Arc::new(Stats::default());
    let server = Server {
        fs,
        stats: Arc::clone(&stats),
        kernel: Arc::new(Notifier::new(&device)?),
        outside,
        device: number,
        kernel_checks_flags: AtomicBool::new(false),
        atomic: Sessions::default(),
        started: Box::new(started),
    };
    let how = how(&server.fs.e.options);
    quayfs_sync::run_waits_in(|wait| quayfs_fuse::waiting(wait));
    quayfs_fuse::serve(&server, device, &how, &stats)
}

/// Threads for answers that wait for the kernel, where there are such answers.
const PATIENT: usize = 4;

/// Threads that serve while others wait for a device: so many calls can wait for one flush together, or have reads under
/// way at once.
const SPARE: usize = 16;

/// How a mount with these options is served.
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
