//! How long recovery takes: by what is staged, by the number of files, by the size of the data device.

use quayfs_fs::{Caller, Fs};
use quayfs_store::error::FsError;

use super::table::{Variant, on_pmem};
use super::volume::{Fresh, Site};
use quayfs_bench::stats::Summary;
use quayfs_bench::{Error, Result};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of a write.
const CHUNK: usize = 64 << 10;
/// Parts of the staging slots that are in use when the file system dies, in percent.
const FULL: [u64; 4] = [10, 30, 60, 90];
/// Bytes that are staged when it dies in the other rows, half of what there is room for at most.
const STAGED: u64 = 16 << 20;
/// Files of a directory.
const PER_DIRECTORY: u64 = 10_000;
/// Bytes of the region for each file, and for each block of the data device: more than there have to be.
const PER_FILE: u64 = 768;
const PER_BLOCK: u64 = 20;
/// Every operation is durable, so all of them are there afterwards.
const OPTIONS: &str = "durability=op,data=journal";

/// A volume that died, and how long it took to recover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// What is different from the row before: a word for each series.
    #[serde(default)]
    pub by: By,
    /// Files that there were, beside the one that was being written.
    #[serde(default)]
    pub files: u64,
    /// Bytes of the data device.
    #[serde(default)]
    pub data_bytes: u64,
    /// Bytes of the region.
    #[serde(default)]
    pub pmem_bytes: u64,
    /// Bytes staged when the file system died.
    pub staged_bytes: u64,
    /// Bytes that can be staged.
    pub staging_bytes: u64,
    /// Records that were replayed.
    pub records: u64,
    /// Seconds from opening the volume to the first answer.
    pub recovery_s: Option<Summary>,
    /// Seconds that it then took to write all of it to the device. A journal that is replayed there has to do this
    /// before any request is answered.
    pub write_back_s: Option<Summary>,
}

/// What a series of recoveries differs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Bytes staged.
    #[default]
    Staged,
    /// Number of files.
    Files,
    /// Bytes of the data device.
    Data,
}

/// What is measured beside the amounts of staged data.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    /// Numbers of files.
    pub files: Vec<u64>,
    /// Bytes of sparse data devices.
    pub data: Vec<u64>,
}

/// A kind of volume.
#[derive(Clone, Copy)]
struct Kind {
    by: By,
    files: u64,
    data_bytes: u64,
    pmem_bytes: u64,
    until: Until,
}

/// How much is staged when the file system dies.
#[derive(Clone, Copy)]
enum Until {
    Percent(u64),
    Bytes(u64),
}

/// Measures each volume `repeat` times; what was found before an error is in `found`.
///
/// # Errors
/// What the file system said; [`Error::Stopped`].
pub fn measure(
    site: &Site,
    sizes: &Sizes,
    repeat: u32,
    stop: &AtomicBool,
    found: &mut Vec<Recovery>,
) -> Result<()> {
    let plain = Kind {
        by: By::Staged,
        files: 0,
        data_bytes: site.data_size,
        pmem_bytes: site.pmem_size,
        until: Until::Bytes(STAGED),
    };
    let staged = FULL.map(|percent| Kind {
        until: Until::Percent(percent),
        ..plain
    });
    let files = sizes.files.iter().map(|&files| Kind {
        by: By::Files,
        files,
        pmem_bytes: site.pmem_size + files * PER_FILE,
        ..plain
    });
    let data = sizes.data.iter().map(|&data_bytes| Kind {
        by: By::Data,
        data_bytes,
        pmem_bytes: site.pmem_size + data_bytes / BLOCK as u64 * PER_BLOCK,
        ..plain
    });
    for kind in staged.into_iter().chain(files).chain(data) {
        found.push(one(site, kind, repeat, stop)?);
    }
    Ok(())
}

