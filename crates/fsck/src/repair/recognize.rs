//! Physical blocks that are recognized by their content.

use std::collections::VecDeque;

use quayfs_layout::checksum::crc32c;
use quayfs_layout::config::FEATURE_ZERO_CRC;
use quayfs_layout::l2p::{BlockState, Entry, ZERO_CRC};
use quayfs_layout::{BLOCK, Ino, Lbn};
use rustc_hash::{FxHashMap, FxHashSet};

use super::tree::Tree;
use super::{Area, Failed, Repair, odds};
use crate::media::Media;

/// Blocks read from the device at once.
const AT_ONCE: usize = 256;

/// Checksums of physical blocks, each computed at most once.
#[derive(Default)]
pub(super) struct Crcs(FxHashMap<u64, Option<u32>>);

impl Crcs {
    /// Reads blocks in order, neighbours together. Those that cannot be read that way are left to [`Crcs::of`].
    pub(super) fn load(&mut self, media: &Media, pbns: &[u64]) {
        for run in pbns
            .chunks(AT_ONCE)
            .flat_map(|some| some.chunk_by(|a, b| a + 1 == *b))
        {
            let mut buf = vec![0; run.len() * BLOCK];
            if media
                .device
                .read(media.geo.data_start + run[0], &mut buf)
                .is_ok()
            {
                let crcs = buf.chunks_exact(BLOCK).map(|b| Some(crc32c(b)));
                self.0.extend(run.iter().copied().zip(crcs));
            }
        }
    }

    /// That of a block; `None` if it cannot be read.
    pub(super) fn of(&mut self, media: &Media, pbn: u64) -> Option<u32> {
        let read = || media.block(pbn).map(|b| crc32c(&b));
        *self.0.entry(pbn).or_insert_with(read)
    }

    /// Whether a block holds what an LBN's checksum says.
    pub(super) fn hold(&mut self, media: &Media, pbn: u64, lbn: Lbn) -> bool {
        self.of(media, pbn) == Some(media.crc(lbn))
    }
}

impl Repair<'_> {
    /// Gives LBNs of files those free blocks back that have their content. Each block is read once, and those that
    /// share a checksum once more. What reads as zeros needs no content. Returns the LBNs and the blocks that are left.
    pub(super) fn recognize(
        &mut self,
        homeless: Vec<Lbn>,
        free: Vec<u64>,
        crcs: &mut Crcs,
        tree: &Tree<'_>,
    ) -> Result<(Vec<Lbn>, Vec<u64>), Failed> {
        let is_wanted = |media: &Media, lbn| tree.lbns.has(lbn) && media.crc(lbn) != ZERO_CRC;
        let of_files = homeless.iter().filter(|lbn| is_wanted(&self.media, **lbn));
        let wanted: FxHashSet<u32> = of_files.map(|lbn| self.media.crc(*lbn)).collect();
        let mut by_crc = self.candidates(&wanted, &free, crcs);
        let mut rest = Vec::new();
        let (mut given, mut again) = (FxHashSet::default(), Vec::new());
        for lbn in homeless {
            let same = by_crc.get_mut(&self.media.crc(lbn));
            let found = same.filter(|_| is_wanted(&self.media, lbn));
            let Some(pbn) = found.and_then(VecDeque::pop_front) else {
                rest.push(lbn);
                continue;
            };
            given.insert(pbn);
            let state = BlockState::Written;
            self.store_entry(lbn, Entry { pbn, state })?;
            again.push(lbn);
        }
        self.tell_recognized(&again, tree);
        let left = free.into_iter().filter(|pbn| !given.contains(pbn));
        Ok((rest, left.collect()))
    }

    /// Says which files have blocks again. Where the checksum of what was never written may be that of an earlier owner's
    /// block, this is one of the two, and nothing says which.
    fn tell_recognized(&mut self, again: &[Lbn], tree: &Tree<'_>) {
        if again.is_empty() || self.zeros_are_marked(tree) {
            let (one, more) = (
                "has its physical block again, by its checksum",
                "have their physical blocks again, by their checksums",
            );
            self.tell_by_file(again, tree, one, more);
            return;
        }
        self.log.uncertain_blocks += again.len() as u64;
        let (one, more) = (
            "has a physical block with its checksum, which a deleted file may have had if this one has never written it",
            "have physical blocks with their checksums, which a deleted file may have had if this one has never written them",
        );
        self.tell_by_file(again, tree, one, more);
    }

    /// Whether the checksums of what files have in state zero are not those of what was there before: the volume was made
    /// so, and no build that knows nothing of it has shown to have used it since.
    fn zeros_are_marked(&self, tree: &Tree<'_>) -> bool {
        let stale = |lbn: Lbn| {
            let entry = self.media.entry(lbn);
            entry.is_some_and(|e| e.state == BlockState::Zero)
                && ![0, ZERO_CRC].contains(&self.media.crc(lbn))
        };
        self.config.compat[0] & FEATURE_ZERO_CRC != 0 && !tree.lbns.iter().any(stale)
    }

    /// One line for each file, however many of its blocks that is.
    pub(super) fn tell_by_file(&mut self, lbns: &[Lbn], tree: &Tree<'_>, one: &str, more: &str) {
        let owned = |lbn: &Lbn| tree.owner(*lbn).map(|(ino, block)| (ino, block, *lbn));
        let mut owned: Vec<(Ino, u64, Lbn)> = lbns.iter().filter_map(owned).collect();
        owned.sort_unstable();
        for of_file in owned.chunk_by(|a, b| a.0 == b.0) {
            let (ino, block, lbn) = of_file[0];
            let what = match of_file.len() {
                1 => format!("block {block}: LBN {lbn} {one}"),
                n => format!("{n} blocks {more}; the first one is block {block}, LBN {lbn}"),
            };
            self.log.of(Area::PageTable, ino, what);
        }
    }

    /// Free blocks by their checksum, if it is one of these and tells what they hold.
    fn candidates(
        &mut self,
        wanted: &FxHashSet<u32>,
        free: &[u64],
        crcs: &mut Crcs,
    ) -> FxHashMap<u32, VecDeque<u64>> {
        let mut by_crc: FxHashMap<u32, VecDeque<u64>> = FxHashMap::default();
        if wanted.is_empty() {
            return by_crc;
        }
        crcs.load(&self.media, free);
        for &pbn in free {
            if let Some(crc) = crcs.of(&self.media, pbn).filter(|c| wanted.contains(c)) {
                by_crc.entry(crc).or_default().push_back(pbn);
            }
        }
        // Of blocks that differ the checksum does not say which is meant.
        by_crc.retain(|_, pbns| self.media.are_alike(pbns));
        let found = by_crc.len() as u64;
        let others = wanted.len() as u64 - found;
        // Any of the others may fit any of the blocks by chance.
        let tries = u128::from(others) * free.len() as u128;
        if found > 0 && !odds::likely(found, tries) {
            let what = format!(
                "{found} checksums of blocks without a place fit a free block by chance, since {others} others fit \
                 none: they are lost as well"
            );
            self.log.note(what);
            by_crc.clear();
        }
        by_crc
    }
}

impl Media {
    /// Whether these blocks hold the same.
    fn are_alike(&self, pbns: &VecDeque<u64>) -> bool {
        if pbns.len() < 2 {
            return true;
        }
        let first = self.block(pbns[0]);
        first.is_some() && pbns.range(1..).all(|pbn| self.block(*pbn) == first)
    }
}
