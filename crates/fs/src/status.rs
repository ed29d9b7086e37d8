//! What a mount says about itself, and what it can be told to do.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::CapabilitySet;
use serde::Serialize;

use quayfs_layout::BLOCK;

use quayfs_background::trim::{self, Trim};
use quayfs_store::damage::Noted;
use quayfs_store::error::{FsError, Result};
use quayfs_store::metrics::Snapshot;

use crate::scrub;
use crate::standstill::Resized;
use crate::{Asker, Fs};

/// Bytes of findings in one answer; with what is around them below 64 KiB.
const REPORT_ROOM: usize = 48 << 10;

/// State of a mount, as `quayfs info MOUNTPOINT` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Process id of the daemon.
    pub pid: u32,
    /// Version of the program that runs as the daemon, which may have been replaced meanwhile.
    pub version: &'static str,
    /// When this daemon began to serve, in seconds since 1970.
    pub started: u64,
    /// How long it has served, in milliseconds.
    pub uptime_ms: u64,
    /// The file that it logs to.
    pub log: Option<String>,
    /// A part of the volume is being moved to another place, by a process that lives.
    pub moving: bool,
    /// The volume's directory.
    pub volume: String,
    /// Volume UUID.
    pub uuid: String,
    /// Volume label.
    pub label: String,
    /// When the volume was made, in seconds since 1970.
    pub created: u64,
    /// Staging buffers.
    pub buffers: u64,
    /// Inodes that the volume has room for.
    pub inodes: u64,
    /// Backend of the pmem region.
    pub backend: String,
    /// The data device.
    pub device: String,
    /// `op` or `commit`.
    pub durability: String,
    /// Why the mount ends when its daemon dies; `None` if another one goes on.
    pub ends_with_daemon: Option<String>,
    /// How often another daemon has gone on with the mount,
    pub restarts: u64,
    /// and how often of these because that was asked for.
    pub replaced: u64,
    /// How the last daemon before this one ended.
    pub last_death: Option<String>,
    /// How long no request was answered then, in milliseconds.
    pub last_pause_ms: Option<u64>,
    /// What became of another size that this daemon was to give the volume before it began to serve.
    pub last_resize: Option<Resized>,
    /// All options in effect.
    pub options: String,
    /// Those that the volume keeps, which hold where the mount did not say otherwise.
    pub stored_options: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Why that is so, if it was not asked for: a failure, or a medium that is write-protected.
    pub read_only_reason: Option<String>,
    /// A failure has made it read-only: no other daemon goes on with it.
    pub has_failed: bool,
    /// The mount was shut down on purpose: no call is answered any more.
    pub shut_down: bool,
    /// What is staged may stay in the region when the mount ends.
    pub leaves_staged: bool,
    /// How often operations have met damaged metadata.
    pub damage_met: u64,
    /// Damage that a read-only mount has passed over: what is counted is not what there is.
    pub passed_over: Option<String>,
    /// The last things that have gone wrong, the latest one last: the log has them all.
    pub errors: Vec<Noted>,
    /// How long ago the last commit has ended, in milliseconds; none with `durability=op`, or before the first one.
    pub commit_age_ms: Option<u64>,
    /// For how long the data device has answered nothing, though requests are under way, in milliseconds.
    pub device_silent_ms: u64,
    /// Bytes at the end of the data device that are not there any more.
    pub device_missing_bytes: u64,
    /// Bytes that the device or file has to have that the data lie on.
    pub device_needs_bytes: u64,
    /// Bytes at the end of the region that are not there any more: its file was cut short.
    pub region_missing_bytes: u64,
    /// The media whose files have lost their names: what is in them ends with this daemon.
    pub unlinked: Vec<&'static str>,
    /// Bytes of the pmem region.
    pub pmem_bytes: u64,
    /// Bytes of it that lie in memory of the daemon because they were stored to: with a region on a disk.
    pub pmem_memory_bytes: u64,
    /// Blocks that files can own.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Freed blocks that wait for a zeroing pass.
    pub blocks_pending: u64,
    /// Node pages.
    pub node_pages: u64,
    /// Node pages in use or reserved.
    pub node_pages_used: u64,
    /// Inodes in use and still possible.
    pub files: u64,
    /// Inodes that can still be created.
    pub files_free: u64,
    /// Staging slots.
    pub slots: u64,
    /// Staging slots in use.
    pub slots_used: u64,
    /// Blocks whose newest version is staged.
    pub staged_blocks: u64,
    /// Records that recovery would replay.
    pub live_records: u64,
    /// Bytes of log that recovery would read.
    pub live_log_bytes: u64,
    /// Last sequence number, digested, committed, retired.
    pub sequence: [u64; 4],
    /// Inodes in DRAM.
    pub cached_inodes: u64,
    /// Node pages in DRAM.
    pub cached_pages: u64,
    /// The last scrub.
    pub scrub: scrub::Status,
    /// The way that requests come, `dev` or `uring`; the server knows.
    pub transport: &'static str,
    /// Messages of the kernel since the mount, by kind; the server knows.
    pub messages: BTreeMap<&'static str, u64>,
    /// How long requests took, by kind; the server knows.
    pub latencies: BTreeMap<&'static str, Latencies>,
    /// Tasks that make the most requests, and about how many; the server knows.
    pub tasks: BTreeMap<u32, u64>,
    /// Counters since the mount.
    pub counters: Snapshot,
}

