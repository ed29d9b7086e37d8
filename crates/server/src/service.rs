//! Which request goes where.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quayfs_fs::Fs;
use quayfs_fuse::wire::{Init, Open, OpenOut};
use quayfs_fuse::{
    Answer, Errno, KernelCapabilities, Notifier, Op, Out, Postponed, Request,
    RequestedCapabilities, Service, Stats,
};
use quayfs_layout::inode::ROOT;
use quayfs_options::{AtimePolicy, MountOptions, OpenPolicy, Restart};
use quayfs_restart::Requests;
use quayfs_store::error::FsError;

use crate::STATUS_XATTR;
use crate::atomic::Sessions;
use crate::convert::{open_flags, writes};
use crate::errno::{ToErrno, errno};
use crate::exchange::marked;
use crate::outside::Outside;
use crate::trace::Trace;

/// Largest request the kernel sends.
const WRITE_MAX: u32 = 1 << 20;
/// Its size where no more is asked for.
const WRITE_MAX_ABLATED: u32 = 128 << 10;
/// The protocol of Linux 5.14: a kernel that speaks it checks who may change flags of an inode.
const MINOR_CHECKS_FLAGS: u32 = 34;
/// Requests that no process waits for (readahead, pages that the kernel has collected) under way at once.
const BACKGROUND: u16 = 64;

/// What the kernel is asked for: where it lacks something, that is left out. `request_max`: bytes that
/// the file system writes at once.
pub fn wish(options: &MountOptions, request_max: usize) -> RequestedCapabilities {
    let mut flags = Init::ASYNC_READ
        | Init::PARALLEL_DIROPS
        | Init::DO_READDIRPLUS
        | Init::READDIRPLUS_AUTO
        | Init::CACHE_SYMLINKS
        | Init::EXPLICIT_INVAL_DATA
        | Init::HANDLE_KILLPRIV_V2
        | Init::EXPORT_SUPPORT
        | Init::DIRECT_IO_ALLOW_MMAP
        | Init::NO_OPENDIR_SUPPORT;
    flags.set(Init::NO_OPEN_SUPPORT, options.open == OpenPolicy::Elide);
    if options.atime == AtimePolicy::StrictAtime {
        flags.remove(Init::CACHE_SYMLINKS | Init::NO_OPENDIR_SUPPORT);
    }
    flags.set(Init::WRITEBACK_CACHE, options.writeback_cache);
    // With lists the umask is ours to apply: it does not count below a default list.
    flags.set(Init::POSIX_ACL | Init::DONT_MASK, options.has_acls());
    flags.set(Init::ALLOW_IDMAP, options.idmap);
    let mut write_max = WRITE_MAX;
    if options.ablation.all_messages {
        flags.remove(
            Init::DO_READDIRPLUS
                | Init::READDIRPLUS_AUTO
                | Init::CACHE_SYMLINKS
                | Init::HANDLE_KILLPRIV_V2
                | Init::NO_OPENDIR_SUPPORT,
        );
        write_max = WRITE_MAX_ABLATED;
    }
    RequestedCapabilities {
        flags,
        max_write: (request_max as u32).min(write_max),
        max_background: BACKGROUND,
    }
}

/// Set in the number of an open file whose changes are durable when they return. A write says so itself, other calls
/// only have the number.
const SYNCHRONOUS: u64 = 1 << 62;

/// The operation layer, as the kernel calls it.
pub(super) struct Server {
    pub(super) fs: Arc<Fs>,
    pub(super) stats: Arc<Stats>,
    pub(super) kernel: Arc<Notifier>,
    /// Sees what the threads that serve may not.
    pub(super) outside: Outside,
    /// The device number of the mount, as `MAJOR:MINOR`, if the mount table has it.
    pub(super) device: Option<Arc<str>>,
    /// Whether flags of inodes are the kernel's decision.
    pub(super) kernel_checks_flags: AtomicBool,
    /// What was written and not committed.
    pub(super) atomic: Sessions,
    /// Called when the kernel has begun to ask.
    pub(super) started: Box<dyn Fn() + Send + Sync>,
    /// What the next daemon has to know of requests that this one does not answer, if there will be one.
    pub(super) requests: Option<Arc<Requests>>,
    /// Called after the first answer.
    pub(super) answered: Once,
    /// Those who watch what is asked.
    pub(super) trace: Arc<Trace>,
}

