use super::*;
use crate::geometry::Wishes;
use proptest::prelude::*;

/// Each step writes where the one before has nothing that counts, and is a geometry like any other.
fn check(from: &Geometry, steps: &[Geometry], used: &InUse) {
    let mut before = *from;
    for to in steps {
        assert!(to.is_sound(), "{to:?}");
        for new in to.written_beside(&before) {
            for old in before.counting() {
                let apart = new.end <= old.start || old.end <= new.start;
                assert!(apart, "{new:?} over {old:?}: {before:?} to {to:?}");
            }
        }
        // The rest stays where it is, or cannot be had otherwise.
        for same in [
            |g: &Geometry| g.lane_off,
            |g: &Geometry| g.lane_bytes,
            |g: &Geometry| g.l2p_log_off,
            |g: &Geometry| g.l2p_lane_bytes,
            |g: &Geometry| g.data_start,
            |g: &Geometry| g.nat_entries,
            |g: &Geometry| g.dyn_base,
            |g: &Geometry| g.node_off + g.node_pages * B,
        ] {
            assert_eq!(same(to), same(&before));
        }
        assert!(to.node_pages >= used.node_pages && to.visible_blocks() >= used.lbns);
        let undo = 2 * to.slots_per_buffer * to.buffers * 32;
        assert!(undo <= to.l2p_lanes * to.l2p_lane_bytes, "{to:?}");
        before = *to;
    }
}

fn used(g: &Geometry, part: u64) -> InUse {
    InUse {
        request_blocks: 0,
        node_pages: 2 + (g.node_pages - 2) * part / 100,
        lbn_bitmaps: (g.visible_blocks() * part / 100).div_ceil(BITS_PER_PAGE),
        lbns: g.visible_blocks() * part / 100,
        inode_ids: g.inode_base + (g.inode_end() - g.inode_base) * part / 100,
    }
}

proptest! {
    #[test]
    fn any_length_is_had_soundly_or_refused(
        pmem in 32u64..1024, data in 64u64..(16 << 10), other in 16u64..(64 << 10), part in 0u64..90
    ) {
        let Ok(g) = Geometry::compute(pmem << 20, data << 20, 4) else {
            return Ok(());
        };
        let used = used(&g, part);
        let Ok(steps) = g.resized((other << 20) / B, &used) else {
            return Ok(());
        };
        check(&g, &steps, &used);
        let last = steps.last().unwrap_or(&g);
        prop_assert_eq!(last.data_blocks, (other << 20) / B);
        // And back, or elsewhere.
        if let Ok(back) = last.resized(g.data_blocks, &used) {
            check(last, &back, &used);
        }
    }
}

#[test]
fn bounds_are_those_of_what_can_be_had() {
    for (pmem, data) in [
        (64, 960),
        (256, 8 << 10),
        (4 << 10, 60 << 10),
        (16 << 10, 1 << 20),
    ] {
        let g = Geometry::compute(pmem << 20, data << 20, 4).unwrap();
        let used = used(&g, 10);
        let Bounds { least, most } = g.bounds(&used);
        assert!(
            least < g.data_blocks && g.data_blocks < most,
            "{least} {most}"
        );
        for blocks in [least, most] {
            check(&g, &g.resized(blocks, &used).unwrap(), &used);
        }
        assert_eq!(g.resized(least - 1, &used), Err(NoRoom::Data));
        assert_eq!(g.resized(most + 1, &used), Err(NoRoom::Region));
        // As mkfs lays them out.
        assert!(2 * most >= 3 * g.data_blocks, "{most} of {}", g.data_blocks);
    }
}

#[test]
fn nothing_moves_where_nothing_changes() {
    let g = Geometry::compute(64 << 20, 256 << 20, 2).unwrap();
    let used = used(&g, 1);
    assert_eq!(g.resized(g.data_blocks, &used), Ok(Vec::new()));
}

#[test]
fn bitmaps_of_more_blocks_take_ids_from_the_end_of_the_inode_table() {
    let g = Geometry::compute(256 << 20, 1 << 30, 4).unwrap();
    let used = used(&g, 1);
    let steps = g.resized((8 << 30) / B, &used).unwrap();
    let to = steps.last().unwrap();
    assert!(to.lbn_bitmaps_moved() && !g.lbn_bitmaps_moved());
    let ids = to.blocks.div_ceil(BITS_PER_PAGE);
    assert_eq!(to.lbn_bitmaps(), g.dyn_base - ids..g.dyn_base);
    assert_eq!(to.inodes(), g.inodes() - ids * 15);
    for id in 1..to.nat_entries as u32 {
        let is_old = (g.lbn_bitmap_base..g.ino_bitmap_base).contains(&id.into());
        let is_new = to.lbn_bitmaps().contains(&id.into());
        match (is_old, is_new) {
            (true, _) => assert_eq!(to.static_kind(id), None),
            (_, true) => assert_eq!(to.static_kind(id), Some(crate::node::NodeKind::Bitmap)),
            _ => assert_eq!(to.static_kind(id), g.static_kind(id)),
        }
    }
    let full = InUse {
        inode_ids: g.dyn_base,
        ..used
    };
    assert_eq!(g.resized((8 << 30) / B, &full), Err(NoRoom::Region));
}

/// Growth in steps, as that of a disk below: a length between two others that can be had is not refused.
#[test]
fn what_lies_between_can_be_had() {
    let mut g = Geometry::compute(64 << 20, 2 << 30, 4).unwrap();
    for mib in [2100, 2200, 2500, 3000] {
        let used = used(&g, 1);
        let bounds = g.bounds(&used);
        let step = (bounds.most - bounds.least) / 97;
        for blocks in (bounds.least..=bounds.most).step_by(step as usize) {
            assert!(g.resized(blocks, &used).is_ok(), "{blocks} of {bounds:?}");
        }
        let steps = g
            .resized(((mib << 20) / B).min(bounds.most), &used)
            .unwrap();
        g = *steps.last().unwrap();
    }
}

/// A device that grows little by little, and shrinks: there is room in what staging and the last page table leave.
#[test]
fn small_steps_take_nothing_from_metadata() {
    let wishes = |pmem| Wishes {
        staging: Some(1 << 30),
        batch_log: pmem / 16,
        ..Wishes::default()
    };
    for (pmem, data, step) in [
        (4096 << 20, 60 << 30, 1 << 30),
        (64 << 20, 500 << 20, 30 << 20),
    ] {
        let made = Geometry::compute_with(pmem, data, 4, wishes(pmem)).unwrap();
        let used = used(&made, 8);
        let mut g = made;
        let mut slots = Vec::new();
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 0, 1, 0] {
            let steps = g.resized((data + n * step) / B, &used).unwrap();
            check(&g, &steps, &used);
            g = steps[steps.len() - 1];
            slots.push(g.slots_per_buffer);
        }
        assert_eq!(g.node_pages, made.node_pages);
        assert!(
            slots.iter().all(|n| n * 2 >= made.slots_per_buffer),
            "{slots:?}"
        );
    }
}
