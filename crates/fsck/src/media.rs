//! The media as they are, and recovery on a private copy.

use quayfs_shown::count;
use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_fs::recovery::{self, batch_log, journal_geometry, ppt_geometry};
use quayfs_fs::volume::Volume;
use quayfs_journal::{Damage, Journal, JournalError, LiveSlot, Scan};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader, FEATURE_RESIZED};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::jsb::{Closed, WordKind};
use quayfs_options::MountOptions;
use quayfs_pmem::Region;
use quayfs_ppt::Ppt;
use quayfs_store::ns::dir::NameHash;

use super::{Area, Check, logs};

/// What is checked: a private copy of the region, and the device.
pub(super) struct Media {
    pub(super) region: Arc<Region>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) geo: Geometry,
    /// Whether the data device has had another length.
    pub(super) resized: bool,
    pub(super) salt: u64,
    pub(super) hash: NameHash,
    /// Whether users and groups are counted.
    pub(super) owners: bool,
}

/// What recovery has left.
pub(super) struct Recovered {
    /// Why not everything could be replayed.
    pub(super) incomplete: Option<String>,
    /// Highest sequence number there can be.
    pub(super) last_seq: u64,
    pub(super) live: Vec<LiveSlot>,
}

impl Media {
    pub(super) fn of(volume: &Volume) -> Self {
        let config = volume.config();
        Self {
            region: Arc::clone(volume.region()),
            device: Arc::clone(volume.device()),
            geo: config.geometry,
            resized: config.compat[2] & FEATURE_RESIZED != 0,
            salt: config.salt(),
            hash: NameHash(config.hash_key),
            owners: config.counts_owners(),
        }
    }

    /// Both copies of the configuration table are intact and equal. A change that a crash interrupted before it counted
    /// has left its copy behind, and the next mount takes that back.
    pub(super) fn config(&self, c: &mut Check) {
        let copies = COPIES.map(|off| self.region.read_vec(off, BLOCK as u64));
        for (i, copy) in copies.iter().enumerate() {
            if let Err(e) = ConfigTable::decode(copy) {
                c.findings.warning(
                    Area::Config,
                    format_args!("copy {i} of the configuration table: {e}; the other one is used"),
                );
            }
        }
        let [Ok(first), Ok(second)] =
            [&copies[0], &copies[1]].map(|copy| ConfigTable::decode(copy))
        else {
            return;
        };
        let is_begun = second.uuid == first.uuid && second.changes == first.changes.wrapping_add(1);
        if copies[0] != copies[1] && !is_begun {
            let what = "the two copies of the configuration table differ; copy 0 is used";
            c.findings.error(Area::Config, what);
        }
    }

    /// The header of the data device; that it belongs to this region has been checked before.
    pub(super) fn header(&self, c: &mut Check) {
        let mut block = vec![0; BLOCK];
        if let Err(e) = self.device.read(0, &mut block) {
            c.findings.error(Area::Device, format_args!("block 0: {e}"));
            return;
        }
        match DataHeader::decode(&block) {
            // Of a volume that was resized it still says what mkfs has found.
            Ok(h) if h.blocks == self.geo.data_blocks || self.resized => {}
            Ok(h) => c.findings.error(
                Area::Device,
                format_args!(
                    "the header says {} blocks, the configuration table says {}",
                    h.blocks, self.geo.data_blocks
                ),
            ),
            Err(e) => c.findings.error(Area::Device, format_args!("header: {e}")),
        }
    }

    /// The heads of the batch log, which has been replayed if they are there.
    pub(super) fn batch_log(&self, c: &mut Check) {
        let Some(log) = batch_log(&self.geo, self.salt) else {
            return;
        };
        match self.region.intact_batch_heads(&log) {
            0 => c.findings.error(
                Area::Journal,
                "both heads of the batch log are damaged; what only the log had of the last commits, if anything, is missing",
            ),
            1 => c.findings.warning(
                Area::Journal,
                "a head of the batch log is damaged; the other one is used",
            ),
            _ => {}
        }
    }

    /// Opens the page table; an unfinished transaction is undone.
    pub(super) fn page_table(
        &self,
    ) -> Result<(Ppt, quayfs_ppt::AttachReport), quayfs_ppt::PptError> {
        Ppt::attach(Arc::clone(&self.region), ppt_geometry(&self.geo, self.salt))
    }

    fn scan(&self) -> Result<Scan, JournalError> {
        Journal::scan(
            Arc::clone(&self.region),
            &journal_geometry(&self.geo, self.salt),
        )
    }

