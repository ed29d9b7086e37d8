//! The data device gets another length, and power fails meanwhile: the volume is as it was or as it is to be, with all its
//! files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder, SimDevice, Trace};
use quayfs_fs::volume::Volume;
use quayfs_fs::{Caller, Fs};
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::{Bounds, Geometry, Sizes};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::l2p::BlockState;
use quayfs_layout::node::BITS_PER_PAGE;
use quayfs_mkfs::{Identity, format_as};
use quayfs_oracle::dump::{Tree, dump};
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::{Backend, Region};
use quayfs_resize::{in_use, resize_volume, rewrite};
use quayfs_shown::progress::Meter;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

const IDENTITY: Identity = Identity {
    uuid: *b"resized volume..",
    data_uuid: *b"its data device.",
    hash_key: [3, 5],
};

const MODES: [(&str, Backend); 3] = [
    ("noatime", Backend::Dax),
    ("noatime,durability=commit", Backend::File),
    ("noatime,checkpoint=swap", Backend::Volatile),
];

/// Room for a second page table in the slots.
fn geometry() -> Geometry {
    Shape {
        slots: 96,
        ..Shape::TINY
    }
    .geometry()
}

/// Room for many more blocks, and so for bitmaps with other ids.
fn roomy() -> Geometry {
    let geometry = Geometry::lay_out(&Sizes {
        data_blocks: 8 + 512,
        data_start: 8,
        mirror_blocks: 7,
        blocks: 512,
        spare: 16,
        buffers: 2,
        lane_bytes: 160 << 10,
        slots_per_buffer: 128,
        l2p_entries: 512,
        node_pages: 700,
        intent_pages: 2,
        quota_pages: 1,
    });
    assert!(geometry.is_sound());
    geometry
}

/// Writes files and takes some away again, so that blocks are not where they were first.
fn fill(fs: &Fs, files: u64) {
    for n in 0..files {
        let name = format!("file {n}");
        let file = fs
            .mknod(ME, ROOT, name.as_bytes(), S_IFREG | 0o600, 0)
            .unwrap()
            .ino;
        fs.write(file, n * 100, &bytes(n, 3 * BLOCK + n as usize), false)
            .unwrap();
    }
    fs.sync_all().unwrap();
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    quayfs_background::checkpoint::round(&fs.e).unwrap();
    for n in 0..files {
        let name = format!("file {n}");
        let file = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
        fs.write(file, 4096, &bytes(n + 1000, BLOCK), false)
            .unwrap();
        if n % 3 == 1 {
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        fs.forget(file, 2);
    }
}

/// Puts blocks of files to the end of the device, as rounds do some day.
fn scatter(media: &Media, fs: &Fs) {
    let start = fs.e.config.geometry.data_start;
    let mut txn = fs.e.ppt.begin().unwrap();
    let (mut content, mut left) = (vec![0; BLOCK], Vec::new());
    for lbn in 0..20 {
        let (here, there) = (txn.lookup(lbn).unwrap(), txn.lookup(lbn + 400).unwrap());
        if here.state != BlockState::Written || there.state != BlockState::Zero {
            continue;
        }
        media.device.read(start + here.pbn, &mut content).unwrap();
        media.device.write(start + there.pbn, &content).unwrap();
        txn.swap(lbn, lbn + 400).unwrap();
        txn.set_written(lbn, here.crc).unwrap();
        txn.set_zero(lbn + 400).unwrap();
        left.push(start + here.pbn);
    }
    assert!(!txn.is_empty());
    media.device.flush().unwrap();
    txn.commit(1).unwrap();
    // What comes back there has to be written again.
    for block in left {
        media.device.write(block, &[0xaa; BLOCK]).unwrap();
    }
    media.device.flush().unwrap();
}

fn tree(media: &Media, mode: &str) -> Tree {
    let fs = media.mount_quiet(&options(mode));
    let tree = dump(&fs, ROOT).unwrap();
    fs.shutdown().unwrap();
    tree
}

fn blocks(media: &Media) -> u64 {
    media.volume().config().geometry.data_blocks
}

fn resized(media: &Media, blocks: u64) {
    let mut volume: Volume = media.volume();
    resize_volume(&mut volume, blocks, &Meter::default()).unwrap();
    assert_eq!(volume.config().geometry.data_blocks, blocks);
}

/// A volume with files on media in memory, closed.
fn volume(geometry: Geometry, mode: &str, backend: Backend, device: u64) -> Media {
    let zeros = vec![0; geometry.pmem_len as usize];
    let region = Arc::new(Region::from_image(zeros, None, backend));
    let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(device));
    format_as(&region, &*device, geometry, "test", &IDENTITY).unwrap();
    let media = Media { region, device };
    let fs = media.mount_quiet(&options(mode));
    fill(&fs, 12);
    fs.shutdown().unwrap();
    let fs = media.mount_quiet(&options(mode));
    scatter(&media, &fs);
    fs.shutdown().unwrap();
    media
}

