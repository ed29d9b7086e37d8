//! The caller of a request, and what it may do.
//!
//! User 0 is not authority: root of a container is user 0 as well. What Linux asks a capability for is asked here in
//! the same way, and `/proc` tells whether the task has it. The task waits for the answer, so it is there, is what it
//! was, and no other task gets its number meanwhile. That number is one of a thread, in the namespace of the daemon.
//!
//! With `idmap` (`FUSE_ALLOW_IDMAP`, Linux 6.12) requests name the caller only where they make an inode, the whiteout
//! of a rename included. The ids are those that the caller's mount maps the caller to. All other requests come
//! without user and group, also from mounts that map nothing. Where it matters all the same, which is rare, `/proc`
//! tells that too.

use std::cell::OnceCell;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use procfs::FromBufRead;
use procfs::process::{Process, Status};
use quayfs_fs::{Asker, Caller};
use quayfs_fuse::Errno;
use quayfs_fuse::wire::InHeader;
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::thread::CapabilitySet;

use crate::outside::Outside;
use crate::service::Server;

/// Stands for a caller that cannot be found out: not root, not the daemon's user, in no group.
const NOBODY: Caller = Caller {
    uid: u32::MAX,
    gid: u32::MAX,
    umask: 0,
};

/// The caller that the request names, if it names one.
fn named(header: &InHeader) -> Option<Caller> {
    let (uid, gid, umask) = (header.uid, header.gid, 0);
    header.has_ids().then_some(Caller { uid, gid, umask })
}

/// The caller that makes an inode; `EOVERFLOW` if its mount maps it to no ids.
pub fn maker(header: &InHeader, umask: u32) -> Result<Caller, Errno> {
    let by = named(header).ok_or(Errno::new(libc::EOVERFLOW))?;
    Ok(Caller { umask, ..by })
}

impl Server {
    /// The caller of any other request. Ids are those outside of the caller's mount, whatever that maps.
    pub(super) fn asker(&self, header: &InHeader) -> Task<'_> {
        Task::new(header, &self.outside)
    }
}

/// A task that waits for an answer. It is looked at when that decides something, and once.
#[derive(Debug)]
pub struct Task<'a> {
    named: Option<Caller>,
    number: u32,
    outside: &'a Outside,
    seen: OnceCell<Option<Seen>>,
}

/// What `/proc` says of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    ids: Caller,
    /// In the user namespace of the daemon: what it may in one of its own counts for nothing here.
    may: CapabilitySet,
}

impl<'a> Task<'a> {
    fn new(header: &InHeader, outside: &'a Outside) -> Self {
        Self {
            named: named(header),
            number: header.pid,
            outside,
            seen: OnceCell::new(),
        }
    }

    fn seen(&self) -> Option<&Seen> {
        let number = self.number;
        let look = || self.outside.run(move || seen_task(number));
        self.seen.get_or_init(look).as_ref()
    }

    /// Whether it may know that an inode has attributes in `trusted.`. Where the kernel acts with the rights of root
    /// on behalf of a task, as overlayfs does when it copies a file up, the request names root as the user. Only
    /// names of attributes can be had in this way.
    pub fn sees_trusted(&self) -> bool {
        let is_root = |by: &Caller| by.uid == 0;
        let is_lent = || {
            self.named.as_ref().is_some_and(is_root)
                && self.seen().is_some_and(|task| !is_root(&task.ids))
        };
        self.has(CapabilitySet::SYS_ADMIN) || is_lent()
    }
}

impl Asker for Task<'_> {
    fn ids(&self) -> Caller {
        let seen = || self.seen().map(|task| task.ids);
        self.named.or_else(seen).unwrap_or(NOBODY)
    }

    fn has(&self, capability: CapabilitySet) -> bool {
        self.seen()
            .is_some_and(|task| task.may.contains(capability))
    }
}

/// Whether `/proc` has a task by this number, which is that in the namespace of the daemon; 0 stands for one that is
/// not in there.
pub fn is_visible(pid: u32) -> bool {
    let me = || Process::myself().and_then(|p| p.status());
    pid != 0 && me().is_ok_and(|me| is_ours(&me))
}

/// Whether `/proc` has tasks by the numbers that they have for the daemon: the mount of a namespace
/// outside has others by the same numbers. Kernels without such namespaces do not say.
fn is_ours(me: &Status) -> bool {
    me.nspid.as_ref().is_none_or(|numbers| numbers.len() == 1)
}

