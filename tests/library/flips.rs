//! Every flipped bit of live metadata is found. What is live is said by a map of the volume that
//! is made from the format; the rest may hold anything.
//!
//! `QUAYFS_FLIPS=all` flips every bit, in mode `commit` too where it is as in mode `op`; otherwise one
//! bit of every byte. With `--nocapture` each test says how many flips were found, and by what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quayfs_blockdev::BlockDevice;
use quayfs_fs::Fs;
use quayfs_fs::scrub::{Options, Pass};
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::{FsckOptions, FsckReport};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::ROOT;
use quayfs_layout::{BLOCK, LINE};
use quayfs_oracle::Media;
use quayfs_oracle::damage::map::{Area, Map, Use};
use quayfs_oracle::damage::{self, Image, Left, Place, volume};

const THREADS: usize = 2;

/// What found a flip: the area of the checker's first finding, or that the volume cannot be opened.
type By = String;

/// What a check of this volume says; nothing if it refuses the volume.
fn check(media: &Media, check_data: bool) -> Option<FsckReport> {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    let volume = Volume::from_parts(region, device, Access::ReadWrite).ok()?;
    quayfs_fsck::check_volume(volume, &FsckOptions { check_data }).ok()
}

/// Whether a check of this volume says that something is wrong, and what that is about.
fn complaint(media: &Media, check_data: bool) -> Option<By> {
    match check(media, check_data) {
        Some(report) if report.is_clean() => None,
        Some(report) => report.findings.first().map(|f| f.area.to_string()),
        None => Some("refused".into()),
    }
}

fn all_bits() -> bool {
    std::env::var("QUAYFS_FLIPS").is_ok_and(|v| v == "all")
}

/// Offsets and bits to be flipped in a piece: of every byte one bit, or all.
fn bits(area: &Area) -> Vec<(u64, u8)> {
    let all = all_bits();
    let of = |off: u64| match all {
        true => 0..8,
        false => ((off ^ off >> 3) % 8) as u8..((off ^ off >> 3) % 8) as u8 + 1,
    };
    // Content of blocks is covered by one checksum as node pages are; its bytes are many.
    let step = match area.what {
        Use::Data | Use::SlotData if !all => 61,
        _ => 1,
    };
    let offs = area.bytes.clone().step_by(step);
    offs.flat_map(|off| of(off).map(move |bit| (off, bit)))
        .collect()
}

/// What was flipped, and what became of it.
#[derive(Default)]
struct Tally {
    flips: BTreeMap<Use, BTreeMap<By, u64>>,
    missed: Vec<String>,
}

impl Tally {
    fn count(&mut self, what: Use, by: Option<By>, where_: impl FnOnce() -> String) {
        match by {
            Some(by) => *self.flips.entry(what).or_default().entry(by).or_default() += 1,
            None => self.missed.push(format!("{what:?}: {}", where_())),
        }
    }

    fn add(&mut self, other: Self) {
        for (what, by) in other.flips {
            let mine = self.flips.entry(what).or_default();
            by.into_iter()
                .for_each(|(by, n)| *mine.entry(by).or_default() += n);
        }
        self.missed.extend(other.missed);
    }

    /// One line for each kind of structure, for the record; and the verdict.
    fn report(&self, left: Left, map: &Map) {
        let structures = map.structures();
        for (what, by) in &self.flips {
            let n: u64 = by.values().sum();
            let by: Vec<_> = by.iter().map(|(by, n)| format!("{by} {n}")).collect();
            eprintln!(
                "{left:?}: {what:?}: {} structures, {n} flips found, by {}",
                structures[what],
                by.join(", ")
            );
        }
        let found: u64 = self.flips.values().flat_map(|by| by.values()).sum();
        let first = &self.missed[..self.missed.len().min(20)];
        assert!(
            self.missed.is_empty(),
            "{left:?}: {} flips were not found, {found} were; the first: {first:#?}",
            self.missed.len()
        );
        assert!(found > 0);
        eprintln!("{left:?}: all of {found} flips were found");
    }
}

/// Flips of one check: of one structure, or the same one of several.
struct Flip {
    what: Use,
    offs: Vec<u64>,
    bit: u8,
}

impl Flip {
    fn done_to(&self, media: &Media, off: u64) {
        match self.what {
            Use::DataHeader | Use::Data => {
                let (block, at) = (off / BLOCK as u64, (off % BLOCK as u64) as usize);
                flip_block(&*media.device, block, at, self.bit);
            }
            _ => {
                let old = media.region.read_vec(off, 1);
                media.region.write(off, &[old[0] ^ 1 << self.bit]);
            }
        }
    }