#[test]
fn there_and_back_with_all_files() {
    for (mode, backend) in MODES {
        for geometry in [geometry(), roomy()] {
            let media = volume(geometry, mode, backend, 100_000);
            let mut files = tree(&media, mode);
            let used = in_use(&media.volume()).unwrap();
            let Bounds { least, most } = geometry.bounds(&used);
            assert!(least < geometry.data_blocks && geometry.data_blocks < most);
            let most = most.min(media.device.blocks());
            for blocks in [
                most,
                geometry.data_blocks,
                least,
                geometry.data_blocks + 1,
                geometry.data_blocks + 600,
                least + 1,
            ] {
                // What was possible once need not be from elsewhere, but is said.
                let at = media.volume().config().geometry;
                let used = in_use(&media.volume()).unwrap();
                if at.resized(blocks, &used).is_err() {
                    continue;
                }
                resized(&media, blocks);
                media.fsck().unwrap();
                assert_eq!(tree(&media, mode), files, "{blocks}");
                media.fsck().unwrap();
                // What is free there can be used, and given back.
                let fs = media.mount_quiet(&options(mode));
                let file = fs.mknod(ME, ROOT, b"more", S_IFREG, 0).unwrap().ino;
                for n in 0..10 {
                    fs.write(file, n * 8192, &bytes(n, BLOCK), false).unwrap();
                }
                fs.sync_all().unwrap();
                fs.unlink(ROOT, b"more").unwrap();
                fs.forget(file, 1);
                fs.shutdown().unwrap();
                media.fsck().unwrap();
                let now = tree(&media, mode);
                // Times of the root, where a file came and went.
                files.insert(Vec::new(), now[&Vec::new()].clone());
                assert_eq!(now, files, "{blocks}");
            }
        }
    }
}

#[test]
fn bitmaps_of_many_blocks_have_ids_of_their_own() {
    let (mode, backend) = MODES[0];
    let media = volume(roomy(), mode, backend, 100_000);
    let files = tree(&media, mode);
    let many = 2 * BITS_PER_PAGE + 100;
    resized(&media, many);
    let geometry = media.volume().config().geometry;
    assert!(geometry.lbn_bitmaps_moved());
    media.fsck().unwrap();
    assert_eq!(tree(&media, mode), files);
}

/// Each part of the work says how much it is, and comes to its end.
#[test]
fn how_far_it_is_is_told() {
    let (mode, backend) = MODES[0];
    let media = volume(geometry(), mode, backend, 10_000);
    let meter = Meter::default();
    assert_eq!(meter.look(), None);
    let mut volume = media.volume();
    resize_volume(&mut volume, geometry().data_blocks - 300, &meter).unwrap();
    let look = meter.look().unwrap();
    // Page table, blocks that move, slot headers.
    assert_eq!((look.number, look.what.as_str()), (3, "slot headers"));
    let g = volume.config().geometry;
    let headers = g.slots_per_buffer * g.buffers * 64;
    assert_eq!((look.done, look.total), (headers, headers));
}

#[test]
fn what_is_in_use_is_not_cut_off() {
    let (mode, backend) = MODES[0];
    let media = volume(geometry(), mode, backend, 10_000);
    let used = in_use(&media.volume()).unwrap();
    let least = geometry().bounds(&used).least;
    let mut volume = media.volume();
    let refused = resize_volume(&mut volume, least - 1, &Meter::default());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("last block in use")
    );
    let most = geometry().bounds(&used).most;
    let refused = resize_volume(&mut volume, most + 1, &Meter::default());
    assert!(refused.unwrap_err().to_string().contains("resize --pmem"));
    media.fsck().unwrap();
}

/// A volume that is recorded from where it is resized on.
struct Run {
    recorder: Recorder,
    files: Tree,
    old: u64,
    new: u64,
}

impl Run {
    fn new(geometry: Geometry, (mode, backend): (&str, Backend), new: u64) -> Self {
        let made = volume(geometry, mode, backend, new.max(geometry.data_blocks));
        let files = tree(&made, mode);
        let device = made.device.blocks();
        let recorder = Recorder::new(geometry.pmem_len, device, backend);
        let image = made.region.read_vec(0, geometry.pmem_len);
        recorder.region().write(0, &image);
        recorder.region().flush(0, geometry.pmem_len);
        recorder.region().drain().unwrap();
        let mut block = vec![0; BLOCK];
        for n in 0..device {
            made.device.read(n, &mut block).unwrap();
            if block.iter().any(|b| *b != 0) {
                recorder.device().write(n, &block).unwrap();
            }
        }
        recorder.device().flush().unwrap();
        recorder.start_here();
        let media = Media {
            region: recorder.region(),
            device: recorder.device(),
        };
        resized(&media, new);
        recorder.mark(1);
        Self {
            recorder,
            files,
            old: geometry.data_blocks,
            new,
        }
    }

