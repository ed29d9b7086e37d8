//! The same volume with a data device of another length: which areas move, and where to.
//!
//! The page table and the checksums get a new place, and with them, as far as they have to, the slots with their headers and
//! the node address table. Lanes and page-table log stay, and node pages stay where they lie. What is written for a new
//! geometry lies where the old one has nothing that counts, so that until the configuration table is replaced the volume
//! is what it was: slots of a volume that was closed hold nothing, nor do free node pages, nor gaps between areas. If there
//! is not enough of that, an earlier step takes pages from the node area, which are then a gap.

use std::ops::Range;

use super::sound::SLOTS;
use super::{B, Geometry};
use crate::LINE;
use crate::l2p::UNDO_BYTES;
use crate::node::BITS_PER_PAGE;

/// Of the free node pages one in so many stays, however large the page table is to be: with fewer no file could be made.
const KEPT: u64 = 8;

/// What is in use of a volume that was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Node pages.
    pub node_pages: u64,
    /// Those of them that are bitmaps of LBNs.
    pub lbn_bitmaps: u64,
    /// LBNs from here on are free.
    pub lbns: u64,
    /// Node ids of the inode table from here on have no inode.
    pub inode_ids: u64,
    /// So many blocks have to fit into a request ([`Geometry::request_blocks`]), if that can be had; 0 where it does not
    /// matter.
    pub request_blocks: u64,
}

/// Why a data device cannot have a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Blocks behind its end are in use, or it would hold nothing.
    #[error("blocks are in use that would lie behind its end")]
    Data,
    /// The region has no room for its page table.
    #[error("the region has no room for the page table of so much data")]
    Region,
}

/// The least and the most blocks that a data device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// As much as is in use takes.
    pub least: u64,
    /// As much as the region has room for.
    pub most: u64,
}