    /// Flips, checks and flips back.
    fn check(&self, media: &Media, names: &Names, tally: &mut Tally) {
        let check_data = !self.what.is_metadata();
        let mut alone = self.offs.clone();
        if self.offs.len() > 1 {
            self.offs.iter().for_each(|off| self.done_to(media, *off));
            if let Some(report) = check(media, check_data) {
                alone.retain(|off| {
                    let phrase = names.phrase(self.what, *off);
                    let named = report.findings.iter().find(|f| f.what.contains(&phrase));
                    if let Some(f) = named {
                        tally.count(self.what, Some(f.area.to_string()), String::new);
                    }
                    named.is_none()
                });
            }
            self.offs.iter().for_each(|off| self.done_to(media, *off));
        }
        for off in alone {
            self.done_to(media, off);
            let by = complaint(media, check_data);
            tally.count(self.what, by, || format!("bit {} of byte {off}", self.bit));
            self.done_to(media, off);
        }
    }
}

fn flip_block(device: &dyn BlockDevice, block: u64, at: usize, bit: u8) {
    let mut buf = vec![0; BLOCK];
    device.read(block, &mut buf).unwrap();
    buf[at] ^= 1 << bit;
    device.write(block, &buf).unwrap();
}

/// How the checker's findings call what has a checksum for a whole block.
struct Names(Geometry);

impl Names {
    fn phrase(&self, what: Use, off: u64) -> String {
        let (g, b) = (&self.0, BLOCK as u64);
        match what {
            Use::NodePage => format!(" in page {}: ", (off - g.node_off) / b),
            Use::SlotData => {
                let slot = (off - g.slot_data_off) / b;
                let (buffer, index) = (slot / g.slots_per_buffer, slot % g.slots_per_buffer);
                format!("staging buffer {buffer}, slot {index}: ")
            }
            Use::Data => format!("physical block {}: ", off / b - g.data_start),
            _ => unreachable!("one at a time"),
        }
    }
}

/// All flips of the pieces that are `wanted`. If every bit is flipped, the same bit of all blocks of
/// one kind is flipped at once: each has its checksum to itself and has to be named, and one that is
/// not named is flipped alone.
fn flips(areas: &[Area], wanted: impl Fn(Use) -> bool) -> Vec<Flip> {
    let (mut out, mut layers) = (Vec::new(), BTreeMap::<_, Vec<u64>>::new());
    for a in areas.iter().filter(|a| wanted(a.what)) {
        for (off, bit) in bits(a) {
            if all_bits() && matches!(a.what, Use::NodePage | Use::SlotData | Use::Data) {
                let layer = (a.what, off % BLOCK as u64, bit);
                layers.entry(layer).or_default().push(off);
            } else {
                let (what, offs) = (a.what, vec![off]);
                out.push(Flip { what, offs, bit });
            }
        }
    }
    let layers = layers.into_iter();
    out.extend(layers.map(|((what, _, bit), offs)| Flip { what, offs, bit }));
    out
}

fn tally(image: &Image, names: &Names, work: &[Flip]) -> Tally {
    let next = AtomicUsize::new(0);
    let one = || {
        let (media, mut tally) = (image.media(), Tally::default());
        while let Some(flip) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            flip.check(&media, names, &mut tally);
        }
        tally
    };
    let mut total = Tally::default();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS).map(|_| s.spawn(one)).collect();
        threads
            .into_iter()
            .for_each(|t| total.add(t.join().expect("no panic")));
    });
    total
}

/// Flips what `wanted` picks, and expects every flip to be found.
fn all_are_found(left: Left, wanted: impl Fn(Use) -> bool) {
    let image = Image::sample(left);
    let map = Map::of(&image);
    assert_eq!(complaint(&image.media(), true), None);
    let areas = [&map.pmem[..], &map.device[..]].concat();
    let work = flips(&areas, wanted);
    tally(&image, &Names(map.config.geometry), &work).report(left, &map);
}

#[test]
fn every_flip_on_a_volume_of_a_dead_daemon_is_found() {
    all_are_found(Left::Op, |what| what.is_metadata());
}

/// What differs from the above: records below the last commit, and the words around them.
#[test]
fn every_flip_in_the_logs_of_mode_commit_is_found() {
    all_are_found(Left::Commit, |what| {
        let as_above = matches!(
            what,
            Use::Config | Use::NodePage | Use::Nat | Use::L2pEntry | Use::SlotData
        );
        what.is_metadata() && (all_bits() || !as_above)
    });
}

#[test]
fn every_flip_in_the_log_of_an_open_round_is_found() {
    all_are_found(Left::Round, |what| {
        matches!(
            what,
            Use::L2pLog | Use::L2pEntry | Use::Superblock | Use::Committed
        )
    });
}

