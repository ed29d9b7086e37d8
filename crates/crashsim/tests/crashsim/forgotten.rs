//! Places that order things, taken out of a recorded run; and deaths while the machine goes on.

use quayfs_blockdev::{BLOCK, BlockDevice};
use quayfs_crashsim::{Budget, Died, OrderingKind, Recorder, Trace};
use quayfs_pmem::Backend;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A payload, then the word that vouches for it; a block, then the word that vouches for that.
fn publish(recorder: &Recorder) {
    let (region, device) = (recorder.region(), recorder.device());
    region.write(64, b"payload");
    region.flush(64, 7);
    region.fence();
    device.write(1, &[7; BLOCK]).unwrap();
    device.flush().unwrap();
    region.store_u64(0, 1);
    region.persist(0, 8).unwrap();
    recorder.mark(1);
}

/// Whether every crash keeps the promise: what is vouched for is there, what is acknowledged too.
fn holds(trace: &Trace) -> bool {
    trace.explore(&Budget::MEDIUM).all(|image| {
        let region = image.region();
        let valid = region.load_u64(0) == 1;
        let there = region.read_vec(64, 7) == b"payload" && image.device_block(1) == [7; BLOCK];
        (!valid || there) && (valid || image.acked().is_empty())
    })
}

#[test]
fn each_place_that_is_forgotten_is_noticed() {
    let recorder = Recorder::new(4096, 2, Backend::Dax);
    publish(&recorder);
    let trace = recorder.trace();
    assert!(holds(&trace));
    let places = trace.orderings();
    let kinds: Vec<OrderingKind> = places.iter().map(|p| p.kind).collect();
    use OrderingKind::{DeviceFlush, Drain, Fence, Flush};
    assert_eq!(kinds, [Flush, Fence, DeviceFlush, Flush, Drain]);
    for place in places {
        assert!(!holds(&trace.without(place)), "without {place}");
        assert!(!trace.without(place).orderings().contains(&place));
    }
}

#[test]
fn the_moments_before_what_settles_are_told_and_have_images() {
    let recorder = Recorder::new(4096, 2, Backend::Dax);
    publish(&recorder);
    // Nothing is in flight any more.
    recorder.region().fence();
    let trace = recorder.trace();
    let fences = trace.fences();
    let kinds: Vec<OrderingKind> = fences.iter().map(|(_, p)| p.kind).collect();
    use OrderingKind::{DeviceFlush, Drain, Fence};
    assert_eq!(kinds, [Fence, DeviceFlush, Drain]);
    let mut images = trace.explore(&Budget::MEDIUM);
    assert!(fences.iter().all(|(at, _)| !images.has_image(*at)));
    // As far as the device flush, and not further.
    let (second, third) = (fences[1].0, fences[2].0);
    assert!(images.by_ref().any(|i| i.point() == second.events()));
    assert!(images.has_image(second) && !images.has_image(third));
    images.by_ref().for_each(drop);
    assert!(fences.iter().all(|(at, _)| images.has_image(*at)));
}

#[test]
fn the_dead_do_nothing_and_what_was_in_flight_stays_so() {
    let recorder = Recorder::new(4096, 2, Backend::Dax);
    let region = recorder.region();
    recorder.die_after(1);
    region.store_u64(0, 1);
    let late: [&dyn Fn(); 4] = [
        &|| region.flush(0, 8),
        &|| region.fence(),
        &|| region.store_u64(8, 2),
        &|| recorder.device().write(0, &[1; BLOCK]).unwrap(),
    ];
    for act in late {
        let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("alive");
        assert_eq!(panic.downcast_ref(), Some(&Died));
    }
    recorder.mark(1);
    recorder.revive();
    // The next one finds what the caches hold; power may still take it.
    assert_eq!((region.load_u64(0), region.load_u64(8)), (1, 0));
    let mut block = [9; BLOCK];
    recorder.device().read(0, &mut block).unwrap();
    assert_eq!(block, [0; BLOCK]);
    let lost = |trace: &Trace| {
        let mut images = trace.explore(&Budget::MEDIUM);
        images.any(|i| !i.acked().is_empty() && i.region().load_u64(0) == 0)
    };
    assert!(lost(&recorder.trace()));
    region.persist(0, 8).unwrap();
    recorder.mark(2);
    let mut images = recorder.trace();
    let after = |t: &mut Trace| {
        let mut all = t.explore(&Budget::MEDIUM);
        all.any(|i| i.acked().contains(&2) && i.region().load_u64(0) == 0)
    };
    assert!(!after(&mut images));
}

#[test]
fn what_the_dead_wrote_past_the_cache_a_flush_and_a_fence_settle_and_neither_alone() {
    for (flushes, fences) in [(false, false), (true, false), (false, true), (true, true)] {
        let recorder = Recorder::new(4096, 2, Backend::Dax);
        let region = recorder.region();
        recorder.die_after(1);
        region.write_nt(0, &[1; 8]);
        recorder.revive();
        if flushes {
            region.flush(0, 8);
        }
        if fences {
            region.fence();
        }
        recorder.mark(1);
        let trace = recorder.trace();
        let mut images = trace.explore(&Budget::MEDIUM);
        let lost = images.any(|i| !i.acked().is_empty() && i.region().load_u64(0) == 0);
        assert_eq!(lost, !(flushes && fences));
    }
}

#[test]
fn what_the_living_write_past_the_cache_no_other_thread_settles() {
    let recorder = Recorder::new(4096, 2, Backend::Dax);
    let region = recorder.region();
    std::thread::scope(|s| {
        s.spawn(|| region.write_nt(0, &[1; 8]));
    });
    region.persist(0, 8).unwrap();
    recorder.mark(1);
    let trace = recorder.trace();
    let mut images = trace.explore(&Budget::MEDIUM);
    assert!(images.any(|i| !i.acked().is_empty() && i.region().load_u64(0) == 0));
}
