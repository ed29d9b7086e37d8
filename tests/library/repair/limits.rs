//! What a repair leaves alone, and what it refuses.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use quayfs_background::digest;
use quayfs_fs::Fs;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::FsckOptions;
use quayfs_fsck::repair::{Failed, Outcome, belongs, repair_volume};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::WordKind;
use quayfs_layout::node::{self, NodeKind};
use quayfs_oracle::{Media, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

use super::support::{B, Harm, How, check, mended, open, repair, ruins, tree, unchanged};
use quayfs_oracle::damage::map::{Map, Use};
use quayfs_oracle::damage::{self, Image, Left};

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

/// Node pages are written to free places before anything refers to them. With too few of those the
/// tree stays as it is: here all directories have lost their names, so that nearly each page of
/// inodes is to be written again.
#[test]
fn without_enough_free_node_pages_a_repair_ends_before_the_tree() {
    let media = Media::new(&damage::SHAPE, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let mut made = 0;
    loop {
        let name = format!("{made}");
        match fs.mkdir(Default::default(), ROOT, name.as_bytes(), 0o755) {
            Ok(_) => made += 1,
            Err(FsError::NoSpace) => break,
            Err(e) => panic!("{name}: {e}"),
        }
        if made % 100 == 0 {
            digest::digest_all(&fs.e).expect("digest");
        }
    }
    fs.shutdown().expect("shutdown");
    let image = Image::of(&media, &options("noatime"));
    let map = Map::of(&image);
    let leaf_of_root = |bytes: &Range<u64>| {
        let page = &image.pmem[bytes.start as usize..bytes.end as usize];
        node::kind(page) == Some(NodeKind::DirLeaf) && node::owner(page) == ROOT
    };
    let pages = map.pmem.iter().filter(|a| a.what == Use::NodePage);
    let leaves: Vec<_> = pages
        .flat_map(|a| a.bytes.clone().step_by(BLOCK))
        .map(|at| at..at + B)
        .filter(leaf_of_root)
        .collect();
    assert!(leaves.len() > 2, "{leaves:?}");
    let mut damaged = image.clone();
    for bytes in leaves {
        let (what, how) = (Use::NodePage, How::Noise);
        damaged = Harm { what, bytes, how }.done_to(&damaged);
    }
    let media = damaged.media();
    // It is so each time, and costs nothing.
    let mut first = None;
    for _ in 0..2 {
        let all = FsckOptions { check_data: true };
        let result = repair_volume(&mut open(&media), &all, &Default::default());
        let Err(Failed::Pages { needed, free }) = result else {
            panic!("{result:?}");
        };
        assert!(
            needed > free && needed > made / 15,
            "{needed} of {free}, {made} directories"
        );
        let now = Image::of(&media, &image.options);
        assert_eq!(*first.get_or_insert(needed), needed);
        // What has no leaf any more is gone with its name only.
        let report = check(&media, false);
        assert!(!report.is_clean());
        assert_eq!(report.statistics.directories, made as u64 + 1, "{report}");
        let options = options("ro,errors=continue");
        let fs = Fs::mount_quiet(damage::volume(&now.media()), &options).expect("mount");
        let last = fs.getattr(made as u64 / 2).expect("an inode in the middle");
        assert!(last.inode.is_dir());
    }
}