/// Something that is done once.
pub(super) struct Once {
    is_done: AtomicBool,
    what: Box<dyn Fn() + Send + Sync>,
}

impl Once {
    pub(super) fn new(what: Box<dyn Fn() + Send + Sync>) -> Self {
        let is_done = AtomicBool::new(false);
        Self { is_done, what }
    }

    fn happened(&self) {
        if !self.is_done.load(Ordering::Relaxed) && !self.is_done.swap(true, Ordering::Relaxed) {
            (self.what)();
        }
    }
}

impl Service for Server {
    fn accepts(&self, offer: &KernelCapabilities) -> Result<(), String> {
        if self.fs.e.options.atomic_writes && !offer.flags.contains(Init::DIRECT_IO_ALLOW_MMAP) {
            return Err(
                "atomic_writes: this kernel cannot map files that bypass its page cache \
                 (FUSE_DIRECT_IO_ALLOW_MMAP, Linux 6.6)"
                    .into(),
            );
        }
        if self.requests.is_some() && !offer.flags.contains(Init::HAS_RESEND) {
            let why = "this kernel does not send requests again that a daemon has not answered (FUSE_HAS_RESEND, \
                       Linux 6.9)";
            if self.fs.e.options.restart == Some(Restart::On) {
                return Err(format!("restart: {why}"));
            }
            self.fs.ends_with_daemon(why);
        }
        Ok(())
    }

    fn init(&self, offer: &KernelCapabilities) -> RequestedCapabilities {
        let wish = wish(&self.fs.e.options, self.fs.request_max());
        let checks_flags = offer.minor >= MINOR_CHECKS_FLAGS;
        self.kernel_checks_flags
            .store(checks_flags, Ordering::Relaxed);
        let lacks = wish.flags - offer.flags;
        tracing::debug!("this kernel lacks {lacks:?}");
        if lacks.contains(Init::ALLOW_IDMAP) {
            tracing::warn!(
                "idmap: mounts of FUSE file systems can map ids since Linux 6.12; not here"
            );
        }
        wish
    }

    fn started(&self) {
        (self.started)();
    }

    /// While one commit runs, the calls that come are answered together, by the thread of the next one. None of the
    /// threads that serve sleeps for them.
    fn answer_sync(
        &self,
        request: &Request<'_>,
        out: &mut Out<'_>,
        postpone: &mut dyn FnMut() -> Postponed,
    ) -> Option<Answer> {
        if self.sync_is_needless() {
            return Some(self.answer(request, out));
        }
        if let Err(e) = self.fs.alive() {
            return Some(Err(errno(&e)));
        }
        let begun = self.trace.begin(request);
        let told = || {
            let postponed = postpone();
            let traced = begun.map(|begun| (begun, Arc::clone(&self.trace)));
            move |done: Result<(), FsError>| {
                let answer = done.errno();
                if let Some((begun, trace)) = traced {
                    trace.put(begun, &answer);
                }
                postponed.answer(answer);
            }
        };
        let answer = self.fs.fsync_or_queue(request.header.nodeid, told)?.errno();
        self.trace.end(begun, request, &answer, out);
        Some(answer)
    }

    fn waits_for_kernel(&self, request: &Request<'_>) -> bool {
        matches!(&request.op, Op::Ioctl { args, .. } if self.waits(args.cmd))
    }

    fn answer_waiting(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        let Op::Ioctl { args, data } = &request.op else {
            return self.answer(request, out);
        };
        let begun = self.trace.begin(request);
        let answer = self.fs.alive().errno().and_then(|()| {
            self.at_most_once((request, true), out, |out| {
                self.within_limits(request, out, |out| {
                    self.ioctl_waiting(&request.header, (args, data), out)
                })
            })
        });
        self.trace.end(begun, request, &answer, out);
        answer
    }

    fn catch_up(&self) {
        self.catch_up_with_commits();
    }

    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        let begun = self.trace.begin(request);
        let answer = self.answer_unless_shut_down(request, out);
        self.trace.end(begun, request, &answer, out);
        answer
    }
}

