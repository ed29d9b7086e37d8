//! Requests that began as `ioctl`: flags of inodes, project ids, generations, trim, the end of the mount.

use std::sync::atomic::Ordering;

use quayfs_background::trim::Trim;
use quayfs_fs::SetFlags;
use quayfs_fuse::wire::{
    CommitRange, FsXattr, IOC_ABORT_ATOMIC_WRITE, IOC_COMMIT_ATOMIC_WRITE, IOC_COMMIT_RANGE,
    IOC_EXCHANGE_RANGE, IOC_FSGETXATTR, IOC_FSSETXATTR, IOC_GET_FEATURES, IOC_GETFLAGS,
    IOC_GETVERSION, IOC_SETFLAGS, IOC_SHUTDOWN, IOC_START_ATOMIC_WRITE, IOC_START_COMMIT, IOC_TRIM,
    IOC32_GETVERSION, InHeader, IoctlIn, IoctlOut, TrimRange, handed_over,
};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::inode::Inode;

use crate::convert::{set_xflags, xflags_of};
use crate::errno::ToErrno;
use crate::service::Server;

impl Server {
    /// The kernel wants exactly what the call hands over, which is less than what the numbers of the
    /// first three say.
    pub(super) fn ioctl(
        &self,
        header: &InHeader,
        args: &IoctlIn,
        data: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let ino = header.nodeid;
        match args.cmd {
            IOC_GETFLAGS => {
                let flags = self.inode(ino)?.flags;
                out.put(&IoctlOut::default())?;
                out.put(&flags)
            }
            IOC_SETFLAGS => {
                let flags = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
                self.set_flags(header, SetFlags::all(flags))?;
                out.put(&IoctlOut::default())
            }
            IOC_FSGETXATTR => {
                let inode = self.inode(ino)?;
                out.put(&IoctlOut::default())?;
                out.put(&FsXattr {
                    xflags: xflags_of(&inode),
                    projid: inode.project,
                    ..FsXattr::default()
                })
            }
            IOC_FSSETXATTR => {
                let args = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
                let set = set_xflags(&args)?;
                self.set_flags(header, set)?;
                out.put(&IoctlOut::default())
            }
            IOC_GETVERSION | IOC32_GETVERSION => {
                let generation = self.fs.getattr(ino).errno()?.inode.generation;
                out.put(&IoctlOut::default())?;
                out.put(&generation)
            }
            // Which kind of end is asked for stays with the kernel; ours is good for each of them.
            IOC_SHUTDOWN => {
                self.shut_down(header)?;
                out.put(&IoctlOut::default())
            }
            IOC_TRIM => {
                let range: TrimRange = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
                let what = Trim {
                    start: range.start,
                    len: range.len,
                    min: range.minlen,
                };
                let len = self.fs.trim(self.asker(header), what).errno()?;
                out.put(&IoctlOut::default())?;
                out.put(&TrimRange { len, ..range })
            }
            IOC_GET_FEATURES => self.features(out),
            IOC_START_ATOMIC_WRITE => self.start_atomic(header, args.fh, out),
            IOC_COMMIT_ATOMIC_WRITE => self.commit_atomic(header, (args.fh, false), out),
            IOC_ABORT_ATOMIC_WRITE => self.abort_atomic(header, args.fh, out),
            // They have to wait for the kernel, and too many others do.
            IOC_EXCHANGE_RANGE | IOC_START_COMMIT | IOC_COMMIT_RANGE => {
                self.offers_atomic_writes()?;
                Err(Errno::new(libc::EBUSY))
            }
            _ => Err(Errno::new(libc::ENOTTY)),
        }
    }

    /// Those that wait for the kernel, which writes what it has collected, and forgets what it remembers.
    pub(super) fn waits(&self, cmd: u32) -> bool {
        let waits = [
            IOC_COMMIT_ATOMIC_WRITE,
            IOC_EXCHANGE_RANGE,
            IOC_START_COMMIT,
            IOC_COMMIT_RANGE,
        ];
        self.fs.e.options.atomic_writes && waits.contains(&cmd)
    }

    /// As [`Server::ioctl`], for those that wait for the kernel.
    pub(super) fn ioctl_waiting(
        &self,
        header: &InHeader,
        (args, data): (&IoctlIn, &[u8]),
        out: &mut Out<'_>,
    ) -> Answer {
        match args.cmd {
            IOC_COMMIT_ATOMIC_WRITE => self.commit_atomic(header, (args.fh, true), out),
            IOC_EXCHANGE_RANGE => self.exchange_range(header, (args, data), out),
            IOC_START_COMMIT => self.start_commit(header.nodeid, args.fh, out),
            IOC_COMMIT_RANGE => self.commit_range(header, (args, data), out),
            _ => self.ioctl(header, args, data, out),
        }
    }

    /// What has to follow a request that an earlier daemon has carried out and not answered. `patient`: whether it may wait
    /// for the kernel.
    pub(super) fn ioctl_before(
        &self,
        header: &InHeader,
        (args, data): (&IoctlIn, &[u8]),
        patient: bool,
    ) -> Answer {
        match args.cmd {
            IOC_COMMIT_ATOMIC_WRITE => self.committed_before(header.nodeid, (args.fh, patient)),
            IOC_EXCHANGE_RANGE => {
                let range = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
                self.exchanged_before(header, &range)
            }
            IOC_COMMIT_RANGE => {
                let what: CommitRange = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
                self.exchanged_before(header, &what.range)
            }
            _ => {
                self.kernel.attributes_changed(header.nodeid);
                Ok(())
            }
        }
    }

    /// To the kernel these flags are no attributes, but the time of their change is. Since Linux 5.13 it has checked
    /// the caller before, by the capabilities that the caller has in its user namespace and by the owner as its mount
    /// maps it. Overlayfs has done so where it asks on behalf of a caller.
    /// Also where the end comes with an error, a daemon that goes on must not begin anew.
    fn shut_down(&self, header: &InHeader) -> Answer {
        let done = self.fs.kill(self.asker(header));
        if let (Err(_), Some(requests)) = (self.fs.alive(), &self.requests) {
            requests.shut_down();
        }
        done.errno()
    }

    fn set_flags(&self, header: &InHeader, set: SetFlags) -> Answer {
        if self.kernel_checks_flags.load(Ordering::Relaxed) {
            self.fs.set_flags_checked(header.nodeid, set).errno()?;
        } else {
            self.fs
                .set_flags(self.asker(header), header.nodeid, set)
                .errno()?;
        }
        self.kernel.attributes_changed(header.nodeid);
        Ok(())
    }

    fn inode(&self, ino: u64) -> Result<Inode, Errno> {
        Ok(self.fs.getattr(ino).errno()?.inode)
    }
}
