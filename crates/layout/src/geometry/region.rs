//! The same volume with a region of another length, laid out anew: areas as mkfs puts them, and node ids as they are. Nodes
//! are named by their ids in other nodes, so a range of ids neither moves nor ends elsewhere, but for that of dynamic ids,
//! which ends the range of all: it may go on as far as its bitmaps reach.

use super::plan::size_journal;
use super::{B, Geometry, InUse, NoRoom, PMEM_MIN, Sizes};
use crate::LINE;
use crate::batch::{BATCH_LOG_MAX, BATCH_LOG_MIN};
use crate::node::BITS_PER_PAGE;

/// Part of a region that mkfs gives the batch log.
const BATCH_LOG_SHARE: u64 = 16;
/// The most of it that mkfs gives.
const BATCH_LOG_USUAL: u64 = 32 << 20;
/// Node pages that are left free at least: steps that free space need some.
const FREE_PAGES: u64 = 64;

impl Geometry {
    /// The geometry of this volume in a region of so many bytes, of which nothing is in its place yet. Half of what areas of
    /// fixed length leave goes to slots, less if the metadata need it, more if there are no ids for so many node pages.
    ///
    /// # Errors
    /// [`NoRoom::Region`].
    pub fn with_region(&self, pmem_len: u64, used: &InUse) -> Result<Self, NoRoom> {
        let pmem_len = pmem_len / B * B;
        let batch_log = match self.batch_log_bytes {
            0 => 0,
            _ => {
                (pmem_len / BATCH_LOG_SHARE)
                    .clamp(BATCH_LOG_MIN, BATCH_LOG_USUAL.min(BATCH_LOG_MAX))
                    / B
                    * B
            }
        };
        if pmem_len < PMEM_MIN + batch_log {
            return Err(NoRoom::Region);
        }
        let areas_end = pmem_len - batch_log;
        let rest = areas_end
            .checked_sub(self.behind_table())
            .ok_or(NoRoom::Region)?;
        let least = used.node_pages + used.node_pages / 16 + FREE_PAGES;
        // First what mkfs does.
        let shares = [rest, rest / 4, rest / 8, rest / 16, 0];
        let laid_out = |staging: u64| self.laid_out(areas_end, rest, staging);
        let fits = |g: &Self| g.node_pages >= least;
        let found = shares.into_iter().filter_map(laid_out).find(fits);
        let mut to = found.ok_or(NoRoom::Region)?;
        let unused = areas_end - to.node_off - to.node_pages * B;
        if unused > B * 64 {
            let staging = to.slots_per_buffer * to.buffers * slot_bytes() + unused;
            to = self.laid_out_with(areas_end, rest, staging).unwrap_or(to);
        }
        to.pmem_len = pmem_len;
        if batch_log > 0 {
            (to.batch_log_off, to.batch_log_bytes) = (areas_end, batch_log);
        }
        match to.is_sound() && fits(&to) {
            true => Ok(to),
            false => Err(NoRoom::Region),
        }
    }

    /// The least bytes that [`Geometry::with_region`] can give the region.
    pub fn least_region(&self, used: &InUse) -> u64 {
        let can = |pages: u64| self.with_region(pages * B, used).is_ok();
        let (mut below, mut least) = (0, self.pmem_len / B);
        while !can(least) {
            (below, least) = (least, least * 2);
        }
        while below + 1 < least {
            let half = below.midpoint(least);
            match can(half) {
                true => least = half,
                false => below = half,
            }
        }
        least * B
    }

    /// Where page table and checksums end that lie where mkfs puts them.
    fn behind_table(&self) -> u64 {
        let sizes = Sizes {
            blocks: self.blocks,
            ..Sizes::default()
        };
        Self::lay_out(&sizes).l2p_log_off
    }

    /// With at most so many bytes for slots.
    fn laid_out(&self, areas_end: u64, rest: u64, staging: u64) -> Option<Self> {
        let mut sizes = self.sizes();
        size_journal(&mut sizes, rest, Some(staging));
        self.placed(areas_end, &sizes)
    }

    /// With so many bytes for slots, though it is more than half.
    fn laid_out_with(&self, areas_end: u64, rest: u64, staging: u64) -> Option<Self> {
        let mut sizes = self.sizes();
        size_journal(&mut sizes, rest, Some(0));
        let slots = staging / self.buffers / slot_bytes();
        sizes.slots_per_buffer = slots.min(super::plan::SLOTS_MAX) / 64 * 64;
        sizes.l2p_entries = sizes.slots_per_buffer * self.buffers * 2;
        self.placed(areas_end, &sizes)
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            blocks: self.blocks,
            buffers: self.buffers,
            ..Sizes::default()
        }
    }

    /// The areas of these sizes one behind the other, and node pages up to the end.
    fn placed(&self, areas_end: u64, sizes: &Sizes) -> Option<Self> {
        let areas = Self::lay_out(sizes);
        let left = areas_end.checked_sub(areas.nat_off)?;
        let bitmaps_end = match self.quota_base {
            0 => self.inode_base,
            base => base,
        };
        let most = (bitmaps_end - self.dyn_bitmap_base) * BITS_PER_PAGE;
        let dyn_nodes = self.dyn_nodes().max((left / B).min(most));
        let nat_entries = (self.dyn_base + dyn_nodes).min(u64::from(u32::MAX));
        let node_off = areas.nat_off + (nat_entries * 8).next_multiple_of(B);
        let node_pages = areas_end.checked_sub(node_off)? / B;
        Some(Self {
            l2p_map_off: areas.l2p_map_off,
            l2p_crc_off: areas.l2p_crc_off,
            l2p_log_off: areas.l2p_log_off,
            l2p_lane_bytes: areas.l2p_lane_bytes,
            l2p_lanes: areas.l2p_lanes,
            lane_off: areas.lane_off,
            lane_bytes: areas.lane_bytes,
            slot_hdr_off: areas.slot_hdr_off,
            slot_data_off: areas.slot_data_off,
            slots_per_buffer: areas.slots_per_buffer,
            nat_off: areas.nat_off,
            nat_entries,
            node_off,
            // Each needs an id, and 0 is none.
            node_pages: node_pages.min(nat_entries - 1),
            batch_log_off: 0,
            batch_log_bytes: 0,
            pmem_len: areas_end,
            ..*self
        })
    }
}

