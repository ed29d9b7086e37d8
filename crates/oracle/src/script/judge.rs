//! What is right after a crash of a [`Script`].

use std::ops::RangeInclusive;
use std::sync::Arc;

use quayfs_background::{checkpoint, digest};
use quayfs_crashsim::{Budget, CrashImage, Recorder, Trace};
use quayfs_fs::recovery::{MountError, journal_geometry};
use quayfs_fs::{Caller, Fs};
use quayfs_journal::Journal;
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::l2p::{COMMIT_AT, START_AT};
use quayfs_layout::quota::Limits;
use quayfs_layout::slot::SLOT_HEADER_BYTES;
use quayfs_options::DataMode;
use quayfs_ppt::{Damage, PptError};

use super::{ACKNOWLEDGED, ENDED, Script};
use crate::crash::{Depth, Run};
use crate::dump::{self, Tree, difference};
use crate::model::Model;
use crate::quota;
use crate::rng::bytes;
use crate::{Media, account};

impl Script {
    /// Which states a crash with these marks may leave.
    fn allowed(&self, marks: &[u64]) -> RangeInclusive<usize> {
        let most = |ack: bool| {
            let of = marks.iter().filter(|m| **m < ENDED);
            let of = of.filter(|m| (**m & ACKNOWLEDGED != 0) == ack);
            of.map(|m| m & !ACKNOWLEDGED).max().unwrap_or(0) as usize
        };
        most(true)..=most(false).max(most(true)).min(self.states.len() - 1)
    }

    /// Mounts and finds out which state the tree is.
    fn recover(
        &self,
        media: &Media,
        allowed: RangeInclusive<usize>,
    ) -> Result<(Arc<Fs>, usize), String> {
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let durable = *allowed.start();
        let found = self.compare(&fs, allowed, durable)?;
        Ok((fs, found))
    }

    /// Finds out which state the tree is. What was there in the state `durable` must not be lost.
    fn compare(
        &self,
        fs: &Fs,
        allowed: RangeInclusive<usize>,
        durable: usize,
    ) -> Result<usize, String> {
        let tree = self.read(fs);
        let tree = tree.map_err(|e| format!("the tree cannot be read: {e}"))?;
        quota::check(fs, &tree)?;
        let limits = quota::limits(fs);
        let durable = &self.states[durable].tree;
        let mut why = Vec::new();
        // A later state is likelier: what was begun mostly arrived.
        for k in allowed.clone().rev() {
            let state = &self.states[k];
            match difference(&tree, &state.tree) {
                None if limits != state.limits => why.push(format!(
                    "state {k}: limits are {limits:?}, should be {:?}",
                    state.limits
                )),
                None => match dump::lost_for_good(&tree, &state.tree, durable) {
                    None => return Ok(k),
                    Some(lost) => why.push(format!("state {k}: {lost}")),
                },
                Some(d) => why.push(format!("state {k}: {d}")),
            }
        }
        let other = (0..self.states.len()).find(|k| {
            let state = &self.states[*k];
            limits == state.limits && difference(&tree, &state.tree).is_none()
        });
        Err(format!(
            "none of the states {allowed:?}, but {other:?}:\n{}",
            why.join("\n")
        ))
    }

