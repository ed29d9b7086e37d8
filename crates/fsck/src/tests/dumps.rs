//! What a dump shows: what other readers see, and damage where it is.

use std::sync::Arc;

use quayfs_fs::volume::{Access, Volume};
use quayfs_layout::config::COPIES;
use quayfs_layout::extent::INLINE;
use quayfs_layout::inode::ROOT;
use quayfs_layout::{BLOCK, Ino};

use super::support::{BY, Disk, NAMES};
use crate::dump::{Shown, Structure, Window, dump as shown_by, text};

const ALL: Window = Window {
    first: 0,
    lines: usize::MAX,
};

/// Of a private copy, which recovery may change.
fn dump_of(disk: &Disk, what: Structure, window: Window) -> Shown {
    let copy = Arc::new(disk.region.load().unwrap());
    let device = Arc::clone(&disk.device);
    let volume = Volume::from_parts(copy, device, Access::ReadOnly).unwrap();
    shown_by(&volume, what, window)
}

fn dump(disk: &Disk, what: Structure) -> Shown {
    dump_of(disk, what, ALL)
}

fn find<'a>(shown: &'a Shown, name: &str) -> Option<&'a Shown> {
    let Shown::Fields(fields) = shown else {
        panic!("{name} in {shown:?}")
    };
    let found = fields.iter().find(|(other, _)| *other == name);
    found.map(|(_, value)| value)
}

#[track_caller]
fn get<'a>(shown: &'a Shown, name: &str) -> &'a Shown {
    find(shown, name).unwrap_or_else(|| panic!("{name} in {shown:?}"))
}

#[track_caller]
fn number(shown: &Shown, name: &str) -> u64 {
    match get(shown, name) {
        Shown::Number(n) => *n,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
fn list<'a>(shown: &'a Shown, name: &str) -> &'a [Shown] {
    match get(shown, name) {
        Shown::List(all) => all,
        other => panic!("{name}: {other:?}"),
    }
}

fn is(text: &str) -> Shown {
    Shown::Text(text.into())
}

#[test]
fn the_superblock_says_what_the_volume_is() {
    let (disk, _) = Disk::sample();
    let shown = dump(&disk, Structure::Superblock);
    let config = get(&shown, "configuration");
    assert_eq!(get(config, "label"), &is("test"));
    assert_eq!(get(config, "copy_1"), &is("intact, 0 changes"));
    let geometry = get(&shown, "geometry");
    assert_eq!(number(geometry, "pmem_len"), disk.geo().pmem_len);
    assert_eq!(number(geometry, "node_off"), disk.geo().node_off);
    let header = get(&shown, "data_header");
    assert_eq!(number(header, "blocks"), disk.geo().data_blocks);
    let journal = get(&shown, "journal");
    assert_eq!(get(journal, "clean"), &Shown::Flag(true));
    let report = disk.check();
    assert_eq!(number(journal, "epoch"), u64::from(report.statistics.epoch));
    assert_eq!(number(journal, "digested_seq"), report.statistics.digested);
    // What is damaged is told, and nothing else is missing.
    disk.region.write(COPIES[0] + 100, &[0xff; 8]);
    disk.region.write(disk.geo().jsb_off + 64, &[0xff; 8]);
    disk.device.write(0, &[0; BLOCK]).unwrap();
    let copy = Arc::new(disk.region.load().unwrap());
    let device = Arc::clone(&disk.device);
    let volume = Volume::from_parts_vouched(copy, device, Access::ReadOnly, |_, _, _| true);
    let shown = shown_by(&volume.unwrap(), Structure::Superblock, ALL);
    let config = get(&shown, "configuration");
    assert_eq!(get(config, "copy_0"), &is("checksum mismatch"));
    assert_eq!(get(config, "label"), &is("test"));
    assert_eq!(get(&shown, "data_header"), &is("no QuayFS signature"));
    assert_eq!(get(get(&shown, "journal"), "digested_seq"), &is("damaged"));
}

#[test]
fn inodes_have_their_extents_and_targets() {
    let (disk, s) = Disk::sample();
    let blocks = |ino: Ino| -> Vec<(u64, u64)> {
        let shown = dump(&disk, Structure::Inode(ino));
        let all = list(&shown, "extents").iter();
        all.map(|e| (number(e, "file_block"), number(e, "blocks")))
            .collect()
    };
    let small = dump(&disk, Structure::Inode(s.small));
    assert_eq!(number(&small, "size"), 5000);
    assert_eq!(get(&small, "mode"), &is("100644"));
    assert_eq!(blocks(s.small).iter().map(|(_, n)| n).sum::<u64>(), 2);
    let big = blocks(s.big);
    assert!(big.len() > INLINE, "{big:?}");
    assert!((0..20).all(|i| big.iter().any(|(at, n)| (*at..at + n).contains(&(2 * i)))));
    assert_eq!(
        get(&dump(&disk, Structure::Inode(s.link)), "target"),
        &is("xxxxxxxxxx")
    );
    assert_eq!(
        get(&dump(&disk, Structure::Inode(s.long)), "target"),
        &is(&"x".repeat(200))
    );
    let free = dump(&disk, Structure::Inode(disk.free_ino()));
    assert_eq!(get(&free, "in_use"), &Shown::Flag(false));
    let none = dump(&disk, Structure::Inode(u64::MAX));
    assert!(find(&none, "error").is_some(), "{none:?}");
}

