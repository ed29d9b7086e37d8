//! What a repair costs: nothing for a flipped bit, and no more than it says for ruins.

use quayfs_fs::Fs;
use quayfs_fsck::repair::{Outcome, RepairReport};
use quayfs_layout::Ino;
use quayfs_layout::bytes::{get_u64, put_u64};
use quayfs_layout::config::ConfigTable;
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::{EpochWord, WordKind};
use quayfs_oracle::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

use super::support::{
    B, Harm, How, IN_RECORDS, Tree, check, mended, repair, ruins, tree, unchanged,
};
use quayfs_oracle::damage::map::{Map, Use};
use quayfs_oracle::damage::{self, Image, Left};

/// Files that a repair does not name, and that do not lie below a directory that it names, are what
/// they were.
fn others_are_untouched(harm: &Harm, before: &Tree, after: &Tree, report: &RepairReport) {
    let named: BTreeSet<&str> = report
        .done
        .iter()
        .filter_map(|d| d.path.as_deref())
        .collect();
    let numbers: BTreeSet<Ino> = after
        .iter()
        .filter(|(path, _)| named.contains(&path[..]))
        .map(|(_, item)| item.ino)
        .collect();
    let nameless = matches!(harm.what, Use::Record | Use::SlotHeader | Use::Committed);
    for (path, item) in before {
        let mut ways = path.match_indices('/').map(|(n, _)| &path[..n.max(1)]);
        let excused = named.contains(&path[..])
            || ways.any(|above| named.contains(above))
            || numbers.contains(&item.ino)
            || path == "/" && named.contains("/lost+found")
            || nameless && IN_RECORDS.contains(&&path[..]);
        let same = after.get(path) == Some(item);
        assert!(
            same || excused,
            "{harm:?}: {path} has changed, and nothing says so: {report}"
        );
    }
}

/// A lost store of the epoch word, or rot that its check does not show, costs nothing either.
#[test]
fn an_epoch_word_that_records_contradict_is_set_right() {
    for (left, off_by) in [
        (Left::Op, &[-1, 1, 7][..]),
        (Left::Commit, &[-1, 1, 7]),
        // Nothing is left to be replayed that a later epoch would hide.
        (Left::Round, &[-1]),
        (Left::Clean, &[-1]),
    ] {
        let image = Image::sample(left);
        let whole = tree(&image.media());
        let config = ConfigTable::decode(&image.pmem[..B as usize]).expect("config");
        let at = (config.geometry.jsb_off + WordKind::Epoch.offset()) as usize;
        let word = EpochWord::decode(get_u64(&image.pmem, at), config.salt()).expect("epoch");
        for by in off_by {
            let mut other = image.clone();
            let epoch = word.epoch.checked_add_signed(*by).expect("an epoch");
            let lie = EpochWord { epoch, ..word }.encode(config.salt());
            put_u64(&mut other.pmem, at, lie);
            let (report, media) = mended(&other, &[], true);
            let set = report.done.iter().any(|d| d.what.contains("Epoch word"));
            assert!(set && report.found > 0, "{left:?} {by}: {report}");
            assert!(tree(&media) == whole, "{left:?} {by}: {report}");
        }
    }
}

/// One flipped bit anywhere costs nothing.
#[test]
fn a_flipped_bit_is_healed_without_loss() {
    for (left, step) in [
        (Left::Op, 173),
        (Left::Commit, 389),
        (Left::Round, 89),
        (Left::Clean, 977),
    ] {
        let image = Image::sample(left);
        let whole = tree(&image.media());
        let map = Map::of(&image);
        let mut n = 0;
        let mut skip = 0;
        for a in map
            .pmem
            .iter()
            .chain(&map.device)
            .filter(|a| a.what.is_live())
        {
            // Something of every piece, and more of large ones.
            let mut off = a.bytes.start + skip % (a.bytes.end - a.bytes.start).min(step);
            skip += 7;
            while off < a.bytes.end {
                let harm = Harm {
                    what: a.what,
                    bytes: off..off + 1,
                    how: How::Bit((skip % 8) as u8),
                };
                let (report, media) = mended(&image, std::slice::from_ref(&harm), true);
                assert!(
                    report.found > 0 && !report.done.is_empty(),
                    "{harm:?}: {report}"
                );
                let now = tree(&media);
                assert!(now == whole, "{left:?}, {harm:?}: {report}");
                n += 1;
                skip += 1;
                off += step;
            }
        }
        eprintln!("{left:?}: {n} flips healed");
    }
}

