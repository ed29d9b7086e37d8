//! The open files of a caller: for a second file, a request has only the number of a descriptor.
//!
//! What a number stands for may change at any time. So the file is first held by a descriptor with `O_PATH`, and then
//! it is checked that the number stands for it. Such a descriptor cannot be read from or written to. A daemon that
//! dies with a real one of its own mount, or while it waits for an answer of its own, would wait for ever. Nothing
//! here sends a message to this mount.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quayfs_fuse::Errno;
use quayfs_layout::Ino;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno as Os;

use crate::caller::is_visible;
use crate::outside::Outside;

/// How long it may take to see what a descriptor is: a file of another file system may be one of a server that
/// does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks under way at once; more are there only if some wait for such servers.
const LOOKS_MAX: usize = 8;

/// A descriptor of another process (`/proc/PID/fdinfo`, proc_pid_fdinfo(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    ino: Ino,
    mount: u64,
    flags: u32,
}

impl Open {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            Some(line.strip_prefix(':')?.trim())
        };
        Some(Self {
            ino: u64::from_str(field("ino")?).ok()?,
            mount: u64::from_str(field("mnt_id")?).ok()?,
            flags: u32::from_str_radix(field("flags")?, 8).ok()?,
        })
    }
}

/// Whether a file that is opened with these flags may be exchanged: for reading and writing, and not at its end
/// only.
pub(super) fn reads_and_writes(flags: u32) -> bool {
    let (mode, refused) = (libc::O_ACCMODE, libc::O_APPEND | libc::O_PATH);
    flags & mode.cast_unsigned() == libc::O_RDWR.cast_unsigned()
        && flags & refused.cast_unsigned() == 0
}

/// A file of this mount that another process has open. While this exists, its inode number stands for no other file.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) ino: Ino,
    _file: OwnedFd,
}

/// The file that descriptor `fd` of thread `pid` stands for, open for reading and writing, and not at its end only, in
/// the file system with this device number (`MAJOR:MINOR`). The thread must wait for an answer meanwhile, so
/// that its number stays its own.
///
/// # Errors
/// `EOPNOTSUPP` if its descriptors cannot be seen from here: another namespace of processes, or no right to look.
/// `EBADF` where there is no such descriptor, or an unsuitable one, `EXDEV` if it is one of another file system.
/// `EBUSY` if it cannot be seen in time what it is.
pub(super) fn pin(
    outside: &Outside,
    (pid, fd): (u32, i32),
    device: &Arc<str>,
) -> Result<Pinned, Errno> {
    static LOOKS: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
    if fd < 0 {
        return Err(Errno::new(libc::EBADF));
    }
    if !is_visible(pid) {
        return Err(Errno::new(libc::EOPNOTSUPP));
    }
    let busy = Errno::new(libc::EBUSY);
    let look = Look::begin(&LOOKS).ok_or(busy)?;
    let (answer, answered) = sync_channel(1);
    let device = Arc::clone(device);
    outside.look_long(answer, move || {
        let found = find(pid, fd, &device);
        // Before the answer, after which another one may begin.
        drop(look);
        found
    });
    answered.recv_timeout(PATIENCE).unwrap_or(Err(busy))
}

/// Counts the looks under way.
struct Look(Arc<AtomicUsize>);

impl Look {
    fn begin(count: &Arc<AtomicUsize>) -> Option<Self> {
        let look = Self(Arc::clone(count));
        (look.0.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX).then_some(look)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn find(pid: u32, fd: i32, device: &str) -> Result<Pinned, Errno> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let none = Mode::empty();
    // Everything is looked up below it: should the thread end, no other thread's descriptors are taken for its own.
    let thread = openat(
        rustix::fs::CWD,
        format!("/proc/{pid}"),
        path | OFlags::DIRECTORY,
        none,
    );
    let thread = thread.map_err(unseen)?;
    let before = info(&thread, fd)?;
    let file = openat(&thread, format!("fd/{fd}"), path, none).map_err(missing)?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&file, "", flags, StatxFlags::INO | StatxFlags::MNT_ID).map_err(unseen)?;
    let after = info(&thread, fd)?;
    if format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor) != device {
        return Err(Errno::new(libc::EXDEV));
    }
    let same = |open: Open| (open.ino, open.mount) == (stat.stx_ino, stat.stx_mnt_id);
    // A caller that makes a number stand for something else while it is in use has not said what it wants.
    if before != after || !same(after) || !reads_and_writes(after.flags) {
        return Err(Errno::new(libc::EBADF));
    }
    Ok(Pinned {
        ino: after.ino,
        _file: file,
    })
}

