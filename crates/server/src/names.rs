//! Requests about names.

use quayfs_fuse::wire::{CreateIn, InHeader, MkdirIn, MknodIn, Rename2In};
use quayfs_fuse::{Answer, Out};
use quayfs_layout::inode::{S_IFMT, S_IFREG};
use quayfs_store::error::FsError;

use crate::caller::maker;
use crate::convert::rename_flags;
use crate::errno::{ToErrno, errno};
use crate::service::Server;

impl Server {
    pub(super) fn lookup(&self, parent: u64, name: &[u8], out: &mut Out<'_>) -> Answer {
        match self.fs.lookup(parent, name) {
            Ok(found) => out.put(&self.entry_of(&found)),
            Err(FsError::NoEntry) => out.put(&self.no_entry()),
            Err(e) => Err(errno(&e)),
        }
    }

    pub(super) fn symlink(
        &self,
        header: &InHeader,
        name: &[u8],
        target: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let made = self
            .fs
            .symlink(maker(header, 0)?, header.nodeid, name, target)
            .errno()?;
        out.put(&self.entry_of(&made))
    }

    pub(super) fn mknod(
        &self,
        header: &InHeader,
        args: MknodIn,
        name: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let by = maker(header, args.umask)?;
        let made = self
            .fs
            .mknod(by, header.nodeid, name, args.mode, args.rdev)
            .errno()?;
        out.put(&self.entry_of(&made))
    }

    pub(super) fn mkdir(
        &self,
        header: &InHeader,
        args: MkdirIn,
        name: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let by = maker(header, args.umask)?;
        let made = self.fs.mkdir(by, header.nodeid, name, args.mode).errno()?;
        out.put(&self.entry_of(&made))
    }

    /// Creates a file and opens it.
    pub(super) fn create(
        &self,
        header: &InHeader,
        args: CreateIn,
        name: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let mode = args.mode & !S_IFMT | S_IFREG;
        let by = maker(header, args.umask)?;
        let made = self.fs.mknod(by, header.nodeid, name, mode, 0).errno()?;
        out.put(&self.entry_of(&made))?;
        out.put(&self.opened(args.flags))
    }

    /// Makes a file without a name and opens it. Kernels that open files without asking release none.
    pub(super) fn tmpfile(&self, header: &InHeader, args: CreateIn, out: &mut Out<'_>) -> Answer {
        let made = self
            .fs
            .tmpfile(maker(header, args.umask)?, header.nodeid, args.mode)
            .errno()?;
        out.put(&self.entry_of(&made))?;
        out.put(&self.opened(args.flags))
    }

    pub(super) fn rename(
        &self,
        header: &InHeader,
        name: &[u8],
        (to, new_name): (Rename2In, &[u8]),
    ) -> Answer {
        let flags = rename_flags(to.flags, header)?;
        let (old, new) = ((header.nodeid, name), (to.newdir, new_name));
        self.fs.rename(old, new, flags).errno()
    }

    pub(super) fn link(&self, ino: u64, parent: u64, name: &[u8], out: &mut Out<'_>) -> Answer {
        out.put(&self.entry_of(&self.fs.link(ino, parent, name).errno()?))
    }
}
