//! Rounds that follow each other without a pause.

use std::cell::{Cell, RefCell};

use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat};

use super::*;
use crate::background::digest_all;
use crate::checkpoint::{Reach, rounds};

const BLOCKS: u64 = 48;
const POLICIES: [&str; 4] = ["adaptive", "swap", "inplace", "double"];

/// A file, and what should be in it.
struct Known {
    ino: Ino,
    bytes: Vec<u8>,
}

impl Known {
    fn new(fs: &Fs) -> Self {
        let ino = file(fs, ROOT, "f");
        let mut known = Self {
            ino,
            bytes: vec![0; BLOCKS as usize * BLOCK],
        };
        known.write_blocks(fs, 0..BLOCKS, 1);
        known
    }

    /// Each block is a record of its own.
    fn write_blocks(&mut self, fs: &Fs, blocks: impl Iterator<Item = u64>, version: u8) {
        for b in blocks {
            let at = b as usize * BLOCK;
            let new = &mut self.bytes[at..at + BLOCK];
            new.fill(version);
            new[..8].copy_from_slice(&b.to_le_bytes());
            fs.write(self.ino, at as u64, new, false).unwrap();
        }
        digest_all(&fs.e).unwrap();
    }

    fn check(&self, fs: &Fs, when: &str) {
        let got = fs.read(self.ino, 0, self.bytes.len()).unwrap();
        assert!(got == self.bytes, "{when}");
    }
}

fn staged(fs: &Fs) -> u64 {
    fs.e.journal.stats().slots_used
}

#[test]
fn each_takes_what_the_one_before_it_has_left() {
    for policy in POLICIES {
        let disk = Disk::new();
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = Known::new(&fs);
        assert_eq!(staged(&fs), BLOCKS);
        let freed = RefCell::new(Vec::new());
        let report = rounds(&fs.e, Reach::Older, |slots| {
            freed.borrow_mut().push(slots);
            freed.borrow().len() < 3
        })
        .unwrap();
        assert_eq!(freed.take(), [24, 12, 6], "{policy}");
        assert_eq!((report.slots, report.written), (42, 42), "{policy}");
        assert_eq!(staged(&fs), 6, "{policy}");
        known.check(&fs, policy);

        // To the end, and not further.
        let n = Cell::new(0);
        let report = rounds(&fs.e, Reach::All, |_| n.replace(n.get() + 1) < 9).unwrap();
        assert_eq!((report.slots, n.get(), staged(&fs)), (6, 1, 0), "{policy}");
        let fs = disk.dies(fs, "noatime");
        known.check(&fs, policy);
        fs.shutdown().unwrap();
        drop(fs);
        disk.is_clean();
    }
}

#[test]
fn blocks_that_are_written_again_meanwhile_are_in_both() {
    for policy in POLICIES {
        let disk = Disk::new();
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = RefCell::new(Known::new(&fs));
        let version = Cell::new(2);
        let report = rounds(&fs.e, Reach::All, |_| {
            // The device has most of the round by now; each block of it that is written here goes where the round
            // has put it, or away from there.
            let v = version.replace(version.get() + 1);
            if v < 6 {
                let every = u64::from(v);
                let blocks = (0..BLOCKS).filter(|b| b % every == 0);
                known.borrow_mut().write_blocks(&fs, blocks, v);
                known.borrow().check(&fs, policy);
            }
            v < 7
        })
        .unwrap();
        assert_eq!(report.written, BLOCKS + 24 + 16 + 12 + 10, "{policy}");
        assert_eq!(staged(&fs), 0, "{policy}");
        let known = known.into_inner();
        known.check(&fs, policy);
        let fs = disk.dies(fs, "noatime");
        known.check(&fs, policy);
        fs.shutdown().unwrap();
        drop(fs);
        disk.is_clean();
    }
}

#[test]
fn a_row_ends_where_there_is_little_left() {
    let fs = Disk::new().mount("noatime");
    let known = RefCell::new(Known::new(&fs));
    let report = rounds(&fs.e, Reach::All, |_| {
        known.borrow_mut().write_blocks(&fs, 0..BLOCKS / 2 - 1, 2);
        true
    })
    .unwrap();
    assert_eq!((report.slots, staged(&fs)), (BLOCKS, BLOCKS / 2 - 1));
    known.into_inner().check(&fs, "the rest is staged");
    fs.shutdown().unwrap();
}

#[test]
fn one_that_fails_leaves_what_was_done_before_it() {
    for policy in POLICIES {
        let mut disk = Disk::new();
        let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
        disk.device = Arc::<FaultDevice>::clone(&device);
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = Known::new(&fs);
        let failed = rounds(&fs.e, Reach::Older, |_| {
            device.fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
            true
        });
        assert!(matches!(failed, Err(FsError::Io(_))), "{policy}");
        // The slots of the first are free.
        assert_eq!(staged(&fs), 24, "{policy}");
        known.check(&fs, policy);
        device.heal();
        let fs = disk.dies(fs, "noatime");
        known.check(&fs, policy);
        rounds(&fs.e, Reach::All, |_| false).unwrap();
        known.check(&fs, policy);
        fs.shutdown().unwrap();
        drop(fs);
        disk.is_clean();
    }
}