/// What the kernel says of a descriptor.
fn info(thread: impl AsFd, fd: i32) -> Result<Open, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(thread, format!("fdinfo/{fd}"), flags, Mode::empty()).map_err(missing)?;
    let mut text = String::new();
    let read = File::from(file).read_to_string(&mut text);
    read.map_err(|e| missing(os(&e)))?;
    // Kernels before 5.14 do not say which inode it is.
    Open::parse(&text).ok_or(Errno::new(libc::EOPNOTSUPP))
}

fn os(e: &io::Error) -> Os {
    Os::from_io_error(e).unwrap_or(Os::IO)
}

fn missing(e: Os) -> Errno {
    match e {
        Os::NOENT => Errno::new(libc::EBADF),
        e => unseen(e),
    }
}

fn unseen(_: Os) -> Errno {
    Errno::new(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_descriptor() {
        let open = Open::parse("pos:\t0\nflags:\t0102002\nmnt_id:\t31\nino:\t77\n").unwrap();
        assert_eq!((open.ino, open.mount), (77, 31));
        assert!(!reads_and_writes(open.flags), "O_APPEND");
        assert!(reads_and_writes(0o100_002));
        for flags in [0o100_000, 0o100_001, 0o10_100_002] {
            assert!(!reads_and_writes(flags), "{flags:o}");
        }
        assert_eq!(Open::parse("flags:\t08\nmnt_id:\t31\nino:\t77\n"), None);
        assert_eq!(Open::parse("flags:\t02\nmnt_id:\t31\n"), None);
    }

    #[test]
    fn descriptors_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut how = OpenOptions::new();
        let write = how.read(true).write(true).create(true).truncate(true);
        let write = write.open(&path).unwrap();
        let meta = write.metadata().unwrap();
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let here: Arc<str> = format!("{major}:{minor}").into();
        let elsewhere: Arc<str> = "0:0".into();
        let me = std::process::id();
        let outside = Outside::start(|| ()).unwrap();
        let ask = |fd, device| {
            pin(&outside, (me, fd), device)
                .map(|p| p.ino)
                .map_err(Errno::number)
        };
        assert_eq!(ask(write.as_raw_fd(), &here), Ok(meta.ino()));
        assert_eq!(ask(write.as_raw_fd(), &elsewhere), Err(libc::EXDEV));
        let append = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .unwrap();
        assert_eq!(ask(append.as_raw_fd(), &here), Err(libc::EBADF));
        let read = File::open(&path).unwrap();
        assert_eq!(ask(read.as_raw_fd(), &here), Err(libc::EBADF));
        assert_eq!(ask(-1, &here), Err(libc::EBADF));
        assert_eq!(ask(1 << 20, &here), Err(libc::EBADF));
        assert_eq!(
            pin(&outside, (0, 1), &here)
                .map_err(Errno::number)
                .unwrap_err(),
            libc::EOPNOTSUPP
        );
    }

    #[test]
    fn no_more_than_some_look_at_once() {
        let count = Arc::default();
        let mut looks: Vec<Option<Look>> = (0..LOOKS_MAX).map(|_| Look::begin(&count)).collect();
        assert!(looks.iter().all(Option::is_some));
        assert!(Look::begin(&count).is_none());
        looks.pop();
        assert!(Look::begin(&count).is_some());
    }
}
