//! Who asks.
//!
//! With `idmap` (`FUSE_ALLOW_IDMAP`, Linux 6.12) requests say so only where they make an inode, the
//! whiteout of a rename included, with the ids that the caller's mount maps him to. Everything else comes
//! without user and group, from mounts that map nothing as well. Where it matters all the same, which is
//! rare, `/proc` tells: the caller waits for the answer, so he is there, and is who he was.

use procfs::process::{Process, Status};
use quayfs_fuse::Errno;
use quayfs_fuse::wire::InHeader;

use crate::fs::Caller;

/// Who is behind a request that he cannot be found by: not root, not the daemon's user, in no group.
const NOBODY: Caller = Caller {
    uid: u32::MAX,
    gid: u32::MAX,
    umask: 0,
};

/// Whom the request names, if it does.
pub fn named(header: &InHeader) -> Option<Caller> {
    let (uid, gid, umask) = (header.uid, header.gid, 0);
    header.has_ids().then_some(Caller { uid, gid, umask })
}

/// Who makes an inode; `EOVERFLOW` if his mount maps him to nobody.
pub fn maker(header: &InHeader, umask: u32) -> Result<Caller, Errno> {
    let by = named(header).ok_or(Errno::new(libc::EOVERFLOW))?;
    Ok(Caller { umask, ..by })
}

/// Who asks for anything else. Ids are those outside of the caller's mount, whatever that maps.
pub fn asker(header: &InHeader) -> Caller {
    named(header)
        .or_else(|| found(header.pid))
        .unwrap_or(NOBODY)
}

/// Whether `/proc` has a task by this number, which is that in the namespace of the daemon; 0 stands for one that is
/// not in there.
pub fn is_visible(pid: u32) -> bool {
    let me = || Process::myself().and_then(|p| p.status());
    pid != 0 && me().is_ok_and(|me| is_ours(&me))
}

/// A task by its number in the namespace of the daemon.
fn found(pid: u32) -> Option<Caller> {
    if !is_visible(pid) {
        return None;
    }
    let pid = i32::try_from(pid).ok()?;
    caller_of(&Process::new(pid).and_then(|p| p.status()).ok()?)
}

/// Whether `/proc` has tasks by the numbers that they have for the daemon: the mount of a namespace
/// outside has others by the same numbers. Kernels without such namespaces do not say.
fn is_ours(me: &Status) -> bool {
    me.nspid.as_ref().is_none_or(|numbers| numbers.len() == 1)
}

/// A thread of the kernel, which has no memory of its own, is root and works for others (NFS): for whom
/// is not to be seen.
fn caller_of(status: &Status) -> Option<Caller> {
    status.vmsize?;
    Some(Caller {
        uid: status.fuid,
        gid: status.fgid,
        umask: 0,
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

    #[test]
    fn a_request_that_names_its_caller_is_believed() {
        let by = asker(&header(7, 1));
        assert_eq!((by.uid, by.gid), (7, 9));
        assert_eq!(maker(&header(7, 1), 0), Ok(by));
        let unmapped = header(u32::MAX, 1);
        assert_eq!(named(&unmapped), None);
        assert_eq!(maker(&unmapped, 0), Err(Errno::new(libc::EOVERFLOW)));
    }

    #[test]
    fn others_are_looked_up() {
        let me = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        };
        assert_eq!(asker(&header(u32::MAX, std::process::id())), me);
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(asker(&header(u32::MAX, thread.cast_unsigned())), me);
        for nobody in [0, i32::MAX.cast_unsigned(), u32::MAX] {
            assert_eq!(asker(&header(u32::MAX, nobody)), NOBODY);
        }
    }

    #[test]
    fn what_is_not_sure_is_nobody() {
        let mut status = Process::myself().unwrap().status().unwrap();
        assert!(is_ours(&status));
        status.nspid.as_mut().unwrap().push(1);
        assert!(!is_ours(&status));
        (status.fuid, status.fgid) = (4, 8);
        let by = caller_of(&status).unwrap();
        assert_eq!((by.uid, by.gid), (4, 8));
        status.vmsize = None;
        assert_eq!(caller_of(&status), None);
    }
}
