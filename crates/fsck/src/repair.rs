//! Putting a damaged volume right, as far as what is left of it says how.
//!
//! Repair goes from the logs to the tree, in stages that build on each other. Each looks for itself,
//! with the readers of the checker, and stores only what differs; at the end the checker decides what
//! is left. So a second repair finds nothing to do.
//!
//! A crash at any moment leaves a volume on which the next repair comes to the same end, and that
//! cannot be mounted for writing before then (`words`: the epoch says so from before the first
//! store to the region until all is durable):
//! * what is healed (`heal`) or replaced by a derived value is one store, and stands for itself;
//! * what is given up is evidence for nothing else: once it is gone, the rest looks the same as with
//!   it damaged;
//! * node pages are written to places that the NAT does not name, and switched in steps: what
//!   refers to something comes before it where a dangling reference would be dropped again, and what
//!   is freed goes last (`tree::write`).
//!
//! | module | puts right |
//! |---|---|
//! | `pair` | copies of the configuration table, header of the data device |
//! | `l2plog` | the page-table log: closed, and what was open undone |
//! | `words` | words of the journal superblock |
//! | `nodes` | NAT entries and node pages, one by one |
//! | `lanes` | records; what follows damage is dropped |
//! | `slots` | slot headers, committed words |
//! | `batches` | heads of the batch log |
//! | `tree` | inodes, directories, extents, attributes, links, bitmaps, intents |
//! | `map`, `claims`, `recognize` | page-table entries, content of blocks |
//!
//! `doubt` is about entries that pass their check by chance.
//!
//! `upgrade` uses all of it for what older volumes do not have.

mod batches;
mod claims;
mod doubt;
mod heal;
mod l2plog;
mod lanes;
mod map;
mod nodes;
mod odds;
mod pair;
mod recognize;
mod report;
mod slots;
mod tree;
pub(crate) mod upgrade;
mod words;

use std::path::Path;
use std::sync::Arc;

use quayfs_fs::volume::{Access, SETTLING, Volume, VolumeError};
use quayfs_layout::config::ConfigTable;
use quayfs_shown::progress::{Meter, Unit};

pub use pair::belongs;
pub use report::{Done, Outcome, RepairReport};
pub use upgrade::{Upgraded, upgrade};

use super::media::Media;
use super::{Area, FsckOptions, FsckReport};

/// Passes after which whatever is left is left: each can only bring to light what another one hid.
const PASSES: usize = 3;

