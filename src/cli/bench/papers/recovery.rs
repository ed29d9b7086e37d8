//! How long recovery takes, by what is staged.

use super::experiments::{Place, Variant};
use super::volume::Site;
use crate::error::FsError;
use crate::fs::{Caller, Fs};
use quayfs_bench::stats::Summary;
use quayfs_bench::{Error, Result};
use quayfs_layout::inode::{ROOT, S_IFREG};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of a write.
const CHUNK: usize = 64 << 10;
/// Parts of the staging slots that are in use when the file system dies, in percent.
const FULL: [u64; 4] = [10, 30, 60, 90];
/// Every operation is durable, so all of them are there afterwards.
const OPTIONS: &str = "durability=op,data=journal";
const NAME: &[u8] = b"file";

/// One amount of staged data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Bytes staged when the file system died.
    pub staged_bytes: u64,
    /// Bytes that can be staged.
    pub staging_bytes: u64,
    /// Records that were replayed.
    pub records: u64,
    /// Seconds from opening the volume to the first answer.
    pub recovery_s: Option<Summary>,
    /// Seconds that it took then to write all of it to the device: what a journal has to do that is
    /// replayed there before anybody is answered.
    pub write_back_s: Option<Summary>,
}

/// Measures each amount `repeat` times; what was found before an error is in `found`.
///
/// # Errors
/// What the file system said; [`Error::Stopped`].
pub fn measure(
    site: &Site,
    repeat: u32,
    stop: &AtomicBool,
    found: &mut Vec<Recovery>,
) -> Result<()> {
    for percent in FULL {
        let (mut recovery, mut write_back) = (Vec::new(), Vec::new());
        let mut last = None;
        for _ in 0..repeat {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let one = once(site, percent)?;
            recovery.push(one.recovery);
            write_back.push(one.write_back);
            last = Some(one);
        }
        found.extend(last.map(|one| Recovery {
            staged_bytes: one.staged_bytes,
            staging_bytes: one.staging_bytes,
            records: one.records,
            recovery_s: Summary::of(recovery),
            write_back_s: Summary::of(write_back),
        }));
    }
    Ok(())
}

struct Once {
    staged_bytes: u64,
    staging_bytes: u64,
    records: u64,
    recovery: f64,
    write_back: f64,
}

fn once(site: &Site, percent: u64) -> Result<Once> {
    const ON_PMEM: Variant = Variant {
        name: "recovery",
        options: OPTIONS,
        place: Place::Pmem,
        times: 1,
        buffers: None,
    };
    let fresh = site.fresh(&ON_PMEM)?;
    let failed = |e: FsError| Error::File {
        path: fresh.path().into(),
        source: std::io::Error::other(e.to_string()),
    };
    // Nobody digests or writes back what is staged.
    let fs = fresh.open_quiet(OPTIONS)?;
    let size = fill(&fs, percent).map_err(failed)?;
    let before = fs.e.journal.stats();
    fs.abandon();
    drop(fs);

    let began = Instant::now();
    let fs = fresh.open(OPTIONS)?;
    let found = fs.lookup(ROOT, NAME).map_err(failed)?;
    let recovery = began.elapsed().as_secs_f64();
    if found.inode.size != size {
        return Err(failed(FsError::io("recovery lost an operation")));
    }
    fs.forget(found.ino, 1);
    let records = fs.e.metrics.records_replayed.load(Ordering::Relaxed);
    let began = Instant::now();
    fs.shutdown().map_err(failed)?;
    Ok(Once {
        staged_bytes: before.slots_used * quayfs_layout::BLOCK as u64,
        staging_bytes: before.slots * quayfs_layout::BLOCK as u64,
        records,
        recovery,
        write_back: began.elapsed().as_secs_f64(),
    })
}

/// Writes until so much is staged, and says how long the file is.
fn fill(fs: &Fs, percent: u64) -> Result<u64, FsError> {
    let by = Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    };
    let file = fs.mknod(by, ROOT, NAME, S_IFREG | 0o644, 0)?;
    let mut data = vec![7; CHUNK];
    let mut at = 0;
    loop {
        let stats = fs.e.journal.stats();
        if stats.slots_used * 100 >= stats.slots * percent {
            fs.forget(file.ino, 1);
            return Ok(at);
        }
        data[..8].copy_from_slice(&at.to_le_bytes());
        fs.write(file.ino, at, &data, false)?;
        at += CHUNK as u64;
    }
}
