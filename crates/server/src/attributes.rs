//! Requests about the attributes of an inode and of the file system.

use quayfs_fs::Cause;
use quayfs_fuse::wire::{SetattrIn, StatfsOut, StatxOut};
use quayfs_fuse::{Answer, Out};

use crate::convert::{set_attr, statx_of};
use crate::errno::ToErrno;
use crate::service::Server;

impl Server {
    pub(super) fn getattr(&self, ino: u64, out: &mut Out<'_>) -> Answer {
        self.attributes(&self.fs.getattr(ino).errno()?, out)
    }

    pub(super) fn statx(&self, ino: u64, out: &mut Out<'_>) -> Answer {
        let found = self.fs.getattr(ino).errno()?;
        out.put(&StatxOut {
            attr_valid: self.valid(),
            stat: statx_of(ino, &found.inode),
            ..StatxOut::default()
        })
    }

    pub(super) fn setattr(&self, ino: u64, args: &SetattrIn, out: &mut Out<'_>) -> Answer {
        let (set, kill) = set_attr(args);
        if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.fs.drop_capabilities(ino, Cause::Set(&set)).errno()?;
        }
        self.attributes(&self.fs.setattr(ino, &set, kill).errno()?, out)
    }

    pub(super) fn statfs(&self, ino: u64, out: &mut Out<'_>) -> Answer {
        let s = self.fs.statfs_of(ino);
        out.put(&StatfsOut {
            blocks: s.blocks,
            bfree: s.free,
            bavail: s.available,
            files: s.files,
            ffree: s.files_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..StatfsOut::default()
        })
    }
}
