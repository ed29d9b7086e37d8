//! Volumes in ruins, their repair, and what must hold whatever was damaged.

use quayfs_fsck::repair::{Outcome, RepairReport};
use quayfs_layout::BLOCK;
use quayfs_oracle::Media;
use quayfs_oracle::damage::Image;
pub use quayfs_oracle::damage::harm::{Harm, How, ruins};
pub use quayfs_oracle::damage::shown::{Item, Tree, check, open, read, repair, tree};

pub const B: u64 = BLOCK as u64;

/// Repairs a damaged volume and checks what must hold whatever was damaged. Returns what was done.
pub fn mended(image: &Image, harms: &[Harm], check_data: bool) -> (RepairReport, Media) {
    let mut damaged = image.clone();
    for h in harms {
        damaged = h.done_to(&damaged);
    }
    let media = damaged.media();
    let report = repair(&media, check_data);
    assert_ne!(report.outcome, Outcome::Left, "{harms:?}: {report}");
    let after = check(&media, check_data);
    assert!(
        after.is_clean() && after.skipped.is_empty(),
        "{harms:?}: {report}\n{after}"
    );
    // Once is enough.
    let before = Image::of(&media, &image.options);
    let again = repair(&media, check_data);
    assert_eq!(again.outcome, Outcome::Clean, "{harms:?}: {again}");
    assert!(again.done.is_empty());
    let now = Image::of(&media, &image.options);
    assert!(
        now.pmem == before.pmem && now.blocks == before.blocks,
        "{harms:?}: changed again"
    );
    (report, media)
}

/// What is touched by the operations of the sample whose records wait to be replayed. A record that
/// cannot be read any more, or a slot without a header, does not tell which of these it belonged to.
pub const IN_RECORDS: [&str; 8] = [
    "/",
    "/small",
    "/big",
    "/new-1",
    "/new-2",
    "/new-3",
    "/dir",
    "/dir/moved",
];

pub fn unchanged(media: &Media, before: &Image) -> bool {
    let now = Image::of(media, &before.options);
    now.pmem == before.pmem && now.blocks == before.blocks
}
