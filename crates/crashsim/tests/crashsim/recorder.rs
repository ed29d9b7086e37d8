//! Recording, restarting and looking.

use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, WriteRun};
use quayfs_crashsim::{Budget, CrashImage, Died, Recorder};
use quayfs_pmem::Backend;
use std::collections::HashSet;

const LEN: u64 = 3 * 4096;

fn recorded(backend: Backend) -> Recorder {
    let recorder = Recorder::new(LEN, 8, backend);
    let (region, device) = (recorder.region(), recorder.device());
    for i in 0..6_u64 {
        region.write_nt(i * 1000, &[i as u8 + 1; 900]);
        device.write(i, &[i as u8 + 1; BLOCK]).unwrap();
        if i % 2 == 0 {
            region.drain().unwrap();
        } else {
            device.flush().unwrap();
        }
        recorder.mark(i);
    }
    recorder
}

#[test]
fn the_same_seed_makes_the_same_images_and_another_makes_others() {
    let trace = recorded(Backend::Dax).trace();
    let fingerprints = |seed| -> Vec<u64> {
        trace
            .explore(&Budget::SMALL.with_seed(seed))
            .map(|i| i.fingerprint())
            .collect()
    };
    assert_eq!(fingerprints(1), fingerprints(1));
    assert_ne!(fingerprints(1), fingerprints(2));
}

#[test]
fn no_image_comes_twice_for_the_same_acknowledgements() {
    for backend in [Backend::Dax, Backend::File] {
        let trace = recorded(backend).trace();
        let mut seen = HashSet::new();
        for image in trace.explore(&Budget::SMALL) {
            let blocks: Vec<_> = (0..8).map(|block| image.device_block(block)).collect();
            assert!(
                seen.insert((image.acked().len(), image.pmem(), blocks)),
                "again: {image}"
            );
        }
        assert!(seen.len() > 100);
    }
}

#[test]
fn exploring_makes_what_the_points_make() {
    let trace = recorded(Backend::Dax).trace();
    let key = |image: &CrashImage| (image.acked().len(), image.fingerprint());
    let explored: HashSet<_> = trace.explore(&Budget::SMALL).map(|i| key(&i)).collect();
    let by_point: HashSet<_> = trace
        .points()
        .flat_map(|point| trace.images(point, &Budget::SMALL))
        .map(|image| key(&image))
        .collect();
    assert_eq!(explored, by_point);
}

#[test]
fn the_last_point_can_have_everything_and_the_first_has_nothing() {
    let recorder = recorded(Backend::Dax);
    let trace = recorder.trace();
    let first = trace.images(trace.points().next().unwrap(), &Budget::default());
    let first: Vec<_> = first.collect();
    assert_eq!(first.len(), 1);
    assert!(first[0].pmem().iter().all(|b| *b == 0) && first[0].acked().is_empty());
    let now = recorder.region().read_vec(0, LEN);
    let last = trace.points().last().unwrap();
    assert!(
        trace
            .images(last, &Budget::default())
            .any(|image| image.pmem() == now)
    );
    assert_eq!(
        trace
            .images(last, &Budget::default())
            .next()
            .unwrap()
            .acked(),
        [0, 1, 2, 3, 4, 5]
    );
}

#[test]
fn all_views_of_an_image_agree_and_are_independent() {
    let trace = recorded(Backend::File).trace();
    let image = trace.explore(&Budget::SMALL).last().unwrap();
    let region = image.region();
    assert_eq!(region.backend(), Backend::File);
    assert!(region.read_vec(0, LEN) == image.pmem());
    let device = image.device();
    let mut blocks = vec![0; 8 * BLOCK];
    device.read(0, &mut blocks).unwrap();
    assert!(
        blocks
            .chunks(BLOCK)
            .zip(0..)
            .all(|(block, i)| block == image.device_block(i))
    );
    let before = image.fingerprint();
    region.write(0, &[0xee; 100]);
    device.write(0, &[0xee; BLOCK]).unwrap();
    assert_eq!(image.fingerprint(), before);
    assert!(image.device_block(0) != [0xee; BLOCK] && image.pmem()[0] != 0xee);
    let mut rotten = image.clone();
    rotten.overwrite_pmem(5000, &[0xee]);
    rotten.overwrite_device(5000, &[0xee]);
    assert_eq!(
        (rotten.pmem()[5000], rotten.device_block(1)[904]),
        (0xee, 0xee)
    );
    assert_ne!(rotten.fingerprint(), image.fingerprint());
    assert_ne!(image.pmem()[5000], 0xee);
}

/// A crash during what is done after a crash starts from the image of the first.
#[test]
fn crashes_nest() {
    let recorder = Recorder::new(LEN, 1, Backend::Dax);
    recorder.region().store_u64(0, 1);
    let mut outcomes = HashSet::new();
    for image in recorder.trace().explore(&Budget::default()) {
        let again = image.restart();
        assert!(again.is_empty() && again.backend() == Backend::Dax);
        let region = again.region();
        let found = region.load_u64(0);
        region.store_u64(64, 10 + found);
        for second in again.trace().explore(&Budget::default()) {
            let region = second.region();
            outcomes.insert((region.load_u64(0), region.load_u64(64)));
        }
    }
    assert_eq!(outcomes, HashSet::from([(0, 0), (1, 0), (0, 10), (1, 11)]));
}