#[test]
fn every_flip_on_an_unmounted_volume_is_found() {
    all_are_found(Left::Clean, |what| {
        matches!(
            what,
            Use::L2pLog | Use::Superblock | Use::Committed | Use::Nat
        )
    });
}

#[test]
fn flips_of_content_and_of_its_checksums_are_found_by_reading_it() {
    all_are_found(Left::Op, |what| {
        matches!(what, Use::L2pChecksum | Use::Data | Use::DataHeader)
    });
}

/// Flips the same bit of every block of every file, staged or on the data device, of a mounted
/// volume that a daemon has left behind. Each read of one has to fail, and a scrub has to find as
/// many as there are: blocks have their checksums to themselves.
#[test]
fn a_flip_in_any_block_of_a_file_is_found_at_read_and_by_scrub() {
    for left in [Left::Op, Left::Commit] {
        let image = Image::sample(left);
        let media = image.media();
        let fs = Fs::mount_quiet(volume(&media), &image.options).unwrap();
        let blocks = damage::blocks(&fs);
        let staged = blocks
            .iter()
            .filter(|b| matches!(b.place, Place::Slot(_)))
            .count();
        assert!(
            staged > 5 && blocks.len() - staged > 5,
            "{left:?}: {staged} of {}",
            blocks.len()
        );
        let area = Area {
            what: Use::Data,
            bytes: 0..BLOCK as u64,
        };
        let (mut positions, mut at_read, mut by_scrub) = (0, 0, 0);
        for (at, bit) in bits(&area) {
            let flip = || {
                for b in &blocks {
                    match b.place {
                        Place::Slot(off) => {
                            let old = media.region.read_vec(off + at, 1);
                            media.region.write(off + at, &[old[0] ^ 1 << bit]);
                        }
                        Place::Device(block) => {
                            flip_block(&*media.device, block, at as usize, bit);
                        }
                    }
                }
            };
            flip();
            for b in &blocks {
                let read = fs.read(b.ino, b.block * BLOCK as u64, BLOCK);
                let what = format!("{left:?}: {b:?}, bit {bit} of byte {at}");
                assert!(matches!(read, Err(ref e) if e.is_io()), "{what}: {read:?}");
                at_read += 1;
            }
            let pass = Pass::new(Options::default());
            pass.run(&fs.e);
            let found = pass.status().findings;
            assert_eq!(
                found,
                blocks.len() as u64,
                "{left:?}: bit {bit} of byte {at}"
            );
            by_scrub += found;
            positions += 1;
            flip();
        }
        let pass = Pass::new(Options::default());
        pass.run(&fs.e);
        assert_eq!(pass.status().findings, 0, "{left:?}");
        eprintln!(
            "{left:?}: {} blocks of files, {staged} of them staged, {positions} bits of each: \
             {at_read} found at read, {by_scrub} by scrub",
            blocks.len()
        );
    }
}

/// In mode `op` a record that nothing follows in its lane may have been torn by a crash, and no
/// check can tell rot from that, nor from a payload that was cut off before the fence of both: it is as if the
/// operation had never happened.
#[test]
fn a_flip_in_the_last_record_of_a_lane_takes_away_that_record_and_nothing_else() {
    let image = Image::sample(Left::Op);
    let map = Map::of(&image);
    let media = image.media();
    let records = |media: &Media| {
        let report =
            quayfs_fsck::check_volume(volume(media), &FsckOptions { check_data: true }).unwrap();
        assert!(report.is_clean(), "{report}");
        report.statistics.live_records
    };
    let all = records(&media);
    let areas = |what: Use| map.pmem.iter().filter(move |a| a.what == what);
    let lasts = areas(Use::LastRecord).count();
    assert_eq!(lasts, damage::SHAPE.buffers as usize);
    assert!(areas(Use::LastPayload).count() > 0);
    for a in areas(Use::LastRecord).chain(areas(Use::LastPayload)) {
        let step = match a.what {
            _ if all_bits() => 1,
            Use::LastPayload => 1009,
            _ => 17,
        };
        for (off, bit) in bits(a).into_iter().step_by(step) {
            let old = media.region.read_vec(off, 1);
            media.region.write(off, &[old[0] ^ 1 << bit]);
            assert_eq!(records(&media), all - 1, "bit {bit} of byte {off}");
            media.region.write(off, &old);
        }
    }
}

