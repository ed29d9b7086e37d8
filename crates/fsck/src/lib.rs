//! The checker: proves that a volume is what it should be, or names what is not.
//!
//! What the media hold is checked first as it is: configuration, pairing, journal, page-table log. Then
//! recovery runs on a private copy of the region in memory, as it would at the next mount, and
//! everything else is checked on its result. Nothing is ever written to the media; that is for
//! [`repair`], which builds on the same readers and is judged by this check.
//!
//! A crash alone never leaves a finding (but for blocks written with `data=writeback`, which a
//! power failure may lose, and which [`FsckOptions::check_data`] then reports); whatever is found
//! is damage or a bug. A finding that
//! follows from another one is left out where that can be told: what cannot be compared because
//! part of it is unreadable is listed in [`FsckReport::skipped`] instead.
//!
//! | module | checks |
//! |---|---|
//! | `media` | configuration copies, data header, journal, page-table log, recovery |
//! | `logs` | spare copies in the logs, slots that a record vouches for |
//! | `pages` | NAT, node pages |
//! | `bitmaps` | counters; bits against what exists |
//! | `table` | free and live inode images |
//! | `intents` | orphans and unfinished truncates |
//! | `inodes` | one inode with all it owns: `extents`, `blobs`, `dirs` |
//! | `quotas` | what projects, users and groups have |
//! | `links` | link counts, parents, reachability |
//! | `blocks` | the permutation, staged blocks, content |
//! | `damaged` | which files have lost something, and what they are called |
//!
//! [`dump`] shows what the structures hold, and judges nothing.

mod bitmaps;
mod bitset;
mod blobs;
mod blocks;
mod damaged;
mod dirs;
pub mod dump;
mod extents;
mod inodes;
mod intents;
mod links;
mod logs;
mod media;
mod owners;
mod pages;
mod quotas;
pub mod repair;
mod report;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use damaged::DamagedFile;
pub use report::{Area, Finding, FsckReport, KEPT, Severity, Statistics};

use bitmaps::Bitmaps;
use blocks::Blocks;
use inodes::Inodes;
use links::Links;
use media::Media;
use owners::Owners;
use pages::Pages;
use quayfs_fs::volume::{Access, Beheaded, SETTLING, Volume, VolumeError, beheaded};
use quayfs_shown::progress::{Meter, Unit};
use report::Findings;
use table::Table;

/// What to check beyond the structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Read every block of every file from the data device and verify its checksum. Without it
    /// only staged blocks are read.
    pub check_data: bool,
}

/// Checks the volume in directory `dir`, which must not be mounted.
///
/// # Errors
/// As [`Volume::open`]. Damage is part of the report and not an error.
pub fn check(dir: &Path, options: &FsckOptions) -> Result<FsckReport, VolumeError> {
    check_measured(dir, options, &Arc::default())
}

/// As [`check`], and the meter says how far that is.
///
/// # Errors
/// As there; [`VolumeError::Beheaded`].
pub fn check_measured(
    dir: &Path,
    options: &FsckOptions,
    meter: &Arc<Meter>,
) -> Result<FsckReport, VolumeError> {
    meter.begin("reading the region", 0, Unit::Bytes);
    // Opened so, the region is a private copy already.
    let volume = Volume::open_vouched(dir, Access::ReadOnly, SETTLING, repair::belongs);
    let volume = volume.or_else(|e| match copy_of_tables(dir, &e, meter)? {
        Some(_) => Err(VolumeError::Beheaded(dir.into())),
        None => Err(e),
    })?;
    Ok(run(&volume, options, meter))
}

/// The copy of the configuration table of a volume that could not be opened, if that is what it has lost.
///
/// # Errors
/// It is, and what to do about it cannot be told.
fn copy_of_tables(
    dir: &Path,
    e: &VolumeError,
    meter: &Meter,
) -> Result<Option<Beheaded>, VolumeError> {
    match e {
        VolumeError::Config { .. } | VolumeError::Unreachable { .. } => {
            beheaded(dir, meter).or_else(|why| match why {
                // What has been said of it says more.
                VolumeError::Device(_) => Ok(None),
                why => Err(why),
            })
        }
        _ => Ok(None),
    }
}

/// Checks an opened volume that is not in use: a crash image, a volume in memory. Its region is
/// copied first and stays as it is, whatever access it was opened for.
///
/// # Errors
/// As [`Volume::from_parts`].
pub fn check_volume(volume: Volume, options: &FsckOptions) -> Result<FsckReport, VolumeError> {
    check_copy(&volume, options, &Arc::default())
}

/// Checks a private copy of an opened volume.
fn check_copy(
    volume: &Volume,
    options: &FsckOptions,
    meter: &Arc<Meter>,
) -> Result<FsckReport, VolumeError> {
    let copy = Arc::new(volume.region().load()?);
    let device = Arc::clone(volume.device());
    let copy = Volume::from_parts_vouched(copy, device, Access::ReadOnly, repair::belongs)?;
    let mut report = run(&copy, options, meter);
    report.volume = volume.path().display().to_string();
    Ok(report)
}

/// Checks a volume whose region is a private copy.
fn run(volume: &Volume, options: &FsckOptions, meter: &Arc<Meter>) -> FsckReport {
    let mut check = Check {
        report: FsckReport {
            volume: volume.path().display().to_string(),
            uuid: quayfs_fs::uuid_text(volume.config().uuid),
            ..FsckReport::default()
        },
        findings: Findings::default(),
        options: *options,
        meter: Arc::clone(meter),
    };
    check.all(volume);
    (check.report.findings, check.report.unlisted) = check.findings.finish();
    check.report
}

/// What all modules add to.
struct Check {
    report: FsckReport,
    findings: Findings,
    options: FsckOptions,
    /// How far it is.
    meter: Arc<Meter>,
}

impl Check {
    fn all(&mut self, volume: &Volume) {
        self.meter.begin("recovering a copy", 0, Unit::Bytes);
        let media = Media::of(volume);
        media.config(self);
        media.header(self);
        media.batch_log(self);
        let recovered = media.recover(volume, self);
        let pages = Pages::load(&media, recovered.last_seq, self);
        if let Some(why) = recovered.incomplete {
            self.skip(format_args!("everything but node pages: {why}"));
            return;
        }
        let bitmaps = Bitmaps::load(&pages, self);
        let mut table = Table::load(&pages, self);
        intents::check(&pages, &mut table, self);
        let mut blocks = Blocks::load(&media, recovered.live, self);
        let mut owners = Owners::new(&media.geo, table.is_complete());
        let mut links = Links::default();
        Inodes {
            pages: &pages,
            table: &mut table,
            owners: &mut owners,
            links: &mut links,
            blocks: &mut blocks,
            check: self,
        }
        .all();
        quotas::check(&pages, &table, self);
        links.check(&table, owners.gaps.links, self);
        bitmaps.compare(&pages, &table, &owners, self);
        owners.unreached(&pages, self);
        owners.doubled(&pages, &table, self);
        blocks.check(&owners, self);
        blocks.finish(&pages, &table, self);
    }

    fn skip(&mut self, what: impl std::fmt::Display) {
        self.report.skipped.push(what.to_string());
    }
}