/// What a slot takes: its block, its header, and room for two undo records.
fn slot_bytes() -> u64 {
    B + LINE as u64 + 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn used(g: &Geometry, part: u64) -> InUse {
        InUse {
            request_blocks: 0,
            node_pages: g.node_pages * part / 100,
            lbn_bitmaps: 1,
            lbns: 100,
            inode_ids: g.inode_base + 1,
        }
    }

    /// Ids are what they were, and there is at least as much of everything that was needed.
    fn check(from: &Geometry, to: &Geometry, used: &InUse) {
        assert!(to.is_sound(), "{to:?}");
        for same in [
            |g: &Geometry| g.intent_base,
            |g: &Geometry| g.lbn_bitmap_base,
            |g: &Geometry| g.ino_bitmap_base,
            |g: &Geometry| g.dyn_bitmap_base,
            |g: &Geometry| g.quota_base,
            |g: &Geometry| g.inode_base,
            |g: &Geometry| g.dyn_base,
            |g: &Geometry| g.blocks,
            |g: &Geometry| g.data_start,
            |g: &Geometry| g.buffers,
        ] {
            assert_eq!(same(to), same(from));
        }
        assert!(to.nat_entries >= from.nat_entries && to.node_pages > used.node_pages);
        let undo = 2 * to.slots_per_buffer * to.buffers * 32;
        assert!(undo <= to.l2p_lanes * to.l2p_lane_bytes, "{to:?}");
    }

    proptest! {
        #[test]
        fn any_region_is_had_soundly_or_refused(
            pmem in 32u64..1024, other in 16u64..4096, data in 64u64..(16 << 10), part in 0u64..100, batches: bool
        ) {
            let wishes = crate::geometry::Wishes {
                batch_log: if batches { pmem * MIB / 16 } else { 0 },
                ..Default::default()
            };
            let Ok(g) = Geometry::compute_with(pmem * MIB, data * MIB, 4, wishes) else {
                return Ok(());
            };
            let used = used(&g, part);
            let Ok(to) = g.with_region(other * MIB, &used) else {
                prop_assert!(g.least_region(&used) > other * MIB);
                return Ok(());
            };
            prop_assert_eq!(to.pmem_len, other * MIB);
            check(&g, &to, &used);
            prop_assert!(g.least_region(&used) <= other * MIB);
            if let Ok(back) = to.with_region(pmem * MIB, &used) {
                check(&to, &back, &used);
            }
            // A device of another length first or afterwards.
            if let Ok(steps) = to.resized(to.data_blocks * 2, &used)
                && let Some(longer) = steps.last()
                && let Ok(again) = longer.with_region(other * 2 * MIB, &used)
            {
                check(longer, &again, &used);
            }
        }
    }

    #[test]
    fn more_is_more_of_everything_until_there_are_no_ids() {
        let g = Geometry::compute(64 * MIB, 1024 * MIB, 4).unwrap();
        let used = used(&g, 50);
        let twice = g.with_region(128 * MIB, &used).unwrap();
        assert!(twice.slots_per_buffer > g.slots_per_buffer);
        assert!(twice.node_pages > g.node_pages * 3 / 2);
        // The rest is for slots.
        let many = g.with_region(4096 * MIB, &used).unwrap();
        assert_eq!(many.node_pages, many.nat_entries - 1);
        let slots = many.slots_per_buffer * many.buffers * B;
        assert!(slots > 3 << 30, "{slots}");
        check(&g, &many, &used);
    }

    #[test]
    fn less_is_less_until_metadata_do_not_fit() {
        let g = Geometry::compute(256 * MIB, 1024 * MIB, 4).unwrap();
        let used = used(&g, 30);
        let half = g.with_region(128 * MIB, &used).unwrap();
        check(&g, &half, &used);
        assert!(half.slots_per_buffer < g.slots_per_buffer);
        let least = g.least_region(&used);
        assert!((32 * MIB..128 * MIB).contains(&least), "{least}");
        assert_eq!(g.with_region(least - B, &used), Err(NoRoom::Region));
        check(&g, &g.with_region(least, &used).unwrap(), &used);
    }
}