/// Why a repair could not be done, or not be finished. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The volume cannot be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The data device fails.
    #[error("data device: {0}")]
    Device(#[from] std::io::Error),
    /// The region cannot be drained.
    #[error(transparent)]
    Pmem(#[from] quayfs_pmem::PmemError),
    /// The page table cannot be changed.
    #[error("page table: {0}")]
    Ppt(#[from] quayfs_ppt::PptError),
    /// There is no room for the new pages.
    #[error("{needed} node pages are needed, {free} are free")]
    Pages {
        /// Pages to be written.
        needed: usize,
        /// Pages that there are.
        free: usize,
    },
}

/// Repairs the volume in directory `dir`, which must not be mounted. The meter says how far that is.
///
/// # Errors
/// [`Failed`]: nothing can be done, or no more. A volume that is still damaged afterwards is not an
/// error but part of the report.
pub fn repair(
    dir: &Path,
    options: &FsckOptions,
    meter: &Arc<Meter>,
) -> Result<RepairReport, Failed> {
    repair_telling(dir, options, meter, &mut |_| ())
}

/// As [`repair`]; `begins` is told what was found, before anything of that is changed.
///
/// # Errors
/// The same.
pub fn repair_telling(
    dir: &Path,
    options: &FsckOptions,
    meter: &Arc<Meter>,
    begins: &mut dyn FnMut(&FsckReport),
) -> Result<RepairReport, Failed> {
    let one_head = batches::one_is_damaged(dir);
    let open = || Volume::open_vouched(dir, Access::ReadWrite, SETTLING, belongs);
    let (mut volume, restored) = match open() {
        Ok(volume) => (volume, false),
        Err(e) => {
            let Some(found) = crate::copy_of_tables(dir, &e, meter)? else {
                return Err(e.into());
            };
            found.restore()?;
            (open()?, true)
        }
    };
    let mut report = repair_opened(&mut volume, options, meter, begins)?;
    if one_head {
        report.done_before(Area::Journal, batches::HEAD_AGAIN);
    }
    if restored {
        let what = "both configuration tables are written again, from the copy on the data device";
        report.done_before(Area::Config, what);
    }
    Ok(report)
}

/// Repairs an opened volume that is not in use.
///
/// # Errors
/// As [`repair`].
pub fn repair_volume(
    volume: &mut Volume,
    options: &FsckOptions,
    meter: &Arc<Meter>,
) -> Result<RepairReport, Failed> {
    repair_opened(volume, options, meter, &mut |_| ())
}

fn repair_opened(
    volume: &mut Volume,
    options: &FsckOptions,
    meter: &Arc<Meter>,
    begins: &mut dyn FnMut(&FsckReport),
) -> Result<RepairReport, Failed> {
    // A daemon or a repair that died may have left stores that were never flushed. They can be read,
    // so everything that follows would build on them, and be wrong once power fails.
    let region = volume.region();
    for part in region.held(0..region.len()) {
        region.flush(part.start, part.end - part.start);
    }
    region.drain()?;
    volume.device().flush()?;
    let before = super::check_copy(volume, options, meter)?;
    let mut report = RepairReport {
        found: before.count(),
        check: before,
        ..RepairReport::default()
    };
    if report.check.is_clean() && report.check.skipped.is_empty() {
        return Ok(report);
    }
    begins(&report.check);
    let mut tables = Repair::of(volume, options, meter);
    let result = tables.config();
    report.take(&mut tables.log);
    result?;
    // A daemon may be left of a mount that was taken away, and would go on with it.
    volume.renew_fencing_token()?;
    for _ in 0..PASSES {
        let mut repair = Repair::of(volume, options, meter);
        let result = repair.pass(&report.check);
        let changed = !repair.log.is_empty();
        report.take(&mut repair.log);
        result?;
        report.check = super::check_copy(volume, options, meter)?;
        if report.check.is_clean() || !changed {
            break;
        }
    }
    report.outcome = match report.check.is_clean() && report.uncertain_blocks == 0 {
        true => Outcome::Repaired,
        false => Outcome::Left,
    };
    if report.check.is_clean()
        && let Err(e) = volume.store_backup()
    {
        let note =
            "the copies of configuration table and superblock on the data device are not written";
        report.notes.push(format!("{note}: {e}"));
    }
    Ok(report)
}

/// One pass over everything.
struct Repair<'v> {
    /// The media themselves: what is stored here is stored for good.
    media: Media,
    config: &'v ConfigTable,
    volume: &'v Volume,
    options: FsckOptions,
    log: report::Journal,
    meter: &'v Meter,
    /// Before recovery all that was digested was at home: a slot that no record names had nothing that counts.
    all_is_retired: bool,
}

impl<'v> Repair<'v> {
    fn of(volume: &'v Volume, options: &FsckOptions, meter: &'v Meter) -> Self {
        Self {
            media: Media::of(volume),
            config: volume.config(),
            volume,
            options: *options,
            log: report::Journal::default(),
            meter,
            all_is_retired: false,
        }
    }
}

impl Repair<'_> {
    fn repairs(&self, what: &str) {
        self.meter
            .begin(format!("repairing: {what}"), 0, Unit::Bytes);
    }

    /// Durable when it returns.
    fn pass(&mut self, found: &FsckReport) -> Result<(), Failed> {
        self.repairs("configuration");
        self.epoch()?;
        self.config()?;
        self.header()?;
        self.batch_log()?;
        if self.all(found)? {
            self.end()?;
            self.batch_heads()?;
        }
        // Of what has been stored last there may be no other drain.
        self.drain()
    }

    /// Whether the pass has come to its end.
    fn all(&mut self, found: &FsckReport) -> Result<bool, Failed> {
        self.repairs("logs");
        self.l2p_log()?;
        self.words()?;
        if only_content(found) {
            // Nothing that the following could change: a recovery begins a new epoch each time.
            self.content_only()?;
            return Ok(true);
        }
        self.repairs("node pages");
        self.nodes()?;
        self.repairs("journal");
        if !self.journal()? {
            return Ok(false);
        }
        self.repairs("tree");
        let media = Media::of(self.volume);
        let tree = self.tree(&media)?;
        self.repairs("blocks");
        self.map(&tree)?;
        self.log.resolve(|ino| tree.path(ino));
        Ok(true)
    }

    /// Makes durable what has been stored.
    #[track_caller]
    fn drain(&self) -> Result<(), Failed> {
        Ok(self.media.region.drain()?)
    }

    /// Stores a word of the region; durable with the next drain. Nearly all that a repair does goes
    /// through here.
    fn put(&mut self, off: u64, word: u64) -> Result<(), Failed> {
        self.begin()?;
        self.media.region.store_u64(off, word);
        self.media.region.flush(off, 8);
        Ok(())
    }

    /// [`Repair::put`] of 4 bytes.
    fn put_u32(&mut self, off: u64, value: u32) -> Result<(), Failed> {
        let shift = off % 8 * 8;
        let word = self.media.region.load_u64(off - off % 8);
        let word = word & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
        self.put(off - off % 8, word)
    }

    /// Heals a checked word in place, which is one store; whether that could be done.
    fn heal_word(&mut self, off: u64, valid: impl Fn(u64) -> bool) -> Result<bool, Failed> {
        match heal::word(self.media.region.load_u64(off), valid) {
            Some(healed) => self.put(off, healed).map(|()| true),
            None => Ok(false),
        }
    }

    /// Heals a structure in place, which is one store; whether that could be done.
    fn heal_bytes(
        &mut self,
        off: u64,
        len: u64,
        valid: impl Fn(&[u8]) -> bool,
    ) -> Result<bool, Failed> {
        let mut content = self.media.region.read_vec(off, len);
        let Some(bit) = heal::bytes(&mut content, valid) else {
            return Ok(false);
        };
        let (word, mask) = heal::mask(off, bit);
        self.put(word, self.media.region.load_u64(word) ^ mask)?;
        Ok(true)
    }
}

/// Whether nothing is wrong but with the content of blocks, or with what has been seen to already.
fn only_content(found: &FsckReport) -> bool {
    let mut areas = found.findings.iter().map(|f| f.area);
    found.skipped.is_empty()
        && found.behind_end == 0
        && areas.all(|a| matches!(a, Area::Content | Area::Config | Area::Device))
}