#[test]
fn settling_makes_all_durable_and_forgets_it() {
    let recorder = recorded(Backend::Dax);
    let now = recorder.region().read_vec(0, LEN);
    recorder.start_here();
    assert!(recorder.is_empty());
    recorder.region().store_u64(8192, u64::MAX);
    let images: Vec<_> = recorder.trace().explore(&Budget::default()).collect();
    assert_eq!(images.len(), 2);
    assert!(images[0].pmem() == now && images[0].acked().is_empty());
    assert_eq!(images[1].device_block(5), [6; BLOCK]);
}

#[test]
fn a_trace_does_not_see_what_comes_later() {
    let recorder = recorded(Backend::Dax);
    let trace = recorder.trace();
    let before: Vec<_> = trace
        .explore(&Budget::SMALL)
        .map(|i| i.fingerprint())
        .collect();
    recorder.region().write(0, &[0xaa; 4096]);
    recorder.region().drain().unwrap();
    let after: Vec<_> = trace
        .explore(&Budget::SMALL)
        .map(|i| i.fingerprint())
        .collect();
    assert_eq!(before, after);
    assert_eq!(trace.to_string().lines().count() + 2, recorder.len());
}

#[test]
fn flushing_lines_is_no_point_of_its_own() {
    let recorder = Recorder::new(LEN, 1, Backend::Dax);
    let region = recorder.region();
    region.store_u64(0, 1);
    region.flush(0, 8);
    region.fence();
    let points: Vec<_> = recorder.trace().points().map(|p| p.events()).collect();
    assert_eq!(points, [0, 1, 3]);
}

#[test]
fn drains_fail_on_demand_and_settle_nothing() {
    let recorder = Recorder::new(LEN, 1, Backend::File);
    let region = recorder.region();
    region.store_u64(0, 1);
    recorder.fail_drains(libc::EIO);
    assert_eq!(region.drain().unwrap_err().raw_os_error(), Some(libc::EIO));
    let trace = recorder.trace();
    let last = trace.points().last().unwrap();
    let images = trace.images(last, &Budget::default());
    assert!(images.map(|i| i.region().load_u64(0)).any(|word| word == 0));
}

#[test]
fn the_device_does_what_a_device_does() {
    let recorder = Recorder::new(LEN, 8, Backend::Dax);
    let device = recorder.device();
    let (one, two) = ([1; BLOCK], [2; 2 * BLOCK]);
    let runs = [
        WriteRun {
            block: 5,
            bufs: &[&one, &two],
        },
        WriteRun {
            block: 0,
            bufs: &[&one],
        },
    ];
    device.write_many(&runs).unwrap();
    assert_eq!(recorder.len(), 2, "one event for each run");
    let mut back = [0; 3 * BLOCK];
    device
        .read_many(&mut [ReadRun {
            block: 5,
            buf: &mut back,
        }])
        .unwrap();
    assert!(back[..BLOCK] == one && back[BLOCK..] == two);
    device.discard(6, 2).unwrap();
    device.read(5, &mut back).unwrap();
    assert!(back[..BLOCK] == one && back[BLOCK] != 2 && back[BLOCK] != 0);
    let events = recorder.len();
    assert!(device.write(8, &one).is_err() && device.write(0, &one[1..]).is_err());
    assert!(
        device
            .write_many(&[
                runs[1],
                WriteRun {
                    block: 7,
                    bufs: &[&two]
                }
            ])
            .is_err()
    );
    assert!(device.discard(7, 2).is_err() && device.discard(0, u64::MAX).is_err());
    assert_eq!(recorder.len(), events, "what is refused is not done");
    assert_eq!((device.blocks(), device.is_read_only()), (8, false));
}

#[test]
fn destructors_of_the_dead_may_order_but_that_has_no_effect() {
    /// Settles what has been stored, in every way there is.
    struct Settles<'a>(&'a Recorder);
    impl Drop for Settles<'_> {
        fn drop(&mut self) {
            let region = self.0.region();
            region.flush(0, 8);
            region.fence();
            region.drain().unwrap();
            region.settle_ranges(&[0..512, 512..1024]).unwrap();
            region.drain_settled().unwrap();
            self.0.device().flush().unwrap();
        }
    }
    let recorder = Recorder::new(LEN, 8, Backend::File);
    recorder.die_after(1);
    let death = std::thread::scope(|s| {
        let daemon = || {
            let settles = Settles(&recorder);
            let region = settles.0.region();
            region.write(0, &[1; 8]);
            region.write(8, &[2; 8]);
        };
        s.spawn(daemon).join()
    });
    assert!(death.unwrap_err().is::<Died>());
    assert!(recorder.has_died());
    assert_eq!(recorder.len(), 1, "the first store alone");
    assert_eq!(recorder.region().read_vec(0, 16), [[1; 8], [0; 8]].concat());
}