impl Server {
    fn answer_unless_shut_down(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        if !spared(request.header.nodeid, &request.op) {
            self.fs.alive().errno()?;
        }
        let answer = self.at_most_once((request, false), out, |out| {
            self.within_limits(request, out, |out| self.carry_out(request, out))
        });
        self.answered.happened();
        answer
    }
}

impl Server {
    fn at_most_once(
        &self,
        (request, patient): (&Request<'_>, bool),
        out: &mut Out<'_>,
        carry_out: impl FnOnce(&mut Out<'_>) -> Answer,
    ) -> Answer {
        match &self.requests {
            Some(requests) => self.once(requests, (request, patient), out, carry_out),
            None => carry_out(out),
        }
    }

    /// Carries a request out, and once more if a limit was in the way for which the caller is exempt. One that fails
    /// has put nothing into the answer, and changed nothing that it would not change again; an append of several records goes
    /// on where it was.
    #[inline]
    fn within_limits(
        &self,
        request: &Request<'_>,
        out: &mut Out<'_>,
        mut carry_out: impl FnMut(&mut Out<'_>) -> Answer,
    ) -> Answer {
        match carry_out(out) {
            Err(e) if e == errno(&FsError::Quota) => {
                let by = self.asker(&request.header);
                let again = self.fs.beyond_limits(by, || carry_out(out));
                again.unwrap_or(Err(e))
            }
            answer => answer,
        }
    }

    fn carry_out(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        let (header, ino) = (&request.header, request.header.nodeid);
        match request.op {
            Op::Lookup { name } => self.lookup(ino, name, out),
            Op::Forget { nlookup } => {
                self.fs.forget(ino, nlookup);
                Ok(())
            }
            Op::BatchForget { inodes } => {
                for one in inodes {
                    self.fs.forget(one.nodeid, one.nlookup);
                }
                Ok(())
            }
            Op::Getattr(_) => self.getattr(ino, out),
            Op::Statx(_) => self.statx(ino, out),
            Op::Setattr(ref args) => self.setattr(ino, args, out),
            Op::Readlink => out.bytes(&self.fs.readlink(ino).errno()?),
            Op::Symlink { name, target } => self.symlink(header, name, target, out),
            Op::Mknod { args, name } => self.mknod(header, args, name, out),
            Op::Mkdir { args, name } => self.mkdir(header, args, name, out),
            Op::Unlink { name } => self.fs.unlink(ino, name).errno(),
            Op::Rmdir { name } => self.fs.rmdir(ino, name).errno(),
            Op::Rename { to, name, new_name } => self.rename(header, name, (to, new_name)),
            Op::Link { inode, name } => self.link(inode, ino, name, out),
            Op::Open(args) => self.open(ino, args.flags, out),
            // The kernel then makes the file with `mknod`, and opens it without asking: a file that
            // `create` has opened would have to be released.
            Op::Create { .. } if self.opens_unasked() => Err(Errno::NOSYS),
            Op::Create { args, name } => self.create(header, args, name, out),
            Op::Tmpfile { args, .. } => self.tmpfile(header, args, out),
            Op::Read(args) => self.read(ino, &args, out),
            Op::Write { args, data } => self.write(ino, &args, data, out),
            Op::Statfs => self.statfs(ino, out),
            Op::Release(args) => {
                if args.fh != 0 {
                    self.give_up(ino, args.fh);
                }
                self.fs.release(ino);
                Ok(())
            }
            Op::Fsync(_) | Op::Fsyncdir(_) if self.sync_is_needless() => {
                self.needless(&request.op, out)
            }
            Op::Fsync(_) | Op::Fsyncdir(_) => self.fs.fsync(ino).errno(),
            Op::Setxattr { args, name, value } => self.setxattr(header, args, name, value),
            Op::Getxattr { size, name } => self.getxattr(header, name, size, out),
            Op::Listxattr { size } => self.listxattr(header, size, out),
            Op::Removexattr { name } => self.fs.removexattr(ino, name).errno(),
            // The kernel does not remember the entries of a directory that it does not open by itself.
            Op::Opendir(_) if self.sees_every_read() => out.put(&OpenOut::default()),
            Op::Readdir(args) => self.readdir(ino, &args, out),
            Op::Readdirplus(args) => self.readdirplus(ino, &args, out),
            // Closing a file makes nothing durable that was not; there is no state per open directory;
            // the kernel checks permissions itself (`default_permissions`).
            Op::Flush | Op::Opendir(_) | Op::Releasedir(_) | Op::Access { .. } => {
                self.needless(&request.op, out)
            }
            Op::Ioctl { ref args, data } => self.ioctl(header, args, data, out),
            Op::Fallocate(args) => self.fallocate(header, &args),
            // Linux asks without sending first what it has collected, and would take what we do not have
            // yet for holes. This answer makes it take the whole file for data.
            Op::Lseek(_) if self.fs.e.options.writeback_cache => Err(Errno::NOSYS),
            Op::Lseek(args) => self.lseek(ino, &args, out),
            Op::CopyFileRange { args, wide } => self.copy_file_range(ino, &args, wide, out),
            Op::Syncfs => self.fs.sync_all().errno(),
            Op::Destroy => Ok(()),
            // A request under way is done before it could have been withdrawn.
            Op::Interrupt(_) | Op::Other { .. } => Err(Errno::NOSYS),
        }
    }
}

/// Whether a request is served by a mount that was shut down: what the kernel tells it while it goes away has no
/// answer, and a process that unmounts it has to know which process to wait for.
fn spared(ino: u64, op: &Op<'_>) -> bool {
    match op {
        Op::Forget { .. } | Op::BatchForget { .. } | Op::Destroy => true,
        Op::Getattr(_) => ino == ROOT,
        Op::Getxattr { name, .. } => *name == STATUS_XATTR.as_bytes(),
        _ => false,
    }
}

impl Server {
    fn opens_unasked(&self) -> bool {
        self.fs.e.options.open == OpenPolicy::Elide
    }

    fn sees_every_read(&self) -> bool {
        self.fs.e.options.atime == AtimePolicy::StrictAtime
    }

    /// How the kernel is to treat a file that is opened with these flags, and the number that it has from now on.
    /// Where it opens files without asking it treats them all alike; where it has to tell of every read it
    /// answers none itself.
    ///
    /// Where several writes can be one it keeps none of them: it could not make its pages something else all at
    /// once, nor tell the pages of one writer from those of another. What it keeps of other files is right all
    /// the same, for it forgets what is written past its pages.
    pub(super) fn opened(&self, flags: u32) -> OpenOut {
        let mut how = open_flags(if self.opens_unasked() {
            0
        } else if self.sees_every_read() {
            flags | libc::O_DIRECT.cast_unsigned()
        } else {
            flags
        });
        let mut fh = 0;
        let mode = flags.cast_signed() & libc::O_ACCMODE;
        if self.fs.e.options.atomic_writes && matches!(mode, libc::O_WRONLY | libc::O_RDWR) {
            how = Open::DIRECT_IO | Open::PARALLEL_DIRECT_WRITES | Open::KEEP_CACHE;
            fh = marked(self.atomic.number(), flags);
        }
        if mode != libc::O_RDONLY && flags & (libc::O_SYNC | libc::O_DSYNC).cast_unsigned() != 0 {
            fh |= SYNCHRONOUS;
        }
        OpenOut {
            fh,
            open_flags: how.bits(),
            ..OpenOut::default()
        }
    }

    /// Makes durable what was done through a file that was opened with `O_SYNC` or `O_DSYNC`.
    pub(super) fn sync_if_asked(&self, ino: u64, fh: u64) -> Answer {
        if fh & SYNCHRONOUS != 0 {
            self.fs.fsync(ino).errno()?;
        }
        Ok(())
    }

    fn open(&self, ino: u64, flags: u32, out: &mut Out<'_>) -> Answer {
        if self.opens_unasked() {
            return Err(Errno::NOSYS);
        }
        self.fs.may_open(ino, writes(flags)).errno()?;
        out.put(&self.opened(flags))
    }

    /// Whether every operation was durable when it returned, so that `fsync` need not be sent. With the kernel
    /// collecting writes it is sent all the same: Linux forgets about pages that it could not write to a daemon that
    /// is dead, so that `fsync` would succeed where no daemon answers it.
    fn sync_is_needless(&self) -> bool {
        self.fs.sync_is_free() && !self.fs.e.options.writeback_cache
    }
}
