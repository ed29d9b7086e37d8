//! A part of a volume gets a second copy, one of the two goes on, and power fails meanwhile: either can, and then the other
//! one is part of no volume.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder, SimDevice};
use quayfs_fs::volume::{Access, Volume, VolumeError, moved_region};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_mkfs::{Identity, MkfsOptions, format_as, mkfs};
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::{Backend, Region};

const IDENTITY: Identity = Identity {
    uuid: *b"a moved volume..",
    data_uuid: *b"its data device.",
    hash_key: [3, 5],
};
const NEXT: [u8; 16] = *b"its next device.";
const OTHER: [u8; 16] = *b"that of the copy";

/// What is acknowledged: there may be copies; one of the two goes on.
const BEGUN: u64 = 1;
const SETTLED: u64 = 2;

const BUDGET: Budget = Budget {
    exhaustive: 200,
    picks: 16,
    random: 16,
    seed: 1,
};

fn media(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

/// A volume that is made ready to be copied, and goes on then.
fn moved(backend: Backend) -> Recorder {
    let geometry = Shape::TINY.geometry();
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
    let (region, device) = (recorder.region(), recorder.device());
    format_as(&region, &*device, geometry, "test", &IDENTITY).unwrap();
    recorder.start_here();
    let mut volume = Volume::from_parts(region, device, Access::ReadWrite).unwrap();
    volume.begin_move(NEXT).unwrap();
    recorder.mark(BEGUN);
    volume.settle_move().unwrap();
    recorder.mark(SETTLED);
    recorder
}

fn open(media: &Media) -> Result<Volume, VolumeError> {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    Volume::from_parts(region, device, Access::ReadWrite)
}

/// The data device as it was when it was copied.
fn old_device() -> Arc<dyn BlockDevice> {
    let made = Media::new_as(&Shape::TINY, Backend::Dax, &IDENTITY);
    let device = SimDevice::unrecorded(made.device.blocks());
    let mut block = vec![0; BLOCK];
    made.device.read(0, &mut block).unwrap();
    device.write(0, &block).unwrap();
    Arc::new(device)
}

/// The copy of a region, of a volume in this state.
fn copied_region(config: &ConfigTable, backend: Backend) -> Arc<Region> {
    let made = Media::new_as(&Shape::TINY, backend, &IDENTITY);
    for off in COPIES {
        let table = moved_region(config, OTHER).encode();
        made.region.write(off, &table);
        made.region.flush(off, BLOCK as u64);
    }
    made.region.drain().unwrap();
    made.region
}

/// The table that counted when the copy was made.
fn config_of_copy() -> ConfigTable {
    let made = Media::new_as(&Shape::TINY, Backend::Dax, &IDENTITY);
    let mut volume = open(&made).unwrap();
    volume.begin_move(NEXT).unwrap();
    volume.config().clone()
}

fn belongs_to_none(media: &Media) {
    let refused = open(media).err();
    assert!(
        matches!(
            refused,
            Some(VolumeError::Pairing { .. } | VolumeError::Header { .. })
        ),
        "{refused:?}"
    );
}

/// What was opened is a volume like any other, and goes on as such.
fn goes_on(media: &Media, uuid: [u8; 16]) {
    let volume = open(media).unwrap();
    assert_eq!(volume.config().data_uuid, uuid);
    assert!(!volume.config().is_moving());
    drop(volume);
    media.mount_quiet(&options("noatime")).shutdown().unwrap();
    media.fsck().unwrap();
}

/// The volume stays where it is, or the same with a copy of its data.
fn judge(image: &CrashImage, backend: Backend) {
    let has_begun = !image.acked().is_empty();
    let old = media(image);
    // Neither of the two has been opened.
    let is_undecided = open_read_only(&old).is_moving() && names_old(&*old.device);
    let uuid = open(&old).unwrap().config().data_uuid;
    assert!(uuid == NEXT || uuid == IDENTITY.data_uuid && !has_begun);
    goes_on(&old, uuid);
    if !has_begun {
        return;
    }
    // Copies that are not gone on with.
    let device = old_device();
    let region = Arc::clone(&old.region);
    belongs_to_none(&Media { region, device });
    let region = copied_region(&config_of_copy(), backend);
    let device = Arc::clone(&old.device);
    belongs_to_none(&Media { region, device });
    if !is_undecided {
        return;
    }
    // Or one of them is gone on with, and the other one is not.
    let new = Media {
        region: copied_region(&config_of_copy(), backend),
        device: media(image).device,
    };
    goes_on(&new, OTHER);
    let left = Media {
        region: media(image).region,
        device: new.device,
    };
    belongs_to_none(&left);
    let new = Media {
        region: media(image).region,
        device: old_device(),
    };
    goes_on(&new, NEXT);
}

fn names_old(device: &dyn BlockDevice) -> bool {
    let mut block = vec![0; BLOCK];
    device.read(0, &mut block).unwrap();
    DataHeader::decode(&block).is_ok_and(|header| header.data_uuid == IDENTITY.data_uuid)
}

fn open_read_only(media: &Media) -> ConfigTable {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    let volume = Volume::from_parts(region, device, Access::ReadOnly).unwrap();
    volume.config().clone()
}

#[test]
fn a_crash_leaves_a_volume_and_at_most_one() {
    for backend in [Backend::Dax, Backend::File] {
        let mut seen = [0; 3];
        for image in moved(backend).trace().explore(&BUDGET) {
            judge(&image, backend);
            seen[image.acked().len()] += 1;
        }
        assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
    }
}

/// Forgotten, each of them leaves none, or two.
#[test]
fn each_order_is_needed() {
    let trace = moved(Backend::Dax).trace();
    let places = trace.orderings();
    assert!(places.len() >= 2, "{places:?}");
    for forgotten in places {
        let noticed = trace.without(forgotten).explore(&BUDGET).any(|image| {
            let judged = AssertUnwindSafe(|| judge(&image, Backend::Dax));
            catch_unwind(judged).is_err()
        });
        assert!(noticed, "{forgotten:?}");
    }
}

/// A daemon had stored the table, and before the next one stores that again it has been changed: as by a move. On the disk
/// it never becomes what it was.
#[test]
fn what_is_stored_again_brings_no_older_table_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = MkfsOptions {
        pmem_size: Some(32 << 20),
        data_size: Some(16 << 20),
        sparse: true,
        ..MkfsOptions::default()
    };
    let path = dir.path().join("vol");
    mkfs(&path, &options).unwrap();
    let stores = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.path().join("stores"))
        .unwrap();
    let open = || Volume::open(&path, Access::ReadWrite, Duration::ZERO).unwrap();
    let change = |volume: &mut Volume, label| {
        let change = |config: &mut ConfigTable| assert!(config.set_label(label));
        volume.change_config(change).unwrap();
    };
    let mut daemon = open();
    daemon.outlive(stores.try_clone().unwrap()).unwrap();
    change(&mut daemon, "older");
    drop(daemon);
    change(&mut open(), "newer");
    let next = open();
    next.outlive(stores).unwrap();
    for off in COPIES {
        let copy = next.region().read_vec(off, BLOCK as u64);
        assert_eq!(ConfigTable::decode(&copy).unwrap().label(), "newer");
    }
    drop(next);
    assert_eq!(open().config().label(), "newer");
}

/// Another volume's device is none of ours, torn or not.
#[test]
fn only_its_own_device_is_taken_for_one_that_was_torn() {
    let media = Media::new_as(&Shape::TINY, Backend::Dax, &IDENTITY);
    let mut volume = open(&media).unwrap();
    volume.begin_move(NEXT).unwrap();
    drop(volume);
    let mut block = vec![0; BLOCK];
    media.device.read(0, &mut block).unwrap();
    for (at, byte) in [(32, b'?'), (20, b'?'), (60, 1)] {
        let mut other = block.clone();
        other[at] = byte;
        media.device.write(0, &other).unwrap();
        belongs_to_none(&media);
    }
    media.device.write(0, &block).unwrap();
    goes_on(&media, NEXT);
}