    /// Uses a recovered volume for everything once, and mounts it again.
    fn used(&self, media: &Media, fs: Arc<Fs>, found: usize) -> Result<(), String> {
        let step = |what: &'static str| move |e| format!("after recovery, {what}: {e}");
        let me = Caller::default();
        // Whatever there is of limits, there is to be room.
        let limits = &self.states[found].limits;
        for subject in limits.keys() {
            let none = quota::all_of(*subject, &Limits::default());
            fs.set_quota(me, none).map_err(step("lifting limits"))?;
        }
        let content = bytes(99, 2 * BLOCK + 100);
        let file = fs
            .mknod(me, ROOT, b"after", S_IFREG, 0)
            .map_err(step("mknod"))?
            .ino;
        let get = |fs: &Fs, ino| -> Result<(), String> {
            let got = fs.read(ino, 0, 3 * BLOCK).map_err(step("read"))?;
            if got == content {
                Ok(())
            } else {
                Err("what was written after recovery is gone".into())
            }
        };
        fs.write(file, 0, &content, false).map_err(step("write"))?;
        get(&fs, file)?;
        fs.sync_all().map_err(step("sync"))?;
        digest::digest_all(&fs.e).map_err(step("digest"))?;
        checkpoint::round(&fs.e).map_err(step("round"))?;
        checkpoint::zero_freed(&fs.e).map_err(step("zeroing pass"))?;
        get(&fs, file)?;
        fs.abandon();
        drop(fs);
        media.fsck_with(!self.lossy())?;
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let file = fs.lookup(ROOT, b"after").map_err(step("lookup"))?.ino;
        get(&fs, file)?;
        fs.unlink(ROOT, b"after").map_err(step("unlink"))?;
        fs.forget(file, 1);
        for (subject, limits) in limits {
            let again = quota::all_of(*subject, limits);
            fs.set_quota(me, again).map_err(step("setting limits"))?;
        }
        let tree = self.read(&fs).map_err(step("reading the tree"))?;
        if let Some(d) = difference(&tree, &self.states[found].tree) {
            return Err(format!("after use: {d}"));
        }
        if quota::limits(&fs) != *limits {
            return Err(format!("after use: limits are not {limits:?}"));
        }
        account::finish_background(&fs);
        account::check(&fs, &files(&tree))?;
        fs.shutdown().map_err(step("shutdown"))?;
        media.fsck_with(!self.lossy())
    }

    /// Whether a power failure may take data that was not synced (`data=writeback`).
    pub(super) fn lossy(&self) -> bool {
        self.options.data == DataMode::Writeback
    }

    fn read(&self, fs: &Fs) -> quayfs_store::error::Result<Tree> {
        match self.lossy() {
            true => dump::dump_readable(fs, ROOT),
            false => dump::dump(fs, ROOT),
        }
    }

    /// Crashes during recovery, which finds the same state again.
    fn crash_again(&self, image: &CrashImage) -> Result<(), String> {
        let recovery = self.recorded(image, false)?;
        let depth = Depth {
            budget: Budget {
                exhaustive: 6,
                picks: 2,
                random: 2,
                seed: 1,
            },
            fsck: 23,
            ..Depth::USUAL
        };
        for (n, second) in recovery.trace().explore(&depth.budget).enumerate() {
            recovery
                .judge(&second, n as u64, &depth)
                .map_err(|e| format!("{e}\nin recovery, {second}"))?;
        }
        Ok(())
    }

    /// Where the header of a slot is that a record vouches for, if there is one.
    fn vouched(&self, image: &CrashImage) -> Option<u64> {
        let config = &self.fs.e.config;
        let geometry = journal_geometry(&config.geometry, config.salt());
        let scan = Journal::scan(Arc::new(image.region()), &geometry).ok()?;
        let run = scan.records.iter().flat_map(|r| &r.runs).next()?;
        let slot = run.pos % geometry.slots_per_buffer;
        let slots = u64::from(run.buffer) * geometry.slots_per_buffer + slot;
        Some(geometry.slot_hdr_off + slots * SLOT_HEADER_BYTES as u64)
    }

