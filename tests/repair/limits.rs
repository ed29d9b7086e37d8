//! What a repair leaves alone, and what it refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs::fs::Fs;
use quayfs::fsck::repair::{Outcome, belongs};
use quayfs::volume::{Access, Volume};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::WordKind;

use crate::damage::map::{Map, Use};
use crate::damage::{self, Image, Left};
use crate::support::{Harm, How, mended, repair, ruins, tree, unchanged};

/// Words that nothing else tells: the volume stays as it is, and the report says so.
#[test]
fn what_cannot_be_repaired_is_left_alone() {
    for left in [Left::Op, Left::Commit] {
        let image = Image::sample(left);
        let g = Map::of(&image).config.geometry;
        for kind in [WordKind::Epoch, WordKind::Digested, WordKind::Retired] {
            let off = g.jsb_off + kind.offset();
            let harm = Harm {
                what: Use::Superblock,
                bytes: off..off + 8,
                how: How::Zeros,
            };
            let damaged = harm.done_to(&image);
            let media = damaged.media();
            let report = repair(&media, false);
            assert_eq!(report.outcome, Outcome::Left, "{kind:?}: {report}");
            assert!(
                report.done.is_empty() && unchanged(&media, &damaged),
                "{report}"
            );
        }
    }
}

/// What is called `lost+found` and is no directory stays what it is.
#[test]
fn lost_and_found_takes_nobodys_name() {
    let image = Image::sample(Left::Clean);
    let media = image.media();
    let fs = Fs::mount_quiet(damage::volume(&media), &image.options).expect("mount");
    fs.symlink(Default::default(), ROOT, b"lost+found", b"elsewhere")
        .expect("symlink");
    fs.shutdown().expect("shutdown");
    drop(fs);
    let image = Image::of(&media, &image.options);
    let mut used = 0;
    for harm in ruins(&image).iter().filter(|h| h.what == Use::NodePage) {
        let damaged = harm.done_to(&image);
        let (report, media) = mended(&image, std::slice::from_ref(harm), false);
        let now = tree(&media);
        let second = now.contains_key("/lost+found.1");
        match now.get("/lost+found") {
            Some(item) if item.mode & 0o170_000 == 0o120_000 => used += u64::from(second),
            // Its name or its inode went with the page; then the name is free.
            _ => assert!(!second, "{report}"),
        }
        drop(damaged);
    }
    assert!(used >= 4, "{used}");
}

/// A device that shows nothing of this volume is not made part of it.
#[test]
fn another_device_is_refused() {
    let (image, other) = (Image::sample(Left::Op), Image::sample(Left::Op));
    let mut noise = image.clone();
    for block in 0..image.device_blocks {
        noise
            .blocks
            .insert(block, damage::content(block as u8, BLOCK));
    }
    let blank = Image {
        blocks: BTreeMap::new(),
        ..image.clone()
    };
    let swapped = Image {
        blocks: other.blocks,
        ..image.clone()
    };
    for (what, image) in [("noise", noise), ("blank", blank), ("another's", swapped)] {
        let media = image.media();
        let volume = Volume::from_parts_vouched(
            Arc::clone(&media.region),
            Arc::clone(&media.device),
            Access::ReadWrite,
            belongs,
        );
        assert!(volume.is_err(), "{what}");
    }
}
