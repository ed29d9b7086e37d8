//! `fsck --repair`: what it puts right, that it does so once, and that a crash in between does not
//! change where it ends.

mod damage;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use damage::map::{Map, Use};
use damage::{Image, Left};
use quayfs::fs::Fs;
use quayfs::fsck::repair::{Outcome, RepairReport, belongs, repair_volume};
use quayfs::fsck::{self, FsckOptions};
use quayfs::volume::{Access, Volume};
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder};
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::WordKind;
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::Media;
use quayfs_oracle::rng::Rng;
use quayfs_pmem::Backend;

const B: u64 = BLOCK as u64;

fn open(media: &Media) -> Volume {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    Volume::from_parts_vouched(region, device, Access::ReadWrite, belongs).expect("open")
}

fn repair(media: &Media, check_data: bool) -> RepairReport {
    let options = FsckOptions { check_data };
    repair_volume(&open(media), &options, &mut |_| {}).expect("repair")
}

fn check(media: &Media, check_data: bool) -> fsck::FsckReport {
    fsck::check_volume(open(media), &FsckOptions { check_data }).expect("check")
}

/// What a path shows. A file that cannot be read has no content.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    ino: Ino,
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    size: u64,
    content: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

type Tree = BTreeMap<String, Item>;

/// Mounts a volume and reads all of it.
fn tree(media: &Media) -> Tree {
    let options = quayfs_oracle::options("noatime,errors=continue");
    let fs = Fs::mount_quiet(damage::volume(media), &options).expect("mount");
    let tree = read(&fs);
    fs.abandon();
    tree
}

fn read(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let i = fs
            .getattr(ino)
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .inode;
        let content = match i.mode & 0o170_000 {
            0o100_000 => fs.read(ino, 0, i.size as usize).ok(),
            0o120_000 => Some(fs.readlink(ino).expect("readlink")),
            _ => Some(Vec::new()),
        };
        if i.is_dir() {
            fs.readdir(ino, 0, |e| {
                if e.name != b"." && e.name != b".." {
                    let name = String::from_utf8_lossy(&e.name).into_owned();
                    todo.push((format!("{path}/{name}"), e.ino));
                }
                true
            })
            .unwrap_or_else(|e| panic!("{path}: {e}"));
        }
        let names = fs.listxattr(ino).expect("listxattr");
        let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
        let item = Item {
            ino,
            mode: i.mode,
            nlink: i.nlink,
            owner: (i.uid, i.gid),
            size: if i.is_dir() { 0 } else { i.size },
            content,
            xattrs: names
                .map(|n| (n.to_vec(), fs.getxattr(ino, n).expect("getxattr")))
                .collect(),
        };
        tree.insert(if path.is_empty() { "/".into() } else { path }, item);
    }
    tree
}

/// A piece of a volume and what becomes of it.
#[derive(Clone, Debug)]
struct Harm {
    what: Use,
    bytes: Range<u64>,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Bit(u8),
    Zeros,
    Noise,
}