    fn judge(&self, image: &CrashImage, mode: &str) -> bool {
        let media = Media {
            region: Arc::new(image.region()),
            device: Arc::new(image.device()),
        };
        let now = blocks(&media);
        let may_be_old = image.acked().is_empty();
        assert!(
            now == self.new || now == self.old && may_be_old,
            "{now}: {image}"
        );
        // The mount makes the copies of the configuration table equal; nothing else is to be put right.
        assert!(tree(&media, mode) == self.files, "{image}");
        media.fsck().unwrap_or_else(|e| panic!("{e}: {image}"));
        assert_eq!(blocks(&media), now, "{image}");
        // Once more, from there.
        if now == self.old {
            resized(&media, self.new);
            media.fsck().unwrap_or_else(|e| panic!("{e}: {image}"));
            assert!(tree(&media, mode) == self.files, "{image}");
        }
        now == self.new
    }
}

const BUDGET: Budget = Budget {
    exhaustive: 8,
    picks: 3,
    random: 3,
    seed: 1,
};

fn crashes(geometry: Geometry, new: u64) {
    for (mode, backend) in MODES.into_iter().take(2) {
        let run = Run::new(geometry, (mode, backend), new);
        let mut seen = [0; 2];
        for image in run.recorder.trace().explore(&BUDGET) {
            seen[usize::from(run.judge(&image, mode))] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

/// Forgotten, each of them leaves a volume that is neither, or has other files.
#[test]
fn each_order_is_needed() {
    let (mode, backend) = MODES[0];
    let run = Run::new(geometry(), (mode, backend), geometry().data_blocks - 300);
    let trace = run.recorder.trace();
    let places = trace.orderings();
    assert!(places.len() >= 2, "{places:?}");
    for forgotten in places {
        let noticed = trace.without(forgotten).explore(&BUDGET).any(|image| {
            let judged = AssertUnwindSafe(|| run.judge(&image, mode));
            catch_unwind(judged).is_err()
        });
        assert!(noticed, "{forgotten:?}");
    }
}

/// A region of another length, written beside the old one: complete on the medium when it is done, since it has the name of the
/// volume then.
#[test]
fn a_new_region_is_durable_before_it_takes_the_place_of_the_old_one() {
    for (mode, backend) in MODES.into_iter().take(2) {
        let media = volume(geometry(), mode, backend, 10_000);
        let files = tree(&media, mode);
        let old = media.volume();
        let used = in_use(&old).unwrap();
        let to = geometry().with_region(20 << 20, &used).unwrap();
        let recorder = Recorder::new(to.pmem_len, 1, backend);
        recorder.start_here();
        rewrite(&old, &recorder.region(), &to, &Meter::default()).unwrap();
        recorder.mark(1);
        let judge = |image: &CrashImage| {
            let new = Media {
                region: Arc::new(image.region()),
                device: Arc::clone(&media.device),
            };
            new.fsck().unwrap_or_else(|e| panic!("{e}: {image}"));
            let config = new.volume().config().clone();
            assert_eq!((config.geometry, config.changes), (to, 1), "{image}");
            let fs = new.mount_quiet(&options(mode));
            assert!(dump(&fs, ROOT).unwrap() == files, "{image}");
        };
        let when_done = |trace: Trace| {
            let images = trace.explore(&BUDGET).filter(|i| !i.acked().is_empty());
            images.collect::<Vec<_>>()
        };
        let images = when_done(recorder.trace());
        assert!(!images.is_empty());
        images.iter().for_each(judge);
        // It is the last drain that makes it so.
        let places = recorder.trace().orderings();
        let last = *places.last().unwrap();
        let judged = |image| catch_unwind(AssertUnwindSafe(|| judge(image)));
        let images = when_done(recorder.trace().without(last));
        assert!(
            images.iter().any(|image| judged(image).is_err()),
            "{places:?}"
        );
    }
}

#[test]
fn a_crash_while_it_grows() {
    crashes(geometry(), geometry().data_blocks + 200);
}

#[test]
fn a_crash_while_it_shrinks() {
    crashes(geometry(), geometry().data_blocks - 300);
}

#[test]
fn a_crash_while_pages_give_way_and_bitmaps_move() {
    crashes(roomy(), 3 * BITS_PER_PAGE + 100);
}
