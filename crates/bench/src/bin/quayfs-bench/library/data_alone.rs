//! A file system whose nodes cost nothing, below the workloads: names and sizes in memory, and data that is
//! written to a device and flushed there by `fsync`.
//!
//! What an `fsync` takes here is what is left of it wherever a file system keeps its nodes. What was written is
//! not found again.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quayfs_bench::library::{Library, Node};
use quayfs_blockdev::{BLOCK, BlockDevice};
use quayfs_sync::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::nothing::Nothing;

/// All of it.
pub struct DataAlone {
    names: Nothing,
    device: Arc<dyn BlockDevice>,
    /// Blocks that were given out, one behind the other as any allocator would like to have them.
    taken: AtomicU64,
    /// Writes that have ended.
    written: AtomicU64,
    /// How many of these are durable.
    durable: AtomicU64,
    flushing: Mutex<()>,
}

impl DataAlone {
    /// Writes to `device`, over whatever is there.
    pub fn on(device: Arc<dyn BlockDevice>) -> Self {
        Self {
            names: Nothing::default(),
            device,
            taken: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            flushing: Mutex::new(()),
        }
    }

    fn put(&self, data: &[u8]) -> std::io::Result<()> {
        for piece in data.chunks(BLOCK) {
            let at = self.taken.fetch_add(1, Ordering::Relaxed) % self.device.blocks();
            match piece.len() {
                BLOCK => self.device.write(at, piece)?,
                len => {
                    let mut block = vec![0; BLOCK];
                    block[..len].copy_from_slice(piece);
                    self.device.write(at, &block)?;
                }
            }
        }
        self.written.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Makes durable what has been written: one flush for all threads that came while another flush was under way.
    fn flush(&self) -> Result<(), Errno> {
        let mine = self.written.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let _turn = self.flushing.lock();
        if self.durable.load(Ordering::Acquire) < mine {
            let covered = self.written.load(Ordering::Acquire);
            self.device.flush().map_err(|_| Errno::IO)?;
            self.durable.fetch_max(covered, Ordering::AcqRel);
        }
        Ok(())
    }
}

impl Library for DataAlone {
    fn root(&self) -> Result<Node, Errno> {
        self.names.root()
    }

    fn open(&self, dir: Node, path: &CStr, flags: OFlags, mode: Mode) -> Result<Node, Errno> {
        self.names.open(dir, path, flags, mode)
    }

    fn close(&self, node: Node) {
        self.names.close(node);
    }

    fn read(&self, node: Node, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.names.read(node, buffer, offset)
    }

    fn write(&self, node: Node, data: &[u8], offset: u64, flags: OFlags) -> Result<usize, Errno> {
        self.put(data).map_err(|_| Errno::IO)?;
        self.names.write(node, data, offset, flags)
    }

    fn size(&self, node: Node) -> Result<u64, Errno> {
        self.names.size(node)
    }

    fn fsync(&self, _: Node) -> Result<(), Errno> {
        self.flush()
    }

    fn syncfs(&self) -> Result<(), Errno> {
        self.flush()
    }

    fn stat(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.names.stat(dir, path)
    }

    fn unlink(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.names.unlink(dir, path)
    }

    fn rename(&self, dir: Node, from: &CStr, to: &CStr) -> Result<(), Errno> {
        self.names.rename(dir, from, to)
    }

    fn mkdir(&self, dir: Node, path: &CStr, mode: Mode) -> Result<(), Errno> {
        self.names.mkdir(dir, path, mode)
    }

    fn rmdir(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.names.rmdir(dir, path)
    }

    fn list(&self, node: Node, cookie: &mut u64, room: &mut Vec<u8>) -> Result<(), Errno> {
        self.names.list(node, cookie, room)
    }

    fn chmod(&self, node: Node, mode: Mode) -> Result<(), Errno> {
        self.names.chmod(node, mode)
    }

    fn set_mtime(&self, node: Node, seconds: i64) -> Result<(), Errno> {
        self.names.set_mtime(node, seconds)
    }

    fn describe(&self, node: Node) -> PathBuf {
        self.names.describe(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat, SimDevice};

    #[test]
    fn data_is_on_the_device_and_fsync_is_its_flush() {
        let device = Arc::new(FaultDevice::new(Arc::new(SimDevice::unrecorded(3))));
        let alone = DataAlone::on(Arc::<FaultDevice>::clone(&device));
        let root = alone.root().unwrap();
        let f = alone.open(root, c"f", OFlags::CREATE, Mode::empty());
        let f = f.unwrap();
        let data = vec![7; BLOCK + 1];
        assert_eq!(alone.write(f, &data, 0, OFlags::empty()), Ok(BLOCK + 1));
        assert_eq!(alone.size(f), Ok(BLOCK as u64 + 1));
        let mut read = vec![1; 3 * BLOCK];
        device.read(0, &mut read).unwrap();
        assert!(read[..=BLOCK].iter().all(|b| *b == 7));
        assert!(read[BLOCK + 1..].iter().all(|b| *b == 0));

        assert_eq!(device.calls(FaultOp::Flush), 0);
        alone.fsync(f).unwrap();
        assert_eq!(device.calls(FaultOp::Flush), 1);
        // Nothing was written since.
        alone.fsync(f).unwrap();
        assert_eq!(device.calls(FaultOp::Flush), 1);
        // Behind the last block comes the first.
        assert_eq!(alone.write(f, &data, 0, OFlags::empty()), Ok(BLOCK + 1));
        device.read(0, &mut read).unwrap();
        assert_eq!([read[0], read[1], read[2 * BLOCK]], [7, 0, 7]);
        device.fail(FaultOp::Flush, 1, Fault::Errno(5), Repeat::Once);
        assert_eq!(alone.fsync(f), Err(Errno::IO));
        // A flush that failed has made nothing durable.
        alone.fsync(f).unwrap();
        assert_eq!(device.calls(FaultOp::Flush), 3);
    }
}