    /// Reports damage in the logs, then recovers.
    pub(super) fn recover(&self, volume: &Volume, c: &mut Check) -> Recovered {
        // Attaching and recovery write some of it again.
        logs::l2p_log(self, c);
        match self.page_table() {
            Ok((_, report)) => {
                c.report.statistics.undone_entries = report.undone;
                if let Some(d) = report.damage {
                    let what = format_args!("the log: {d}; the next mount repairs it");
                    c.findings.warning(Area::PageTable, what);
                }
            }
            Err(e) => c.findings.error(Area::PageTable, e),
        }
        // After the undo, which restores `retired_seq`.
        let damaged = match self.scan() {
            Ok(scan) => {
                journal(&scan, c);
                logs::vouched_slots(self, &scan, c);
                !scan.damage.is_empty()
            }
            Err(e) => {
                c.findings.error(Area::Journal, e);
                true
            }
        };
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let lost = logs::lost_entries(self);
        let mounted = recovery::recover_telling(volume, &options, &mut |what| {
            c.findings.error(Area::Recovery, what);
        });
        // Those that are still damaged are found with the rest.
        let still = logs::lost_entries(self);
        for id in lost.iter().flat_map(|r| still.gaps(r)).flatten() {
            let what =
                format_args!("the entry of node {id} is damaged; a record makes the node anew");
            c.findings.error(Area::Nat, what);
        }
        if let Err(e) = &mounted {
            c.report.is_unmountable = true;
            let what = format_args!("the volume cannot be mounted: {e}");
            c.findings.error(Area::Recovery, what);
        }
        match self.scan() {
            Ok(scan) => recovered(scan, !damaged && mounted.is_ok(), c),
            // Reported above.
            Err(_) => Recovered {
                incomplete: Some("the journal cannot be read".into()),
                last_seq: u64::MAX,
                live: Vec::new(),
            },
        }
    }
}

/// The journal as the media have it.
fn journal(scan: &Scan, c: &mut Check) {
    let s = &mut c.report.statistics;
    s.clean = scan.closed.is_clean();
    s.epoch = scan.epoch;
    (s.digested, s.retired, s.commit_ts) = (scan.digested, scan.retired, scan.commit_ts);
    s.live_records = scan.records.len() as u64;
    for d in &scan.damage {
        match d {
            // It only says whether the mount ended well.
            Damage::Word(WordKind::Clean) => c.findings.warning(Area::Journal, d),
            // Each of them is one, said in one line.
            Damage::Unwritten { count, .. } => {
                c.findings.error(Area::Journal, d);
                c.findings.more(count - 1);
            }
            _ => c.findings.error(Area::Journal, d),
        }
    }
    // A round retires what is digested. (That digested_seq <= `commit_ts` in mode `commit` need not hold on
    // the media: a crash at the end of recovery leaves digested_seq at the highest number seen.)
    if scan.retired > scan.digested {
        let what = format_args!(
            "slots up to {} are retired, but records only up to {} are digested",
            scan.retired, scan.digested
        );
        c.findings.error(Area::Journal, what);
    }
    if scan.repairing {
        let what = "a repair was interrupted and has to be run again";
        c.findings.error(Area::Journal, what);
    }
    let (records, slots) = (scan.records.len() as u64, scan.live.len() as u64);
    let what = match scan.closed {
        Closed::Empty if records + slots > 0 => format!(
            "marked as unmounted cleanly, but {} and {} are live",
            count(records, "record"),
            count(slots, "slot")
        ),
        Closed::Staged if records > 0 => format!(
            "marked as unmounted with nothing to replay, but {} are live",
            count(records, "record")
        ),
        _ => return,
    };
    c.findings.error(Area::Journal, what);
}

/// The journal as recovery has left it: complete, if it was `sound` before and recovery succeeded.
fn recovered(scan: Scan, sound: bool, c: &mut Check) -> Recovered {
    c.report.statistics.live_slots = scan.live.len() as u64;
    if sound {
        for d in &scan.damage {
            c.findings
                .error(Area::Recovery, format_args!("it leaves damage: {d}"));
        }
        let orderly = scan.retired <= scan.digested && scan.digested == scan.commit_ts;
        if !orderly || !scan.records.is_empty() {
            let what = format_args!(
                "it leaves digested {}, committed {}, retired {} and {}",
                scan.digested,
                scan.commit_ts,
                scan.retired,
                count(scan.records.len() as u64, "record")
            );
            c.findings.error(Area::Recovery, what);
        }
    }
    let left = scan.records.len();
    Recovered {
        incomplete: (left > 0)
            .then(|| format!("{} could not be replayed", count(left as u64, "record"))),
        last_seq: scan.max_seq_seen,
        live: scan.live,
    }
}