#[test]
fn directories_have_their_names() {
    let (disk, s) = Disk::sample();
    let root = dump(&disk, Structure::Directory(ROOT));
    let mut names: Vec<String> = list(&root, "names")
        .iter()
        .map(|e| match get(e, "name") {
            Shown::Text(name) => name.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    names.sort();
    let all = [
        "attr", "big", "dir", "fifo", "hard", "link", "long", "small", "soft",
    ];
    assert_eq!(names, all);
    let dir = dump(&disk, Structure::Directory(s.dir));
    assert_eq!(list(&dir, "names").len() as u64, NAMES + 1);
    // In two parts.
    let part = |first, lines| dump_of(&disk, Structure::Directory(s.dir), Window { first, lines });
    let first = part(0, 150);
    assert_eq!(list(&first, "names").len(), 150);
    let rest = part(number(&first, "next"), 150);
    assert!(find(&rest, "next").is_none());
    assert_eq!(
        [list(&first, "names"), list(&rest, "names")].concat(),
        list(&dir, "names")
    );
    let file = dump(&disk, Structure::Directory(s.small));
    assert_eq!(get(&file, "error"), &is("not a directory"));
}

#[test]
fn tables_add_up() {
    let (disk, _) = Disk::sample();
    let report = disk.check();
    let s = &report.statistics;
    let table = dump(&disk, Structure::PageTable);
    let runs = list(&table, "entries");
    let sum = |of: &[&Shown]| of.iter().map(|run| number(run, "blocks")).sum::<u64>();
    assert_eq!(sum(&runs.iter().collect::<Vec<_>>()), disk.geo().blocks);
    let written: Vec<&Shown> = runs
        .iter()
        .filter(|run| get(run, "state") == &is("written"))
        .collect();
    assert_eq!(sum(&written), s.verified);
    let nodes = dump(&disk, Structure::Nodes);
    assert_eq!(list(&nodes, "nodes").len() as u64, s.node_pages);
    let free = dump(&disk, Structure::Free);
    let g = disk.geo();
    assert_eq!(number(&free, "blocks_free"), g.visible_blocks() - s.blocks);
    assert_eq!(
        number(&free, "node_pages_free"),
        g.node_pages - s.node_pages
    );
    // Number 0 is never used.
    assert_eq!(number(&free, "inodes_free"), g.inodes() - s.inodes - 1);
    let fresh = dump(&Disk::new(), Structure::PageTable);
    assert_eq!(list(&fresh, "entries").len(), 1);
}

#[test]
fn logs_are_shown_as_they_lie_there() {
    let disk = Disk::new();
    let fs = disk.mount();
    let file = fs.mknod(BY, ROOT, b"file", 0o100_600, 0).unwrap().ino;
    fs.write(file, 0, &[1; 2 * BLOCK], false).unwrap();
    fs.sync_all().unwrap();
    fs.abandon();
    let report = disk.check();
    let records = dump(&disk, Structure::Records);
    assert_eq!(
        list(&records, "records").len() as u64,
        report.statistics.live_records
    );
    assert!(!list(&records, "records").is_empty());
    assert_eq!(list(&dump(&disk, Structure::Slots), "slots").len(), 2);
    assert!(list(&records, "damage").is_empty());
    // The rest as the next mount will find it.
    let inode = dump(&disk, Structure::Inode(file));
    assert_eq!(number(&inode, "size"), 2 * BLOCK as u64);
    assert!(find(&inode, "note").is_none());
    let log = dump(&disk, Structure::TableLog);
    assert_eq!(get(&log, "commit"), get(&log, "spare"));
    assert!(list(&log, "undo").is_empty());
    assert_eq!(
        get(&dump(&disk, Structure::Batches), "batch_log"),
        &is("there is none")
    );
}

#[test]
fn damage_is_shown_where_it_is() {
    let (disk, s) = Disk::sample();
    let (id, _) = disk.geo().inode_place(s.fifo);
    let page = disk.geo().node_page(disk.home(id).unwrap());
    disk.region.write(page + 2000, &[0xff; 64]);
    let inode = dump(&disk, Structure::Inode(s.fifo));
    assert!(find(&inode, "damaged").is_some(), "{inode:?}");
    let node = dump(&disk, Structure::Node(id));
    assert!(find(&node, "damaged").is_some(), "{node:?}");
    let nodes = dump(&disk, Structure::Nodes);
    let damaged = list(&nodes, "nodes").iter();
    let damaged = damaged.filter(|n| get(n, "kind") == &is("damaged"));
    assert_eq!(
        damaged.map(|n| number(n, "node")).collect::<Vec<_>>(),
        [u64::from(id)]
    );
    disk.region.store_u64(disk.geo().l2p_map_off + 8 * 100, 0);
    let table = dump(&disk, Structure::PageTable);
    let damaged = list(&table, "entries").iter();
    let damaged = damaged.filter(|run| get(run, "state") == &is("damaged"));
    let at: Vec<_> = damaged
        .map(|run| (number(run, "lbn"), number(run, "blocks")))
        .collect();
    assert_eq!(at, [(100, 1)]);
    // A journal that cannot be read: the media are shown, with a note.
    disk.region.write(disk.geo().jsb_off, &[0xff; 8]);
    let root = dump(&disk, Structure::Directory(ROOT));
    assert!(find(&root, "note").is_some() && !list(&root, "names").is_empty());
    assert!(find(&dump(&disk, Structure::Records), "error").is_some());
}

#[test]
fn every_page_can_be_looked_at() {
    let (disk, _) = Disk::sample();
    for id in (0..disk.geo().nat_entries as u32).filter(|id| disk.home(*id).is_some()) {
        let node = dump(&disk, Structure::Node(id));
        assert!(find(&node, "damaged").is_none(), "{node:?}");
        assert_ne!(get(&node, "content"), &Shown::List(Vec::new()), "{node:?}");
        let json = serde_json::to_value(&node).unwrap();
        assert_eq!(json["node"], id);
        assert!(text(&node).lines().any(|line| line.starts_with("kind ")));
    }
}
