use super::*;
use crate::batch::{BATCH_LOG_MAX, BATCH_LOG_MIN};
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_size_is_laid_out_soundly_or_refused(
        pmem in 0u64..(8 << 30), data in 0u64..(64 << 30), buffers in 0u32..20
    ) {
        match Geometry::compute(pmem, data, buffers) {
            Ok(g) => prop_assert!(g.is_sound(), "{g:?}"),
            Err(GeometryError::PmemTooSmall { have, need }) => prop_assert!(need > have),
            Err(_) => {}
        }
    }
}

#[test]
fn staging_gets_half_or_what_is_wished_and_pages_the_rest() {
    let with = |staging| {
        let wishes = Wishes {
            staging,
            ..Wishes::default()
        };
        Geometry::compute_with(16 << 30, 1 << 40, 4, wishes).unwrap()
    };
    let (half, some) = (with(None), with(Some(1 << 30)));
    assert_eq!(with(Some(1 << 40)), half);
    let slots = some.slots_per_buffer * some.buffers;
    assert!(some.is_sound() && slots * B <= 1 << 30 && slots * B > 900 << 20);
    assert!(some.node_pages > half.node_pages);
}

#[test]
fn the_mirror_area_has_room_for_two_maps_unless_it_was_made_smaller() {
    for data in [256 << 20, 8 << 30, 341 << 30, 1 << 40, 16 << 40] {
        let g = Geometry::compute(256 << 30, data, 4).unwrap();
        let maps = 2 * 12 * g.data_blocks;
        assert!(g.is_sound() && g.mirror_blocks * B >= maps, "{data} {g:?}");
    }
    let with = |mirror| {
        let wishes = Wishes {
            mirror: Some(mirror),
            ..Wishes::default()
        };
        Geometry::compute_with(1 << 30, 8 << 30, 4, wishes)
    };
    for mirror in [MIRROR_MIN, (5 << 20) + 1, 2 << 30] {
        let g = with(mirror).unwrap();
        assert!(g.is_sound(), "{g:?}");
        assert_eq!(g.mirror_blocks, mirror.div_ceil(B));
    }
    for mirror in [0, MIRROR_MIN - 1, (2 << 30) + 1, u64::MAX] {
        let most = 2 << 30;
        assert_eq!(
            with(mirror),
            Err(GeometryError::Mirror { have: mirror, most })
        );
    }
}

#[test]
fn regions_larger_than_anything_are_laid_out_soundly_too() {
    for pmem in [1 << 40, 1 << 44, 1 << 50, u64::MAX - 4095, u64::MAX] {
        for (data, buffers) in [(DATA_MIN, 1), (1 << 40, 16), (1 << 45, 4)] {
            let g = Geometry::compute(pmem, data, buffers).unwrap();
            assert!(g.is_sound(), "{pmem} {data} {g:?}");
        }
    }
}

#[test]
fn the_batch_log_lies_behind_everything_else() {
    let with = |pmem, batch_log| {
        let wishes = Wishes {
            batch_log,
            ..Wishes::default()
        };
        Geometry::compute_with(pmem, 1 << 30, 2, wishes)
    };
    for log in [BATCH_LOG_MIN, 1 << 20, (16 << 20) + 1] {
        let g = with(64 << 20, log).unwrap();
        assert!(g.is_sound(), "{g:?}");
        assert_eq!(g.batch_log_off + g.batch_log_bytes, 64 << 20);
        assert_eq!(g.batch_log_bytes, log / B * B);
    }
    assert_eq!(with(64 << 20, 0), Geometry::compute(64 << 20, 1 << 30, 2));
    let longest = with(256 << 20, u64::MAX).unwrap();
    assert!(longest.is_sound() && longest.batch_log_bytes == BATCH_LOG_MAX);
    let longer = Geometry {
        batch_log_off: longest.batch_log_off - B,
        batch_log_bytes: BATCH_LOG_MAX + B,
        node_pages: longest.node_pages - 1,
        ..longest
    };
    assert!(!longer.is_sound());
    for (pmem, log) in [(64 << 20, B), (17 << 20, 2 << 20), (64 << 20, 60 << 20)] {
        let refused = with(pmem, log).unwrap_err();
        let GeometryError::PmemTooSmall { have, need } = refused else {
            panic!("{refused:?}")
        };
        assert!(have == pmem && (need > pmem || log < BATCH_LOG_MIN));
    }
}

fn usual_fields() -> [u64; FIELDS] {
    let wishes = Wishes {
        batch_log: 1 << 20,
        ..Wishes::default()
    };
    let usual = Geometry::compute_with(64 << 20, 1 << 30, 2, wishes);
    usual.unwrap().fields()
}

#[test]
fn fields_at_the_limits_of_their_type_are_refused() {
    let usual = usual_fields();
    for field in 0..FIELDS {
        for value in [u64::MAX, u64::MAX / 2, 1 << 61, u64::MAX / 15 + 1] {
            let mut f = usual;
            f[field] = value;
            // A longer region or device is one; nothing else can grow so far.
            let sound = Geometry::from_fields(&f).is_sound();
            assert_eq!(sound, field < 2, "field {field}: {value}");
        }
    }
}

#[test]
fn areas_that_are_not_aligned_are_refused() {
    let usual = usual_fields();
    for field in [7, 8, 9, 10, 11, 14, 15, 16, 17, 19, 21, 32, 33] {
        for by in [1, 8, u64::MAX] {
            let mut f = usual;
            f[field] = f[field].wrapping_add(by);
            assert!(!Geometry::from_fields(&f).is_sound(), "field {field}: {by}");
        }
    }
}

#[test]
fn ordinary_setups_fit() {
    for (p, d) in [
        (256, 8 << 10),
        (1 << 10, 8 << 10),
        (16, 16),
        (64, 1 << 10),
        (1 << 10, 12 << 10),
    ] {
        let g = Geometry::compute(p << 20, d << 20, 4).unwrap();
        assert!(g.is_sound());
        assert!(g.node_pages * 4096 > (p << 20) / 5, "{p} {d} {g:?}");
    }
}
