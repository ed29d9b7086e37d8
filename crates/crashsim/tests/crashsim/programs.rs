//! Programs that are wrong on purpose are found out, the correct ones are not.

use quayfs_blockdev::{BLOCK, BlockDevice};
use quayfs_crashsim::{Budget, CrashImage, Medium, Recorder};
use quayfs_pmem::{Backend, Region};
use std::sync::Arc;

const LEN: u64 = 2 * 4096;
const FLAG: u64 = 0;
/// Unaligned, and in three lines.
const PAYLOAD_AT: u64 = 100;
const PAYLOAD: [u8; 100] = [0x77; 100];

const MEMORY: [Backend; 2] = [Backend::Dax, Backend::Volatile];
const ALL: [Backend; 3] = [Backend::Dax, Backend::Volatile, Backend::File];

/// Two ways to look: everything, and a selection only.
const BUDGETS: [Budget; 2] = [
    Budget::LARGE,
    Budget {
        exhaustive: 1,
        picks: 8,
        random: 64,
        seed: 7,
    },
];

/// Whether any image of a run violates what `check` demands, for each way to look.
fn violated(
    backend: Backend,
    program: impl Fn(&Recorder),
    check: impl Fn(&CrashImage) -> bool,
) -> [bool; 2] {
    let recorder = Recorder::new(LEN, 4, backend);
    program(&recorder);
    let trace = recorder.trace();
    BUDGETS.map(|budget| trace.explore(&budget).any(|image| !check(&image)))
}

/// The flag vouches for the payload, and an acknowledgement for the flag.
fn flag_vouches(image: &CrashImage) -> bool {
    let region = image.region();
    let valid = region.load_u64(FLAG) == 1;
    let whole = region.read_vec(PAYLOAD_AT, 100) == PAYLOAD;
    (whole || !valid) && (valid || image.acked().is_empty())
}

/// Stores a payload and then a flag; `settle` has to make the payload durable in between.
fn payload_then_flag(store: fn(&Region), settle: fn(&Arc<Region>)) -> impl Fn(&Recorder) {
    move |recorder| {
        let region = recorder.region();
        store(&region);
        settle(&region);
        region.store_u64(FLAG, 1);
        region.persist(FLAG, 8).unwrap();
        recorder.mark(1);
    }
}

fn cached(region: &Region) {
    region.write(PAYLOAD_AT, &PAYLOAD);
}

fn streamed(region: &Region) {
    region.write_nt(PAYLOAD_AT, &PAYLOAD);
}

fn on_another_thread(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

#[test]
fn flush_and_fence_suffice_on_memory() {
    for backend in MEMORY {
        let program = payload_then_flag(cached, |r| {
            r.flush(PAYLOAD_AT, 100);
            r.fence();
        });
        assert_eq!(violated(backend, program, flag_vouches), [false; 2]);
    }
}

#[test]
fn flush_and_drain_suffice_everywhere() {
    for backend in ALL {
        let program = payload_then_flag(cached, |r| r.persist(PAYLOAD_AT, 100).unwrap());
        assert_eq!(
            violated(backend, program, flag_vouches),
            [false; 2],
            "{backend}"
        );
        let program = payload_then_flag(streamed, |r| r.drain().unwrap());
        assert_eq!(
            violated(backend, program, flag_vouches),
            [false; 2],
            "{backend}"
        );
    }
}

#[test]
fn a_fence_suffices_for_non_temporal_stores_on_memory() {
    for backend in MEMORY {
        let program = payload_then_flag(streamed, |r| r.fence());
        assert_eq!(violated(backend, program, flag_vouches), [false; 2]);
    }
}

#[test]
fn every_forgotten_step_is_found() {
    type Settle = fn(&Arc<Region>);
    type Program<'a> = (&'a str, fn(&Region), Settle);
    let wrong: [Program<'_>; 9] = [
        ("nothing", cached, |_| {}),
        ("no flush", cached, |r| r.fence()),
        ("no fence", cached, |r| r.flush(PAYLOAD_AT, 100)),
        ("fence before flush", cached, |r| {
            r.fence();
            r.flush(PAYLOAD_AT, 100);
        }),
        ("last line not flushed", cached, |r| {
            r.flush(PAYLOAD_AT, 192 - PAYLOAD_AT);
            r.fence();
        }),
        ("first line not flushed", cached, |r| {
            r.flush(128, 100);
            r.fence();
        }),
        ("fenced by another thread", cached, |r| {
            r.flush(PAYLOAD_AT, 100);
            on_another_thread(|| r.fence());
        }),
        ("non-temporal without fence", streamed, |_| {}),
        ("non-temporal, fenced by another thread", streamed, |r| {
            on_another_thread(|| {
                r.flush(PAYLOAD_AT, 100);
                r.fence();
            });
        }),
    ];
    for backend in MEMORY {
        for (what, store, settle) in wrong {
            let program = payload_then_flag(store, settle);
            assert_eq!(
                violated(backend, program, flag_vouches),
                [true; 2],
                "{what} on {backend}"
            );
        }
    }
}