impl Harm {
    fn done_to(&self, image: &Image) -> Image {
        let mut image = image.clone();
        let device = matches!(self.what, Use::DataHeader | Use::Data);
        for off in self.bytes.clone() {
            let byte = match device {
                true => {
                    let block = image.blocks.entry(off / B);
                    &mut block.or_insert_with(|| vec![0; BLOCK])[(off % B) as usize]
                }
                false => &mut image.pmem[off as usize],
            };
            match self.how {
                How::Bit(bit) => *byte ^= 1 << bit,
                How::Zeros => *byte = 0,
                How::Noise => *byte = (off.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u8,
            }
        }
        image
    }
}

/// Repairs a damaged volume and checks what must hold whatever was damaged. Returns what was done.
fn mended(image: &Image, harms: &[Harm], check_data: bool) -> (RepairReport, Media) {
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

/// What the operations of the sample touch whose records wait to be replayed. Of a record that cannot
/// be read any more, and of a slot without a header, nobody can say whose they were.
const IN_RECORDS: [&str; 8] = [
    "/",
    "/small",
    "/big",
    "/new-1",
    "/new-2",
    "/new-3",
    "/dir",
    "/dir/moved",
];

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

/// Structures of which nothing is left. Superblock words that nothing else tells are not among them.
fn ruins(image: &Image) -> Vec<Harm> {
    let map = Map::of(image);
    let g = map.config.geometry;
    let hopeless = |off: u64| {
        let words = [WordKind::Epoch, WordKind::Digested, WordKind::Retired];
        words.iter().any(|w| g.jsb_off + w.offset() == off)
    };
    let mut out = Vec::new();
    for a in map.pmem.iter().chain(&map.device) {
        let size = match a.what {
            Use::Config | Use::NodePage | Use::SlotData | Use::DataHeader => B,
            Use::Superblock | Use::L2pEntry | Use::Nat | Use::Committed => 8,
            Use::L2pLog => (a.bytes.end - a.bytes.start).min(64),
            Use::SlotHeader | Use::Record => a.bytes.end - a.bytes.start,
            Use::LastRecord | Use::L2pChecksum | Use::Data | Use::Dead(_) => continue,
        };
        for start in a.bytes.clone().step_by(size as usize) {
            if a.what == Use::Superblock && hopeless(start) {
                continue;
            }
            for how in [How::Zeros, How::Noise] {
                out.push(Harm {
                    what: a.what,
                    bytes: start..(start + size).min(a.bytes.end),
                    how,
                });
            }
        }
    }
    out
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

/// Reads what can be read of a file.
fn glance(fs: &Fs, ino: Ino) -> Option<Item> {
    let i = fs.getattr(ino).ok()?.inode;
    let content = match i.mode & 0o170_000 {
        0o100_000 => fs.read(ino, 0, i.size as usize).ok()?,
        0o120_000 => fs.readlink(ino).ok()?,
        _ => Vec::new(),
    };
    Some(Item {
        ino,
        mode: i.mode,
        nlink: 0,
        owner: (i.uid, i.gid),
        size: if i.is_dir() { 0 } else { i.size },
        content: Some(content),
        xattrs: Vec::new(),
    })
}

/// `-o ro` mounts a volume whatever is damaged, but for the words without which it knows nothing,
/// and shows nothing wrong.
#[test]
fn a_read_only_mount_shows_what_can_be_read() {
    for left in [Left::Op, Left::Commit, Left::Round] {
        let image = Image::sample(left);
        let whole = tree(&image.media());
        let mut seen = 0;
        let harms = ruins(&image);
        let harms = harms.iter().filter(|h| match h.what {
            Use::L2pEntry | Use::Nat | Use::Committed => h.bytes.start % 88 == 0,
            Use::Superblock | Use::DataHeader => false,
            _ => true,
        });
        for harm in harms {
            let media = harm.done_to(&image).media();
            let before = Image::of(&media, &image.options);
            let copy = Arc::new(media.region.private_copy());
            let volume = Volume::from_parts(copy, Arc::clone(&media.device), Access::ReadOnly);
            let options = quayfs_oracle::options("ro,errors=continue");
            let fs = Fs::mount_quiet(volume.expect("open"), &options);
            let fs = fs.unwrap_or_else(|e| panic!("{harm:?}: {e}"));
            for (path, item) in &whole {
                let mut ino = ROOT;
                let mut names = path.split('/').filter(|n| !n.is_empty());
                let found = names.all(|n| {
                    let attr = fs.lookup(ino, n.as_bytes());
                    attr.is_ok_and(|a| {
                        ino = a.ino;
                        true
                    })
                });
                let Some(now) = glance(&fs, ino).filter(|_| found) else {
                    assert_ne!(harm.what, Use::L2pLog, "{harm:?}: {path} is gone");
                    continue;
                };
                seen += 1;
                let same = now.content == item.content && now.mode == item.mode;
                let logs = matches!(harm.what, Use::Record | Use::SlotHeader | Use::Committed);
                assert!(
                    same || logs && IN_RECORDS.contains(&&path[..]),
                    "{harm:?}: {path}"
                );
            }
            drop(fs);
            let after = Image::of(&media, &image.options);
            assert!(before.pmem == after.pmem && before.blocks == after.blocks);
        }
        assert!(seen > 1000, "{seen}");
    }
}

fn unchanged(media: &Media, before: &Image) -> bool {
    let now = Image::of(media, &before.options);
    now.pmem == before.pmem && now.blocks == before.blocks
}

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
        let named = report
            .done
            .iter()
            .find(|d| d.what.contains("reads as an error"));
        let path = named.and_then(|d| d.path.clone()).expect("a file is named");
        let areas: BTreeSet<_> = report.check.findings.iter().map(|f| f.area).collect();
        assert_eq!(areas, BTreeSet::from([fsck::Area::Content]), "{report}");
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