/// The map's other half: what it calls dead may hold anything, and nothing notices.
#[test]
fn what_the_map_calls_dead_is_dead() {
    for left in [Left::Op, Left::Commit, Left::Round, Left::Clean] {
        let image = Image::sample(left);
        let map = Map::of(&image);
        for list in [&map.pmem, &map.device] {
            assert_eq!(list[0].bytes.start, 0);
            assert!(list.windows(2).all(|w| w[0].bytes.end == w[1].bytes.start));
        }
        let mut garbled = image.clone();
        for a in map.pmem.iter().filter(|a| matches!(a.what, Use::Dead(_))) {
            for off in a.bytes.clone() {
                garbled.pmem[off as usize] ^= (off % 251) as u8 | 1;
            }
        }
        for a in map.device.iter().filter(|a| matches!(a.what, Use::Dead(_))) {
            for block in a.bytes.clone().step_by(BLOCK) {
                garbled
                    .blocks
                    .insert(block / BLOCK as u64, vec![0xa5; BLOCK]);
            }
        }
        let media = garbled.media();
        assert_eq!(complaint(&media, true), None, "{left:?}");
        let tree = |image: &Image| {
            let fs = Fs::mount_quiet(volume(&image.media()), &image.options).unwrap();
            quayfs_oracle::dump::dump(&fs, ROOT).unwrap()
        };
        assert!(tree(&image) == tree(&garbled), "{left:?}");
    }
}

/// The volume has what it is supposed to have; otherwise the tests above test nothing.
#[test]
fn the_sample_has_everything() {
    let sizes = Map::of(&Image::sample(Left::Op)).sizes();
    let b = BLOCK as u64;
    for (what, least) in [
        (Use::Config, 2 * b),
        (Use::Superblock, 7 * 8),
        (Use::L2pEntry, damage::SHAPE.blocks * 8),
        (Use::L2pChecksum, 10 * 4),
        (Use::L2pLog, 16),
        (Use::Record, 1000),
        (Use::LastRecord, 128),
        (Use::LastPayload, b),
        (Use::Committed, 64 * 8),
        (Use::SlotHeader, 6 * (LINE as u64 - 8)),
        (Use::SlotData, 6 * b),
        (Use::Nat, 8),
        (Use::NodePage, 12 * b),
        (Use::DataHeader, b),
        (Use::Data, 10 * b),
    ] {
        assert!(
            sizes.get(&what).copied().unwrap_or(0) >= least,
            "{what:?}: {sizes:?}"
        );
    }
    let sizes = Map::of(&Image::sample(Left::Round)).sizes();
    assert!(sizes[&Use::L2pLog] >= 16 + 2 * 64 + 4 * 32, "{sizes:?}");
}

/// Media that are no volume, not a whole one, or not of one volume.
#[test]
fn wrong_media_are_refused_or_reported() {
    let (a, b) = (Image::sample(Left::Clean), Image::sample(Left::Clean));
    let refused = |what: &str, image: &Image| {
        let media = image.media();
        let found = complaint(&media, false);
        assert!(found.is_some(), "{what}");
    };
    let swapped = Image {
        blocks: b.blocks.clone(),
        ..a.clone()
    };
    refused("the data of another volume", &swapped);
    let blank = Image {
        blocks: Default::default(),
        ..a.clone()
    };
    refused("a data device of zeros", &blank);
    let short = Image {
        device_blocks: a.device_blocks / 2,
        ..a.clone()
    };
    let short = Image {
        blocks: short
            .blocks
            .into_iter()
            .filter(|(n, _)| *n < a.device_blocks / 2)
            .collect(),
        ..short
    };
    refused("half of a data device", &short);
    for len in [a.pmem.len() / 2, 8192, 4096] {
        refused(
            "a truncated region",
            &Image {
                pmem: a.pmem[..len].to_vec(),
                ..a.clone()
            },
        );
    }
    refused(
        "a region of zeros",
        &Image {
            pmem: vec![0; a.pmem.len()],
            ..a.clone()
        },
    );
    let noise =
        |n: usize| (0..n as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    refused(
        "a region of noise",
        &Image {
            pmem: noise(a.pmem.len()).collect(),
            ..a.clone()
        },
    );
    // Everything behind the configuration table, area by area, zeroed or full of noise.
    let map = Map::of(&a);
    let g = map.config.geometry;
    let areas = [
        g.jsb_off..g.l2p_map_off,
        g.l2p_map_off..g.l2p_crc_off,
        g.l2p_log_off..g.lane_off,
        g.slot_hdr_off..g.slot_data_off,
        g.nat_off..g.node_off,
        g.node_off..g.pmem_len,
    ];
    for r in areas {
        let r = r.start as usize..r.end as usize;
        let mut image = a.clone();
        image.pmem[r.clone()].fill(0);
        refused(&format!("zeros in {r:?}"), &image);
        let n = r.len();
        image.pmem[r.clone()].copy_from_slice(&noise(n).collect::<Vec<_>>());
        refused(&format!("noise in {r:?}"), &image);
    }
    // The other volume's structures behind this one's configuration.
    let mut image = a.clone();
    image.pmem[8192..].copy_from_slice(&b.pmem[8192..]);
    refused("the region of another volume", &image);
}