    fn recorded(&self, image: &CrashImage, rotten: bool) -> Result<Recovery<'_>, String> {
        let recorder = image.restart();
        let media = Media {
            region: recorder.region(),
            device: recorder.device(),
        };
        let (_, found) = self.recover(&media, self.allowed(image.acked()))?;
        Ok(Recovery {
            name: format!("{}, recovery after {} events", self.name, image.point()),
            script: self,
            recorder,
            found,
            durable: *self.allowed(image.acked()).start(),
            rotten,
        })
    }

    /// A bit is flipped in one of the words of which there is another copy. Nothing is lost by it; but
    /// a commit word that is gone in the middle of a transaction may be refused.
    fn rotten(&self, image: &CrashImage, n: u64) -> Result<(), String> {
        let media = media_of(image);
        let log = self.fs.e.config.geometry.l2p_log_off;
        let at = log + [COMMIT_AT, START_AT[0], START_AT[1]][n as usize % 3];
        let bit = 1 << (n / 3 % 64);
        media.region.store_u64(at, media.region.load_u64(at) ^ bit);
        let told = |e| format!("with bit {bit:#x} of the word at {at:#x} flipped: {e}");
        match Fs::mount_quiet(media.volume(), &self.options) {
            Ok(fs) => self
                .compare(
                    &fs,
                    self.allowed(image.acked()),
                    *self.allowed(image.acked()).start(),
                )
                .map(|_| ())
                .map_err(told),
            Err(MountError::Ppt(PptError::Log(Damage::CommitWord))) if !has_ended(image) => Ok(()),
            Err(e) => Err(told(e.to_string())),
        }
    }

    /// Whether the volume has to say that it was unmounted cleanly, and does.
    fn ended(&self, image: &CrashImage, media: &Media) -> Result<(), String> {
        if !has_ended(image) {
            return Ok(());
        }
        let config = &self.fs.e.config;
        let geometry = journal_geometry(&config.geometry, config.salt());
        let scan =
            Journal::scan(Arc::clone(&media.region), &geometry).map_err(|e| e.to_string())?;
        match scan.closed.is_clean() {
            true => Ok(()),
            false => Err("the mount has ended, but the volume is not marked so".into()),
        }
    }
}

impl Run for Script {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn recoveries(&self, image: &CrashImage) -> Result<Vec<Box<dyn Run + '_>>, String> {
        let mut all: Vec<Box<dyn Run + '_>> = vec![Box::new(self.recorded(image, false)?)];
        if let Some(off) = self.vouched(image) {
            // A bit of the header's checksum of the block: the record says it as well.
            let mut rotten = image.clone();
            let bit = image.region().load_u32(off + 28) ^ 1;
            rotten.overwrite_pmem(off + 28, &bit.to_le_bytes());
            all.push(Box::new(self.recorded(&rotten, true)?));
        }
        Ok(all)
    }

    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = media_of(image);
        if n.is_multiple_of(depth.fsck) {
            media.fsck_with(!self.lossy())?;
        }
        match has_ended(image) {
            true => self.rotten(image, 3 * n)?,
            false if n.is_multiple_of(depth.rot) => self.rotten(image, n / depth.rot)?,
            false => {}
        }
        self.ended(image, &media)?;
        let (fs, found) = self.recover(&media, self.allowed(image.acked()))?;
        if n.is_multiple_of(depth.used) {
            self.used(&media, fs, found)?;
        }
        if n.is_multiple_of(depth.again) {
            self.crash_again(image)?;
        }
        Ok(self.hashes[found])
    }
}

/// A recovery that was recorded.
struct Recovery<'a> {
    name: String,
    script: &'a Script,
    recorder: Recorder,
    found: usize,
    durable: usize,
    /// Something was damaged before, which the checker may still find.
    rotten: bool,
}

impl Run for Recovery<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = media_of(image);
        if n.is_multiple_of(depth.fsck) && !self.rotten {
            media.fsck_with(!self.script.lossy())?;
        }
        let fs =
            Fs::mount_quiet(media.volume(), &self.script.options).map_err(|e| e.to_string())?;
        self.script
            .compare(&fs, self.found..=self.found, self.durable)?;
        Ok(self.script.hashes[self.found])
    }
}

/// Whether the mount had ended as it should, and none had begun since.
fn has_ended(image: &CrashImage) -> bool {
    image.acked().last() == Some(&ENDED)
}

fn media_of(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

/// As much of a model as the accounts need.
fn files(tree: &Tree) -> Model {
    let mut m = Model {
        root: ROOT,
        nodes: Default::default(),
        limits: Default::default(),
    };
    for item in tree.values().filter(|i| i.mode & 0o170_000 == S_IFREG) {
        if let Some((ino, _, _)) = item.identity {
            let mut node = crate::model::Node {
                mode: item.mode,
                ..Default::default()
            };
            node.content.mapped = item.mapped.clone();
            m.nodes.insert(ino, node);
        }
    }
    m
}