#[test]
fn flushed_and_fenced_by_another_thread_is_settled() {
    let program = payload_then_flag(cached, |r| {
        on_another_thread(|| {
            r.flush(PAYLOAD_AT, 100);
            r.fence();
        });
    });
    assert_eq!(violated(Backend::Dax, program, flag_vouches), [false; 2]);
}

#[test]
fn a_store_after_the_flush_is_in_flight_again() {
    let program = payload_then_flag(cached, |r| {
        r.write(PAYLOAD_AT, &[0; 100]);
        r.flush(PAYLOAD_AT, 100);
        cached(r);
        r.fence();
    });
    assert_eq!(violated(Backend::Dax, program, flag_vouches), [true; 2]);
}

#[test]
fn only_a_drain_settles_a_file() {
    let program = payload_then_flag(cached, |r| {
        r.flush(PAYLOAD_AT, 100);
        r.fence();
    });
    assert_eq!(violated(Backend::File, program, flag_vouches), [true; 2]);
    let program = payload_then_flag(cached, |r| on_another_thread(|| r.drain().unwrap()));
    assert_eq!(violated(Backend::File, program, flag_vouches), [false; 2]);
}

#[test]
fn acknowledging_too_early_is_found() {
    for backend in ALL {
        let program = |recorder: &Recorder| {
            let region = recorder.region();
            cached(&region);
            region.persist(PAYLOAD_AT, 100).unwrap();
            region.store_u64(FLAG, 1);
            region.flush(FLAG, 8);
            recorder.mark(1);
            region.drain().unwrap();
        };
        assert_eq!(
            violated(backend, program, flag_vouches),
            [true; 2],
            "{backend}"
        );
    }
}

/// Two words in one line need no flush between them; in two lines they do.
#[test]
fn a_line_keeps_its_order_and_two_do_not() {
    for (first, second, expected) in [(8, 16, false), (16, 8, false), (56, 64, true)] {
        let program = |recorder: &Recorder| {
            let region = recorder.region();
            region.store_u64(first, 5);
            region.store_u64(second, 6);
        };
        let check = |image: &CrashImage| {
            let region = image.region();
            region.load_u64(second) == 0 || region.load_u64(first) == 5
        };
        assert_eq!(
            violated(Backend::Dax, program, check),
            [expected; 2],
            "{first}, {second}"
        );
    }
}

#[test]
fn a_line_keeps_no_order_among_non_temporal_stores() {
    let program = |recorder: &Recorder| recorder.region().write_nt(0, &[1; 16]);
    let check = |image: &CrashImage| {
        let region = image.region();
        region.load_u64(8) == 0 || region.load_u64(0) != 0
    };
    assert_eq!(violated(Backend::Dax, program, check), [true; 2]);
    // Nor among any stores, where the kernel copies a page while it is being stored to.
    let ordinary = |recorder: &Recorder| recorder.region().write(0, &[1; 16]);
    assert_eq!(violated(Backend::Dax, ordinary, check), [false; 2]);
    assert_eq!(violated(Backend::File, ordinary, check), [true; 2]);
}

#[test]
fn words_are_whole_and_longer_things_are_not() {
    let whole = |off: u64, len: u64| {
        move |image: &CrashImage| {
            let bytes = image.region().read_vec(off, len);
            bytes.iter().all(|b| *b == bytes[0])
        }
    };
    for backend in ALL {
        for (off, len, torn) in [(8, 8, false), (4, 4, false), (4, 8, true), (8, 16, true)] {
            let store = |recorder: &Recorder| recorder.region().write(off, &vec![1; len as usize]);
            assert_eq!(
                violated(backend, store, whole(off, len)),
                [torn; 2],
                "{len} at {off}"
            );
        }
    }
}

