//! Crashes in the middle of a repair.

use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder};
use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::repair::Outcome;
use quayfs_layout::bytes;
use quayfs_layout::jsb::EpochWord;
use quayfs_layout::node;
use quayfs_oracle::damage::map::{Map, Use};
use quayfs_oracle::damage::{self, Image, Left};
use quayfs_oracle::{Media, options};
use quayfs_pmem::Backend;

use super::support::{B, Harm, How, check, read, repair, ruins, tree};

fn media_of(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

fn recorded(image: &Image, backend: Backend) -> (Recorder, Media) {
    let recorder = Recorder::new(image.pmem.len() as u64, image.device_blocks, backend);
    recorder.region().write(0, &image.pmem);
    for (block, bytes) in &image.blocks {
        recorder.device().write(*block, bytes).expect("write");
    }
    recorder.start_here();
    let media = Media {
        region: recorder.region(),
        device: recorder.device(),
    };
    (recorder, media)
}

/// A bitmap whose page has been given up says that everything is free, until it is made anew: a user who
/// mounted the volume in between and wrote to it would lose what the bits stood for.
#[test]
fn nobody_writes_to_a_volume_in_the_middle_of_its_repair() {
    let image = Image::sample(Left::Clean);
    let whole = tree(&image.media());
    let config = Map::of(&image).config;
    let (g, salt) = (config.geometry, config.salt());
    let id = g.lbn_bitmap_base as u32;
    let word = bytes::get_u64(&image.pmem, g.nat_entry(id) as usize);
    let page = node::nat_decode(id, word, salt).flatten();
    let off = g.node_page(page.expect("a page"));
    let harm = Harm {
        what: Use::NodePage,
        bytes: off..off + B,
        how: How::Noise,
    };
    let damaged = harm.done_to(&image);
    let (recorder, media) = recorded(&damaged, Backend::Dax);
    assert_eq!(repair(&media, false).outcome, Outcome::Repaired);
    let end = media.region.read_vec(0, media.region.len());
    let mut interrupted = 0;
    for crash in recorder.trace().explore(&Budget::default()) {
        let media = media_of(&crash);
        let word = crash.region().load_u64(g.jsb_off);
        if !EpochWord::decode(word, salt).is_some_and(|e| e.repairing) {
            let pmem = crash.pmem();
            assert!(pmem == damaged.pmem || pmem == end, "{crash}");
            continue;
        }
        interrupted += 1;
        let refused = Fs::mount_quiet(damage::volume(&media), &options("noatime"));
        assert!(matches!(refused, Err(MountError::Repairing)), "{crash}");
        assert!(!check(&media, true).is_clean(), "{crash}");
        let copy = Arc::new(media.region.load().unwrap());
        let volume = Volume::from_parts(copy, Arc::clone(&media.device), Access::ReadOnly);
        let fs = Fs::mount_quiet(volume.expect("open"), &options("ro")).expect("mount");
        assert_eq!(read(&fs), Ok(whole.clone()), "{crash}");
    }
    assert!(interrupted > 10, "{interrupted}");
}

/// A crash in the middle of a repair, and another repair.
#[test]
fn a_crash_during_repair_changes_nothing_about_its_end() {
    let mut images = 0;
    let mut repairs = 0;
    for (left, backend) in [(Left::Op, Backend::Dax), (Left::Round, Backend::File)] {
        let image = Image::sample(left);
        let wanted = |h: &&Harm| {
            matches!(h.how, How::Noise)
                && !matches!(
                    h.what,
                    Use::L2pEntry | Use::Nat | Use::Committed | Use::Superblock
                )
        };
        for harm in ruins(&image).iter().filter(wanted).step_by(2) {
            let damaged = harm.done_to(&image);
            let (recorder, media) = recorded(&damaged, backend);
            let trace = {
                let report = repair(&media, false);
                assert_eq!(report.outcome, Outcome::Repaired, "{harm:?}: {report}");
                recorder.trace()
            };
            let end = tree(&media);
            let budget = Budget {
                exhaustive: 4,
                picks: 1,
                random: 1,
                seed: 5,
            };
            repairs += 1;
            for crash in trace.explore(&budget) {
                let media = media_of(&crash);
                let report = repair(&media, false);
                assert_ne!(report.outcome, Outcome::Left, "{harm:?}, {crash}: {report}");
                let now = tree(&media);
                let diff: Vec<_> = end
                    .keys()
                    .chain(now.keys())
                    .filter(|k| end.get(*k) != now.get(*k))
                    .collect();
                assert!(diff.is_empty(), "{harm:?}, {crash}: {diff:?}: {report}");
                images += 1;
            }
        }
    }
    eprintln!("{images} crashes of {repairs} repairs");
}