/// How long requests of one kind took, from being read by the daemon to the answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latencies {
    /// How many took at most 1024 ns, how many of the others twice that, and so on; the last ones that are not 0.
    pub classes: Vec<u64>,
    /// Nanoseconds that all of them took.
    pub nanos: u64,
}

/// A UUID in its usual spelling.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(uuid).to_string()
}

/// Fails unless the caller has `CAP_SYS_ADMIN` or is the user who runs the daemon: these see and do with it what
/// others may not. If root runs the daemon, there is no such user: root of a container is user 0 too.
pub(super) fn may_manage(by: &dyn Asker) -> Result<()> {
    let me = rustix::process::geteuid();
    let is_owner = !me.is_root() && by.ids().uid == me.as_raw();
    if is_owner || by.has(CapabilitySet::SYS_ADMIN) {
        Ok(())
    } else {
        Err(FsError::Perm)
    }
}

impl Fs {
    /// The state of the mount.
    pub fn status(&self) -> Status {
        let e = &self.e;
        let j = e.journal.stats();
        let s = self.statfs();
        let before = self.volume.predecessor();
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            started: seconds(self.started),
            uptime_ms: self.began.elapsed().as_millis() as u64,
            moving: self.moving.get().is_some_and(|asks| asks()),
            log: self.log.get().map(|path| path.display().to_string()),
            volume: self.volume.path().display().to_string(),
            uuid: uuid_text(e.config.uuid),
            label: e.config.label(),
            created: e.config.created,
            buffers: e.config.geometry.buffers,
            inodes: e.config.geometry.inodes(),
            backend: e.region.backend().to_string(),
            device: e.device.describe(),
            durability: e.durability.to_string(),
            ends_with_daemon: self.why_it_ends_with_daemon(),
            restarts: before.map_or(0, |b| b.deaths + b.replaced),
            replaced: before.map_or(0, |b| b.replaced),
            last_death: before.map(|b| b.cause.clone()),
            last_pause_ms: before.and_then(|b| Some(b.pause.get()?.as_millis() as u64)),
            last_resize: self.last_resize().cloned(),
            options: e.options.to_string(),
            stored_options: e.config.options(),
            read_only: e.is_read_only(),
            read_only_reason: e.failure().or(self.volume.protected()).map(str::to_string),
            has_failed: self.has_failed(),
            shut_down: self.alive().is_err(),
            leaves_staged: self.leaves_staged(),
            damage_met: e.watch().found(),
            passed_over: e.watch().obstacle().map(str::to_string),
            errors: e.watch().noted(),
            commit_age_ms: e.last_commit().map(|age| age.as_millis() as u64),
            device_silent_ms: e.device.silent_for().as_millis() as u64,
            device_missing_bytes: e.device.missing(),
            device_needs_bytes: self.device_needs_bytes(),
            region_missing_bytes: e.region.missing(),
            unlinked: self.unlinked(),
            pmem_bytes: e.region.len(),
            pmem_memory_bytes: e.region.memory_in_use(),
            blocks: s.blocks,
            blocks_free: s.free,
            blocks_pending: e.lbns.pending(),
            node_pages: e.config.geometry.node_pages,
            node_pages_used: e.nodes.live(),
            files: s.files,
            files_free: s.files_free,
            slots: j.slots,
            slots_used: j.slots_used,
            staged_blocks: e.staged.len() as u64,
            live_records: j.log_records_used,
            live_log_bytes: j.log_bytes_used,
            sequence: [j.last_seq, j.digested, j.commit_ts, j.retired],
            cached_inodes: e.inodes.len() as u64,
            cached_pages: e.nodes.cached() as u64,
            scrub: self.scrub.status(),
            transport: "",
            messages: BTreeMap::new(),
            latencies: BTreeMap::new(),
            tasks: BTreeMap::new(),
            counters: self.counters(),
        }
    }

    fn device_needs_bytes(&self) -> u64 {
        let g = &self.e.config.geometry;
        // On one device the data begin behind the region.
        let before = match self.volume.is_one_device() {
            true => g.pmem_len,
            false => 0,
        };
        before + g.data_blocks * BLOCK as u64
    }

    /// The media whose files have lost their names since they were opened.
    pub fn unlinked(&self) -> Vec<&'static str> {
        let media = [
            (crate::volume::PMEM, self.e.region.is_unlinked()),
            (crate::volume::DATA, self.e.device.is_unlinked()),
        ];
        let gone = media.into_iter().filter(|(_, gone)| *gone);
        gone.map(|(name, _)| name).collect()
    }

    fn counters(&self) -> Snapshot {
        let (e, j) = (&self.e, self.e.journal.stats());
        let (blocks_read_ahead, blocks_served_ahead) = e.ahead.counts();
        Snapshot {
            blocks_read_ahead,
            blocks_served_ahead,
            slot_waits: j.slot_waits,
            log_waits: j.log_waits,
            credit_wait_us: j.credit_wait_us,
            credit_retries: j.credit_retries,
            lane_waits: j.lane_waits,
            central_waits: j.central_waits,
            ..e.metrics.snapshot()
        }
    }

    /// Starts or stops a scrub as `text` says ([`scrub::Command`]).
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon, [`FsError::Invalid`],
    /// [`FsError::Busy`].
    pub fn scrub_command(&self, caller: impl Asker, text: &[u8]) -> Result<()> {
        may_manage(&caller)?;
        let text = std::str::from_utf8(text).map_err(|_| FsError::Invalid)?;
        match text.parse()? {
            scrub::Command::Start(options) => self.scrub.start(&self.e, options).map(drop),
            scrub::Command::Stop => {
                self.scrub.stop();
                Ok(())
            }
        }
    }

    /// Discards free blocks and says how many bytes ([`trim::trim`]).
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon, [`FsError::Invalid`] for a range
    /// that is none, [`FsError::ReadOnly`].
    pub fn trim(&self, caller: impl Asker, what: Trim) -> Result<u64> {
        may_manage(&caller)?;
        trim::trim(&self.e, what)
    }

    /// Whether a caller may see what others do with the mount.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon.
    pub fn may_watch(&self, caller: impl Asker) -> Result<()> {
        may_manage(&caller)
    }

    /// The last scrub with its findings from number `from` on, as JSON of at most the size that an
    /// extended attribute can have.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon: findings name files that
    /// others may not be allowed to see.
    pub fn scrub_report(&self, caller: impl Asker, from: usize) -> Result<Vec<u8>> {
        may_manage(&caller)?;
        serde_json::to_vec(&self.scrub.report(from, REPORT_ROOM)).map_err(FsError::internal)
    }
}

/// Since 1970.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