/// The device holds the payload, persistent memory the flag.
fn block_then_flag(steps: fn(&dyn BlockDevice)) -> impl Fn(&Recorder) {
    move |recorder| {
        let region = recorder.region();
        steps(&*recorder.device());
        region.store_u64(FLAG, 1);
        region.persist(FLAG, 8).unwrap();
        recorder.mark(1);
    }
}

fn flag_vouches_for_block(image: &CrashImage) -> bool {
    let valid = image.region().load_u64(FLAG) == 1;
    let mut block = [0; BLOCK];
    image.device().read(1, &mut block).unwrap();
    assert_eq!(block, image.device_block(1));
    (!valid || block == [3; BLOCK]) && (valid || image.acked().is_empty())
}

#[test]
fn the_device_needs_a_flush_after_the_write() {
    let correct = block_then_flag(|d| {
        d.write(1, &[3; BLOCK]).unwrap();
        d.flush().unwrap();
    });
    type Program<'a> = (&'a str, fn(&dyn BlockDevice));
    let wrong: [Program<'_>; 4] = [
        ("no flush", |d| d.write(1, &[3; BLOCK]).unwrap()),
        ("flush before the write", |d| {
            d.flush().unwrap();
            d.write(1, &[3; BLOCK]).unwrap();
        }),
        ("another write after the flush", |d| {
            d.write(1, &[3; BLOCK]).unwrap();
            d.flush().unwrap();
            d.write(1, &[4; BLOCK]).unwrap();
        }),
        ("discarded", |d| {
            d.write(1, &[3; BLOCK]).unwrap();
            d.flush().unwrap();
            d.discard(1, 1).unwrap();
        }),
    ];
    for backend in ALL {
        assert_eq!(
            violated(backend, &correct, flag_vouches_for_block),
            [false; 2],
            "{backend}"
        );
        for (what, steps) in wrong {
            let program = block_then_flag(steps);
            assert_eq!(
                violated(backend, program, flag_vouches_for_block),
                [true; 2],
                "{what}"
            );
        }
    }
}

#[test]
fn device_writes_are_torn_by_sectors_but_not_inside_them() {
    let program = |recorder: &Recorder| recorder.device().write(0, &[1; BLOCK]).unwrap();
    let sector_whole = |image: &CrashImage| {
        image
            .device_block(0)
            .chunks(512)
            .all(|sector| sector.iter().all(|b| *b == sector[0]))
    };
    let block_whole =
        |image: &CrashImage| [[0; BLOCK], [1; BLOCK]].contains(&image.device_block(0));
    let ascending = |image: &CrashImage| image.device_block(0).is_sorted_by(|a, b| a >= b);
    assert_eq!(violated(Backend::Dax, program, sector_whole), [false; 2]);
    assert_eq!(violated(Backend::Dax, program, block_whole), [true; 2]);
    assert_eq!(
        violated(Backend::Dax, program, ascending),
        [true; 2],
        "sectors have no order"
    );
}

#[test]
fn in_flight_names_what_was_forgotten() {
    let recorder = Recorder::new(LEN, 4, Backend::Dax);
    let region = recorder.region();
    region.write(64, &[1; 8]);
    let line = line!() + 1;
    region.write(1024, &[1; 100]);
    recorder.device().write(2, &[1; BLOCK]).unwrap();
    region.persist(64, 8).unwrap();
    let trace = recorder.trace();
    let left = trace.in_flight(trace.points().last().unwrap());
    assert_eq!(left.len(), 2);
    assert_eq!(
        (left[0].medium, left[0].off, left[0].len),
        (Medium::Pmem, 1024, 100)
    );
    assert_eq!((left[0].site.file(), left[0].site.line()), (file!(), line));
    assert_eq!(
        (left[1].medium, left[1].off),
        (Medium::Device, 2 * BLOCK as u64)
    );
    assert!(left[0].to_string().contains("programs.rs"));
    let lost = trace.explore(&Budget::default()).last().unwrap();
    assert!(lost.to_string().contains("programs.rs"), "{lost}");
}