/// Every structure in ruins, one at a time: the volume is sound afterwards, it mounts, and what is
/// not named by the report is what it was.
#[test]
fn ruins_cost_no_more_than_the_report_says() {
    for left in [Left::Op, Left::Commit, Left::Round, Left::Clean] {
        let image = Image::sample(left);
        let whole = tree(&image.media());
        let all = ruins(&image);
        let mut counts: BTreeMap<Use, u64> = BTreeMap::new();
        for harm in &all {
            let n = counts.entry(harm.what).or_default();
            *n += 1;
            // Entries of maps are many and alike.
            let alike = matches!(harm.what, Use::L2pEntry | Use::Nat | Use::Committed);
            if alike && *n % 13 != 1 {
                continue;
            }
            let damaged = harm.done_to(&image).media();
            if check(&damaged, false).is_clean() {
                // Zeros where zeros were.
                continue;
            }
            let (report, media) = mended(&image, std::slice::from_ref(harm), false);
            others_are_untouched(harm, &whole, &tree(&media), &report);
        }
        eprintln!("{left:?}: {counts:?}");
    }
}

/// Two structures at a time.
#[test]
fn pairs_of_ruins_are_repaired_as_well() {
    let mut rng = Rng::new(7);
    for left in [Left::Op, Left::Commit, Left::Round] {
        let image = Image::sample(left);
        let all = ruins(&image);
        let big: Vec<&Harm> = all
            .iter()
            .filter(|h| !matches!(h.what, Use::L2pEntry | Use::Nat | Use::Committed))
            .collect();
        for _ in 0..100 {
            let one = big[rng.below(big.len() as u64) as usize].clone();
            let other = all[rng.below(all.len() as u64) as usize].clone();
            // Both copies of the configuration are all there is to know the volume by.
            if one.what == Use::Config && other.what == Use::Config {
                continue;
            }
            let pair = [one, other];
            let damaged = pair[1].done_to(&pair[0].done_to(&image)).media();
            if check(&damaged, false).is_clean() {
                continue;
            }
            let (_, media) = mended(&image, &pair, false);
            tree(&media);
        }
    }
}

/// A block whose newest content is lost reads as an error, with the name of its file, until it is
/// written again.
#[test]
fn a_lost_block_is_an_error_and_no_lie() {
    let image = Image::sample(Left::Op);
    let map = Map::of(&image);
    let slots = map.pmem.iter().filter(|a| a.what == Use::SlotData);
    let mut lost = 0;
    for a in slots {
        let harm = Harm {
            what: a.what,
            bytes: a.bytes.clone(),
            how: How::Noise,
        };
        let media = harm.done_to(&image).media();
        let report = repair(&media, true);
        if report.outcome == Outcome::Repaired {
            // A newer version was staged elsewhere.
            continue;
        }
        lost += 1;
        assert_eq!(report.lost_blocks, 1);
        let named = report
            .done
            .iter()
            .find(|d| d.what.contains("reads as an error"));
        let path = named.and_then(|d| d.path.clone()).expect("a file is named");
        let areas: BTreeSet<_> = report.check.findings.iter().map(|f| f.area).collect();
        assert_eq!(
            areas,
            BTreeSet::from([quayfs_fsck::Area::Content]),
            "{report}"
        );
        assert_eq!(tree(&media)[&path].content, None, "{path}");
        let options = quayfs_oracle::options("noatime");
        let fs = Fs::mount_quiet(damage::volume(&media), &options).expect("mount");
        let name = path.rsplit('/').next().expect("name").as_bytes();
        let dir = match path.starts_with("/dir/") {
            true => fs.lookup(ROOT, b"dir").expect("lookup").ino,
            false => ROOT,
        };
        let ino = fs.lookup(dir, name).expect("lookup").ino;
        let size = fs.getattr(ino).expect("getattr").inode.size;
        let content = damage::content(99, size.next_multiple_of(B) as usize);
        fs.write(ino, 0, &content, false).expect("write");
        assert_eq!(fs.read(ino, 0, content.len()).expect("read"), content);
        fs.forget(ino, 1);
        fs.shutdown().expect("shutdown");
        let after = check(&media, true);
        assert!(after.is_clean(), "{after}");
    }
    assert!(lost >= 6, "{lost}");
    // Left as it is, it is found again, and nothing is done about it again.
    let harm = ruins(&image)
        .into_iter()
        .filter(|h| h.what == Use::SlotData);
    for harm in harm.take(4) {
        let media = harm.done_to(&image).media();
        repair(&media, true);
        let before = Image::of(&media, &image.options);
        let again = repair(&media, true);
        assert!(
            again.done.is_empty() && unchanged(&media, &before),
            "{again}"
        );
    }
}
