//! fsync, fsyncdir, syncfs.

use quayfs_layout::Ino;

use crate::config::{DataMode, Durability};
use crate::error::Result;
use crate::fs::Fs;

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
        self.sync_data(cell.seq())?;
        self.e.commit().map(drop)
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
