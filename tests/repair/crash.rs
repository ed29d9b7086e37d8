//! Crashes in the middle of a repair.

use std::sync::Arc;

use quayfs::fsck::repair::Outcome;
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder};
use quayfs_oracle::Media;
use quayfs_pmem::Backend;

use crate::damage::map::Use;
use crate::damage::{Image, Left};
use crate::support::{Harm, How, repair, ruins, tree};

fn media_of(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
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
            let recorder = Recorder::new(damaged.pmem.len() as u64, damaged.device_blocks, backend);
            recorder.region().write(0, &damaged.pmem);
            for (block, bytes) in &damaged.blocks {
                recorder.device().write(*block, bytes).expect("write");
            }
            recorder.settle();
            let media = Media {
                region: recorder.region(),
                device: recorder.device(),
            };
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
