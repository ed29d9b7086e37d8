//! fsync, fsyncdir, syncfs.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_DIRSYNC, FLAG_SYNC};

use crate::config::{DataMode, Durability};
use crate::error::Result;
use crate::fs::Fs;
use crate::ns::inode::Cell;

impl Fs {
    /// Whether `fsync` has nothing to do, so that the kernel need not send it.
    pub fn sync_is_free(&self) -> bool {
        self.e.durability == Durability::Op
    }

    /// Makes everything done before durable, by whomever and to whatever. In mode `op` it already is;
    /// in mode `commit` the running transaction commits. Of direct data in mode `data=writeback` it is
    /// the inode's own that is made durable.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        if self.sync_is_free() {
            return Ok(());
        }
        let cell = self.cell(ino)?;
        self.sync_cell(&cell)
    }

    fn sync_cell(&self, cell: &Cell) -> Result<()> {
        self.sync_data(cell.seq())?;
        self.e.commit().map(drop)
    }

    /// In mode `commit`: what was done to an inode with one of these flags is durable before the caller
    /// hears of it.
    pub(super) fn settle(&self, cell: &Cell, flags: u32) -> Result<()> {
        if self.sync_is_free() || cell.with(|i| i.flags & flags == 0) {
            return Ok(());
        }
        self.sync_cell(cell)
    }

    /// [`Fs::settle`] after a change of names in a directory.
    pub(super) fn settle_names(&self, dir: &Cell) -> Result<()> {
        self.settle(dir, FLAG_SYNC | FLAG_DIRSYNC)
    }

    /// Makes everything durable.
    pub fn sync_all(&self) -> Result<()> {
        self.sync_data(self.e.journal.last_seq())?;
        self.e.commit().map(drop)
    }

    /// In mode `data=writeback` commits do not wait for data, but who asks for durability does.
    fn sync_data(&self, upto: u64) -> Result<()> {
        if self.e.options.data == DataMode::Writeback {
            self.e.flush_data(upto)
        } else {
            Ok(())
        }
    }
}
