//! Node pages with something in them that cannot be, and a checksum that vouches for it: one after the other, in all
//! volumes. A mount meets exactly what the checker finds, and whatever it meets, it loses no name that it had shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quayfs_fs::{Caller, Fs};
use quayfs_hostile::volumes::{BASES, Base, Media};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::node::{self, HEADER, NodeKind};
use quayfs_layout::{BLOCK, Ino};
use quayfs_options::MountOptions;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// Bytes of a page that are changed, one at a time: header fields that the checksum covers, and the first things in it.
fn places(page: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let used = (node::used(page) as usize).min(BLOCK - HEADER);
    let within = HEADER..HEADER + 160;
    let end = HEADER + used.saturating_sub(24);
    (2..40)
        .chain(within)
        .chain([end, end + 8, BLOCK - 16, BLOCK - 1])
}

/// The pages in use.
fn pages(base: &Base) -> Vec<(u32, usize)> {
    let g = &base.config.geometry;
    let word = |id| quayfs_layout::bytes::get_u64(&base.pmem, g.nat_entry(id) as usize);
    let home = |id| node::nat_decode(id, word(id), base.config.salt()).flatten();
    let ids = 1..g.nat_entries as u32;
    ids.filter_map(|id| Some((id, g.node_page(home(id)?) as usize)))
        .collect()
}

/// What each directory lists, as far as it can be listed to its end.
fn listing(fs: &Fs) -> BTreeMap<Ino, BTreeSet<Vec<u8>>> {
    let (mut all, mut todo) = (BTreeMap::new(), vec![ROOT]);
    while let Some(dir) = todo.pop() {
        let (mut names, mut below) = (BTreeSet::new(), Vec::new());
        let listed = fs.readdir(dir, 0, |e| {
            if !matches!(&e.name[..], b"." | b"..") {
                below.extend((e.kind == 4).then_some(e.ino));
                names.insert(e.name);
            }
            true
        });
        if listed.is_ok() && !all.contains_key(&dir) {
            all.insert(dir, names);
            todo.extend(below);
        }
    }
    all
}

fn mounted(media: &Media, base: &Base) -> Option<Arc<Fs>> {
    let options = MountOptions::parse(&[base.options, "errors=continue"]).expect("options");
    Fs::mount_quiet(media.volume().ok()?, &options).ok()
}

/// Uses a volume; whether the mount has met damage, if there was one.
fn used(media: &Media, base: &Base, what: &str) -> Option<bool> {
    let fs = mounted(media, base)?;
    let before = listing(&fs);
    for dir in before.keys() {
        for n in 0..3 {
            let name = format!("one more name, and so long that few of them fit {n:0100}");
            let _ = fs.mknod(ME, *dir, name.as_bytes(), S_IFREG | 0o644, 0);
        }
    }
    let met = fs.e.watch().found() > 0;
    let whole = fs.shutdown().is_ok();
    drop(fs);
    if let Some(fs) = mounted(media, base).filter(|_| whole) {
        let after = listing(&fs);
        for (dir, names) in before {
            let now = after.get(&dir);
            let lost = now.map(|now| names.difference(now).count());
            assert_eq!(
                lost.unwrap_or(0),
                0,
                "{what}: directory {dir} has lost names"
            );
        }
        fs.abandon();
    }
    Some(met)
}

fn every_page_of(base: &Base) {
    let mut kinds = BTreeSet::new();
    for (id, off) in pages(base) {
        let page = &base.pmem[off..off + BLOCK];
        let kind = node::kind(page);
        kinds.extend(kind.map(|k| k as u8));
        // One of a kind and a few more are enough to see all checks.
        let step = if kind == Some(NodeKind::Inodes) { 3 } else { 7 };
        for (at, n) in places(page)
            .zip(0u32..)
            .filter(|(_, n)| n % step == id % step)
        {
            let mut pmem = base.pmem.clone();
            let page = &mut pmem[off..off + BLOCK];
            page[at] ^= [0xff, 0x01, 0x80][n as usize / 7 % 3];
            node::seal(page, base.config.salt());
            let media = base.media(&pmem, base.device());
            let what = format!("node {id}, {kind:?}, byte {at}");
            let report = media.fsck().expect("the volume opens");
            let clean = report.is_clean() && report.skipped.is_empty();
            let met = used(&media, base, &what);
            assert!(
                !clean || met == Some(false),
                "{what}: only the mount sees it"
            );
        }
    }
    assert!(kinds.len() >= 4, "{kinds:?}");
}

#[test]
fn with_live_records_in_mode_op() {
    every_page_of(&BASES[0]);
}

#[test]
fn with_live_records_in_mode_commit() {
    every_page_of(&BASES[1]);
}

#[test]
fn unmounted() {
    every_page_of(&BASES[2]);
}