/// A task by its number in the namespace of the daemon.
fn seen_task(pid: u32) -> Option<Seen> {
    if !is_visible(pid) {
        return None;
    }
    // Everything is looked up below it, so that it is of one task.
    let (path, flags) = (format!("/proc/{pid}"), OFlags::PATH | OFlags::DIRECTORY);
    let task = openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let status = openat(&task, "status", flags, Mode::empty()).ok()?;
    let status = read_status(File::from(status))?;
    let here = openat(
        CWD,
        "/proc/self",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let is_here = user_namespace(&task).is_some_and(|there| Some(there) == user_namespace(&here));
    seen(&status, is_here)
}

/// Its first line is the name of the task, which may be of any bytes: what a program is called is cut off after 15 of
/// them, within a character too.
fn read_status(mut file: File) -> Option<Status> {
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    Status::from_buf_read(String::from_utf8_lossy(&text).as_bytes()).ok()
}

/// The name of its user namespace. For a task of another user, only a process that may trace the task can know it.
fn user_namespace(task: &OwnedFd) -> Option<CString> {
    readlinkat(task, "ns/user", Vec::new()).ok()
}

/// `None` for a thread of the kernel, which has no memory of its own: it is root and works for other tasks (NFS), and
/// which these are cannot be seen.
fn seen(status: &Status, is_here: bool) -> Option<Seen> {
    status.vmsize?;
    let may = CapabilitySet::from_bits_retain(status.capeff);
    Some(Seen {
        ids: Caller {
            uid: status.fuid,
            gid: status.fgid,
            umask: 0,
        },
        may: if is_here { may } else { CapabilitySet::empty() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(uid: u32, pid: u32) -> InHeader {
        InHeader {
            uid,
            gid: 9,
            pid,
            ..InHeader::default()
        }
    }

    /// What is asked of the sender of this.
    fn of<T>(header: InHeader, ask: impl FnOnce(Task<'_>) -> T) -> T {
        let outside = Outside::start(|| ()).unwrap();
        ask(Task::new(&header, &outside))
    }

    fn me() -> Caller {
        Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        }
    }

    #[test]
    fn a_request_that_names_its_caller_is_believed() {
        let by = of(header(7, 1), |task| task.ids());
        assert_eq!((by.uid, by.gid), (7, 9));
        assert_eq!(maker(&header(7, 1), 0), Ok(by));
        let unmapped = header(u32::MAX, 1);
        assert_eq!(named(&unmapped), None);
        assert_eq!(maker(&unmapped, 0), Err(Errno::new(libc::EOVERFLOW)));
    }

    #[test]
    fn others_are_looked_up() {
        let ids = |pid| of(header(u32::MAX, pid), |task| task.ids());
        assert_eq!(ids(std::process::id()), me());
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(ids(thread.cast_unsigned()), me());
        for nobody in [0, i32::MAX.cast_unsigned(), u32::MAX] {
            assert_eq!(ids(nobody), NOBODY);
        }
    }

    #[test]
    fn user_0_is_believed_to_be_no_more_than_that() {
        for unseen in [0, i32::MAX.cast_unsigned(), u32::MAX] {
            of(header(0, unseen), |root| {
                assert_eq!(root.ids().uid, 0);
                assert!(!root.has(CapabilitySet::FOWNER));
                assert!(!root.sees_trusted());
            });
        }
    }

    #[test]
    fn capabilities_are_those_of_the_thread() {
        let mine = rustix::thread::capabilities(None).unwrap();
        std::thread::scope(|scope| {
            let less = scope.spawn(move || {
                let mut less = mine;
                less.effective.remove(CapabilitySet::FOWNER);
                rustix::thread::set_capabilities(None, less).unwrap();
                let pid = rustix::thread::gettid().as_raw_nonzero().get();
                seen_task(pid.cast_unsigned()).unwrap().may
            });
            let may = less.join().unwrap();
            assert!(!may.contains(CapabilitySet::FOWNER));
            assert_eq!(may, mine.effective - CapabilitySet::FOWNER);
        });
        assert_eq!(seen_task(std::process::id()).unwrap().may, mine.effective);
    }

    #[test]
    fn a_task_is_seen_whatever_its_name() {
        for name in [c"\xff\xfe", c"cut off: \xe2\x82", c"a\nUid:\t0 0 0 0", c""] {
            let seen = std::thread::spawn(move || {
                rustix::thread::set_name(name).unwrap();
                seen_task(
                    rustix::thread::gettid()
                        .as_raw_nonzero()
                        .get()
                        .cast_unsigned(),
                )
            });
            let seen = seen.join().unwrap();
            assert_eq!(seen.map(|task| task.ids), Some(me()), "{name:?}");
        }
    }

    #[test]
    fn what_is_not_sure_is_nobody() {
        let mut status = Process::myself().unwrap().status().unwrap();
        assert!(is_ours(&status));
        status.nspid.as_mut().unwrap().push(1);
        assert!(!is_ours(&status));
        (status.fuid, status.fgid, status.capeff) = (4, 8, u64::MAX);
        let by = seen(&status, true).unwrap();
        assert_eq!((by.ids.uid, by.ids.gid), (4, 8));
        assert!(by.may.contains(CapabilitySet::SYS_ADMIN));
        // In another user namespace any user may be root.
        let other = seen(&status, false).unwrap();
        assert_eq!((other.ids, other.may), (by.ids, CapabilitySet::empty()));
        status.vmsize = None;
        assert_eq!(seen(&status, true), None);
    }
}
