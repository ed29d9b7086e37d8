//! What the kernel may remember of an answer, and which questions one answer ends for good: most of what
//! keeps messages few (docs/performance.md).

use quayfs_fs::Attr;
use quayfs_fuse::wire::{AttrOut, EntryOut, OpenOut};
use quayfs_fuse::{Answer, Errno, Op, Out};

use crate::convert::{FOREVER, attr_of};
use crate::service::Server;

impl Server {
    /// How long names and attributes are valid, in seconds.
    pub(super) fn valid(&self) -> u64 {
        if self.fs.e.options.ablation.all_messages {
            0
        } else {
            FOREVER
        }
    }

    /// Attributes of an inode.
    pub(super) fn attributes(&self, a: &Attr, out: &mut Out<'_>) -> Answer {
        out.put(&AttrOut {
            attr_valid: self.valid(),
            attr: attr_of(a.ino, &a.inode),
            ..AttrOut::default()
        })
    }

    /// A name with its inode.
    pub(super) fn entry_of(&self, a: &Attr) -> EntryOut {
        EntryOut {
            nodeid: a.ino,
            generation: u64::from(a.inode.generation),
            entry_valid: self.valid(),
            attr_valid: self.valid(),
            attr: attr_of(a.ino, &a.inode),
            ..EntryOut::default()
        }
    }

    /// What the kernel remembers as the absence of a name.
    pub(super) fn no_entry(&self) -> EntryOut {
        EntryOut {
            entry_valid: self.valid(),
            attr_valid: self.valid(),
            ..EntryOut::default()
        }
    }

    /// Answers what has nothing to do here. `ENOSYS` means that the kernel need not ask again, and that
    /// it may take it for done.
    pub(super) fn needless(&self, op: &Op<'_>, out: &mut Out<'_>) -> Answer {
        if !self.fs.e.options.ablation.all_messages {
            return Err(Errno::NOSYS);
        }
        match op {
            Op::Opendir(_) => out.put(&OpenOut::default()),
            _ => Ok(()),
        }
    }
}