impl Geometry {
    /// The geometries that lead to a data device of so many blocks, the last one with it, each to be made durable before
    /// the next is begun; none if it has that length. The volume is what it was until the last one.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn resized(&self, data_blocks: u64, used: &InUse) -> Result<Vec<Self>, NoRoom> {
        if data_blocks == self.data_blocks {
            return Ok(Vec::new());
        }
        let target = self.with_blocks(data_blocks, used)?;
        let direct = self.moved(target).map(|g| vec![g]);
        let keeps_half = |steps: &Vec<Self>| {
            steps
                .iter()
                .all(|g| g.slots_per_buffer * 2 >= self.slots_per_buffer)
        };
        let keeps_requests = |steps: &Vec<Self>| {
            let last = steps.last();
            last.is_some_and(|g| g.request_blocks() >= used.request_blocks)
        };
        if let Some(steps) = direct.clone().filter(keeps_half).filter(keeps_requests) {
            return Ok(steps);
        }
        let pages = |room, kept| self.by_way_of_pages(target, room, used, kept);
        let (least, roomy) = (target.blocks, pages(target.blocks, 4));
        // A page table in the first gap that is large enough may be in the way of the slots, where one that takes more lies
        // elsewhere. Without this a length could be refused though a greater one is not.
        let elsewhere = |fits: &dyn Fn(&Vec<Self>) -> bool| {
            let mut rooms = (9..=64).map(|eighths| least.div_ceil(8) * eighths);
            rooms.find_map(|room| {
                let direct = self.moved_with(target, room).map(|g| vec![g]);
                let direct = direct.filter(fits);
                direct.or_else(|| pages(room, KEPT).filter(fits))
            })
        };
        let way = |fits: &dyn Fn(&Vec<Self>) -> bool| {
            let first = roomy.clone().filter(fits).or(direct.clone().filter(fits));
            let any = || pages(least, KEPT).filter(fits);
            first.or_else(any).or_else(|| elsewhere(fits))
        };
        let way = way(&keeps_requests).or_else(|| way(&|_| true));
        way.ok_or(NoRoom::Region)
    }

    /// The least and the most blocks that [`Geometry::resized`] can give the data device.
    pub fn bounds(&self, used: &InUse) -> Bounds {
        let can = |blocks| self.resized(blocks, used).is_ok();
        let (mut least, mut below) = (self.data_blocks, self.data_start);
        while below + 1 < least {
            let half = below.midpoint(least);
            match can(half) {
                true => least = half,
                false => below = half,
            }
        }
        let (mut most, mut above) = (self.data_blocks, crate::l2p::BLOCKS_MAX + 1);
        while most + 1 < above {
            let half = most.midpoint(above);
            match can(half) {
                true => most = half,
                false => above = half,
            }
        }
        Bounds { least, most }
    }

    /// This one with numbers for another data device, and nothing moved yet.
    fn with_blocks(&self, data_blocks: u64, used: &InUse) -> Result<Self, NoRoom> {
        let blocks = data_blocks.saturating_sub(self.data_start);
        // What mkfs gives; volumes for tests have less.
        let spare = (blocks / 64).clamp(self.spare.min(64), 4096);
        if blocks <= 2 * spare || blocks - spare < used.lbns {
            return Err(NoRoom::Data);
        }
        let mut to = Self {
            data_blocks,
            blocks,
            spare,
            ..*self
        };
        let ids = blocks.div_ceil(BITS_PER_PAGE);
        let have = self.lbn_bitmaps();
        if ids > have.end - have.start {
            // From the end of the inode table: there are more ids of inodes than pages for them.
            let base = self.dyn_base.saturating_sub(ids);
            if base <= self.inode_base || base < used.inode_ids {
                return Err(NoRoom::Region);
            }
            to.lbn_bitmap_base = base;
        }
        Ok(to)
    }

    /// `to` with places for what has to move, in one step from this geometry.
    fn moved(&self, to: Self) -> Option<Self> {
        self.moved_with(to, to.blocks)
    }

    /// The same with a page table that lies where one of `room` blocks would.
    fn moved_with(&self, mut to: Self, room: u64) -> Option<Self> {
        let mut free = Gaps::between(self.counting(), self.pmem_len);
        if to.blocks != self.blocks {
            to.l2p_map_off = free.take(room * 8)?;
            to.l2p_crc_off = free.take(room * 4)?;
        }
        if to.lbn_bitmap_base != self.lbn_bitmap_base || to.node_off != self.node_off {
            to.nat_off = free.take(to.nat_entries * 8)?;
        }
        let unit = self.slots_per_buffer.min(64);
        let most = self.slots_most() / unit;
        // The most that fit; more never fit where fewer do not.
        let (mut fit, mut too_many) = (0, most + 1);
        let mut found = None;
        while fit + 1 < too_many {
            let half = fit.midpoint(too_many);
            match self.with_slots(to, half * unit, &free) {
                Some(g) => (fit, found) = (half, Some(g)),
                None => too_many = half,
            }
        }
        found.filter(Self::is_sound)
    }

    /// `to` with so many slots in each buffer: headers where nothing counts now, slots where nothing will.
    fn with_slots(&self, mut to: Self, slots: u64, free: &Gaps) -> Option<Self> {
        let all = slots * self.buffers;
        to.slots_per_buffer = slots;
        to.slot_hdr_off = free.clone().take(all * LINE as u64)?;
        let room = Gaps::between(to.counting(), to.pmem_len).largest()?;
        to.slot_data_off = room.start;
        (all * B <= room.end - room.start).then_some(to)
    }

    /// The most slots of a buffer that the page-table log has room for.
    fn slots_most(&self) -> u64 {
        let entries =
            self.l2p_lane_bytes.saturating_sub(2 * B) / UNDO_BYTES as u64 * self.l2p_lanes;
        (entries / 2 / self.buffers / 64 * 64).max(self.slots_per_buffer)
    }

    /// The steps if the page table, where one of `room` blocks would lie, gets pages of the node area, of whose free ones one
    /// in `kept` stays at least.
    fn by_way_of_pages(&self, to: Self, room: u64, used: &InUse, kept: u64) -> Option<Vec<Self>> {
        let pages = (room * 8).div_ceil(B) + (room * 4).div_ceil(B);
        let renumbered = match to.lbn_bitmap_base == self.lbn_bitmap_base {
            true => 0,
            false => used.lbn_bitmaps,
        };
        let free = self.node_pages.checked_sub(used.node_pages + renumbered)?;
        if free.checked_sub(pages)? < (free / kept).max(64) {
            return None;
        }
        let fewer = |g: Self| Self {
            node_off: g.node_off + pages * B,
            node_pages: g.node_pages - pages,
            ..g
        };
        let first = self.moved(fewer(*self))?;
        let to = Self {
            data_blocks: to.data_blocks,
            blocks: to.blocks,
            spare: to.spare,
            lbn_bitmap_base: to.lbn_bitmap_base,
            ..first
        };
        Some(vec![first, first.moved_with(to, room)?])
    }

    /// What counts on a volume that was closed: all but the slots.
    pub fn counting(&self) -> Vec<Range<u64>> {
        let areas = self.areas().unwrap_or_default();
        // By their place in the list: in a geometry that is being made, another area may lie where the slots began.
        let areas = areas.into_iter().enumerate();
        let areas = areas.filter_map(|(n, area)| (n != SLOTS).then_some(area));
        let log = self.batch_log_off..self.batch_log_off + self.batch_log_bytes;
        areas
            .map(|(start, end)| start..end)
            .chain([log])
            .filter(|r| r.start < r.end)
            .collect()
    }

    /// What has to be written for this geometry while `from` is still the one that counts.
    pub fn written_beside(&self, from: &Self) -> Vec<Range<u64>> {
        let slots = self.slots_per_buffer * self.buffers;
        let each = [
            (self.l2p_map_off, from.l2p_map_off, self.blocks * 8),
            (self.l2p_crc_off, from.l2p_crc_off, self.blocks * 4),
            (self.slot_hdr_off, from.slot_hdr_off, slots * LINE as u64),
            (self.nat_off, from.nat_off, self.nat_entries * 8),
        ];
        let moved = each.into_iter().filter(|(to, from, _)| to != from);
        moved.map(|(to, _, len)| to..to + len).collect()
    }
}

/// Parts of the region with nothing in them, in order, made of whole pages.
#[derive(Clone, Debug)]
struct Gaps(Vec<Range<u64>>);

impl Gaps {
    fn between(mut areas: Vec<Range<u64>>, len: u64) -> Self {
        areas.sort_unstable_by_key(|r| r.start);
        let mut gaps = Vec::new();
        let mut at = 0;
        for area in areas {
            if at < area.start {
                gaps.push(at..area.start);
            }
            at = at.max(area.end.next_multiple_of(B));
        }
        if at < len {
            gaps.push(at..len / B * B);
        }
        Self(gaps)
    }

    /// Takes the beginning of the smallest one that is long enough.
    fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(B);
        let fitting = self.0.iter_mut().filter(|r| r.end - r.start >= len);
        let gap = fitting.min_by_key(|r| r.end - r.start)?;
        let at = gap.start;
        gap.start += len;
        Some(at)
    }

    fn largest(&self) -> Option<Range<u64>> {
        self.0.iter().max_by_key(|r| r.end - r.start).cloned()
    }
}

#[cfg(test)]
mod tests;