/// A volume that dies `repeat` times.
fn one(site: &Site, kind: Kind, repeat: u32, stop: &AtomicBool) -> Result<Recovery> {
    const ON_PMEM: Variant = on_pmem("recovery", OPTIONS);
    let fresh = site.sparse(&ON_PMEM, kind.pmem_bytes, kind.data_bytes)?;
    populate(&fresh, kind.files, stop)?;
    let (mut recovery, mut write_back) = (Vec::new(), Vec::new());
    let mut last = None;
    for death in 0..repeat {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let one = die_and_recover(&fresh, kind.until, death)?;
        recovery.push(one.recovery);
        write_back.push(one.write_back);
        last = Some(one);
    }
    // The caller wants at least one.
    let last = last.ok_or(Error::Stopped)?;
    Ok(Recovery {
        by: kind.by,
        files: kind.files,
        data_bytes: kind.data_bytes,
        pmem_bytes: kind.pmem_bytes,
        staged_bytes: last.staged_bytes,
        staging_bytes: last.staging_bytes,
        records: last.records,
        recovery_s: Summary::of(recovery),
        write_back_s: Summary::of(write_back),
    })
}

struct Once {
    staged_bytes: u64,
    staging_bytes: u64,
    records: u64,
    recovery: f64,
    write_back: f64,
}

fn failed(fresh: &Fresh) -> impl Fn(FsError) -> Error {
    |e| Error::File {
        path: fresh.path().into(),
        source: std::io::Error::other(e.to_string()),
    }
}

fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    }
}

/// Makes so many empty files.
fn populate(fresh: &Fresh, files: u64, stop: &AtomicBool) -> Result<()> {
    if files == 0 {
        return Ok(());
    }
    let failed = failed(fresh);
    let (fs, by) = (fresh.open(OPTIONS)?, caller());
    let mut directory = ROOT;
    for n in 0..files {
        if n % PER_DIRECTORY == 0 {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let name = format!("d{}", n / PER_DIRECTORY);
            let made = fs.mkdir(by, ROOT, name.as_bytes(), 0o755);
            directory = made.map_err(&failed)?.ino;
        }
        let name = format!("f{n}");
        let made = fs.mknod(by, directory, name.as_bytes(), S_IFREG | 0o644, 0);
        fs.forget(made.map_err(&failed)?.ino, 1);
    }
    fs.shutdown().map_err(failed)
}

fn die_and_recover(fresh: &Fresh, until: Until, death: u32) -> Result<Once> {
    let failed = failed(fresh);
    let name = format!("file{death}");
    // Nothing digests or writes back what is staged.
    let fs = fresh.open_quiet(OPTIONS)?;
    let size = fill(&fs, name.as_bytes(), until).map_err(&failed)?;
    let before = fs.e.journal.stats();
    fs.abandon();
    drop(fs);

    let began = Instant::now();
    let fs = fresh.open(OPTIONS)?;
    let found = fs.lookup(ROOT, name.as_bytes()).map_err(&failed)?;
    let recovery = began.elapsed().as_secs_f64();
    if found.inode.size != size {
        return Err(failed(FsError::internal("recovery lost an operation")));
    }
    fs.forget(found.ino, 1);
    let records = fs.e.metrics.records_replayed.load(Ordering::Relaxed);
    let began = Instant::now();
    fs.shutdown().map_err(failed)?;
    Ok(Once {
        staged_bytes: before.slots_used * BLOCK as u64,
        staging_bytes: before.slots * BLOCK as u64,
        records,
        recovery,
        write_back: began.elapsed().as_secs_f64(),
    })
}

/// Writes a file until so much is staged, and says how long it is.
fn fill(fs: &Fs, name: &[u8], until: Until) -> Result<u64, FsError> {
    let file = fs.mknod(caller(), ROOT, name, S_IFREG | 0o644, 0)?;
    let mut data = vec![7; CHUNK];
    let mut at = 0;
    loop {
        let stats = fs.e.journal.stats();
        let enough = match until {
            Until::Percent(percent) => stats.slots_used * 100 >= stats.slots * percent,
            Until::Bytes(bytes) => stats.slots_used >= (bytes / BLOCK as u64).min(stats.slots / 2),
        };
        if enough {
            fs.forget(file.ino, 1);
            return Ok(at);
        }
        data[..8].copy_from_slice(&at.to_le_bytes());
        fs.write(file.ino, at, &data, false)?;
        at += CHUNK as u64;
    }
}
