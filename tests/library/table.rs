//! The configuration table is changed, and power fails meanwhile: the old one or the new one counts, whole, and the next
//! mount makes its two copies equal.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quayfs_crashsim::{Budget, CrashImage, Recorder};
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::{Area, FsckOptions, check_volume};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable};
use quayfs_mkfs::{Identity, format_as};
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::Backend;

const IDENTITY: Identity = Identity {
    uuid: *b"a tuned volume..",
    data_uuid: *b"its data device.",
    hash_key: [3, 5],
};

/// What is said of itself by a volume, and how often that has been changed.
type Said = (String, String, u64);

fn said(config: &ConfigTable) -> Said {
    (config.label(), config.options(), config.changes)
}

fn before() -> Said {
    ("test".into(), String::new(), 0)
}

fn after() -> Said {
    ("renamed".into(), "commit=30".into(), 1)
}

fn media(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

/// A volume whose table is changed, from where on everything is recorded. `spoil`: a copy that is damaged before.
fn changed(backend: Backend, spoil: Option<usize>) -> Recorder {
    let geometry = Shape::TINY.geometry();
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
    let (region, device) = (recorder.region(), recorder.device());
    format_as(&region, &*device, geometry, "test", &IDENTITY).unwrap();
    if let Some(copy) = spoil {
        region.write(COPIES[copy] + 200, &[0xff; 8]);
        region.persist(COPIES[copy] + 200, 8).unwrap();
    }
    recorder.start_here();
    let mut volume = Volume::from_parts(region, device, Access::ReadWrite).unwrap();
    volume
        .change_config(|config| {
            assert!(config.set_label("renamed") && config.set_options("commit=30"));
        })
        .unwrap();
    assert_eq!(said(volume.config()), after());
    recorder.mark(1);
    recorder
}

fn judge(image: &CrashImage) {
    let media = media(image);
    let counts = said(media.volume().config());
    assert!(
        counts == after() || counts == before() && image.acked().is_empty(),
        "{counts:?}: {image}"
    );
    // A copy that was being written is torn, or says what does not count; nothing else is found.
    let report = check_volume(media.volume(), &FsckOptions { check_data: true }).unwrap();
    let torn = |area: Area| area == Area::Config;
    assert!(
        report.findings.iter().all(|f| torn(f.area)) && report.findings.len() <= 1,
        "{report}: {image}"
    );
    media.mount_quiet(&options("noatime")).shutdown().unwrap();
    let copies = COPIES.map(|off| media.region.read_vec(off, BLOCK as u64));
    assert!(copies[0] == copies[1], "{image}");
    assert_eq!(said(media.volume().config()), counts, "{image}");
    media.fsck().unwrap();
}

#[test]
fn a_crash_leaves_the_old_table_or_the_new_one() {
    let budget = Budget {
        exhaustive: 200,
        picks: 16,
        random: 16,
        seed: 1,
    };
    for backend in [Backend::Dax, Backend::File] {
        for spoil in [None, Some(0), Some(1)] {
            let trace = changed(backend, spoil).trace();
            let mut seen = [false; 2];
            for image in trace.explore(&budget) {
                judge(&image);
                let config = said(media(&image).volume().config());
                seen[usize::from(config == after())] = true;
            }
            assert_eq!(seen, [true; 2], "{backend} {spoil:?}");
        }
    }
}

/// Forgotten, each of them leaves a volume that is neither.
#[test]
fn each_drain_is_needed() {
    let budget = Budget {
        exhaustive: 200,
        picks: 16,
        random: 16,
        seed: 1,
    };
    let trace = changed(Backend::Dax, Some(0)).trace();
    let orderings = trace.orderings();
    assert_eq!(orderings.len(), 2, "{orderings:?}");
    for forgotten in orderings {
        let noticed = trace.without(forgotten).explore(&budget).any(|image| {
            let judged = AssertUnwindSafe(|| judge(&image));
            catch_unwind(judged).is_err()
        });
        assert!(noticed, "{forgotten:?}");
    }
}

#[test]
fn copies_that_no_change_explains_are_found() {
    let media = Media::new(&Shape::TINY, Backend::Dax);
    let mut other = media.volume().config().clone();
    for (changes, found) in [(1, 0), (0, 1), (2, 1)] {
        other.changes = changes;
        assert!(other.set_label("other"));
        media.region.write(COPIES[1], &other.encode());
        media.region.persist(COPIES[1], BLOCK as u64).unwrap();
        let report = check_volume(media.volume(), &FsckOptions::default()).unwrap();
        assert_eq!(report.count(), found, "{changes}: {report}");
    }
}
