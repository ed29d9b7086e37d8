//! Damage to directories, links, intents, link targets and extended attributes.

use quayfs_fs::SetXattr;
use quayfs_layout::acl::{ACCESS, DEFAULT};
use quayfs_layout::bytes::{put_u32, put_u64};
use quayfs_layout::dirent::{self, OFF_INO, encode_entry, entries, entry_len, index_entry};
use quayfs_layout::inode::ROOT;
use quayfs_layout::intent::{self, Intent, IntentKind};
use quayfs_layout::node::{HEADER, NodeKind, OFF_USED, used};
use quayfs_layout::{Ino, xattr};
use quayfs_store::ns::dir::NameHash;

use super::support::{Disk, Sample};
use crate::FsckOptions;
use crate::repair::repair_volume;

impl Disk {
    fn cookie(&self, name: &[u8]) -> u64 {
        NameHash(self.config.hash_key).cookie(name)
    }

    /// Appends an entry to the only leaf of a directory and counts it.
    fn append(&self, dir: Ino, name: &[u8], clash: u64, (ino, kind): (Ino, u8)) {
        let cookie = self.cookie(name) | clash;
        let root = self.inode(dir).root;
        self.edit(root, |page| {
            let mut bytes = Vec::new();
            encode_entry(cookie, ino, kind, name, &mut bytes);
            let end = used(page) as usize;
            page[HEADER + end..HEADER + end + bytes.len()].copy_from_slice(&bytes);
            put_u32(page, OFF_USED, (end + entry_len(name.len())) as u32);
        });
        self.edit_inode(dir, |i| i.entries += 1);
    }

    /// Removes an entry of the only leaf of a directory and counts it.
    fn remove(&self, dir: Ino, name: &[u8]) {
        self.edit(self.inode(dir).root, |page| {
            let at = entries(page).find(|e| e.name == name).unwrap().at;
            put_u64(page, at + OFF_INO, 0);
        });
        self.edit_inode(dir, |i| i.entries -= 1);
    }

    /// Gives a directory without entries its first leaf.
    fn leaf(&self, dir: Ino) {
        let id = self.free_node();
        self.create(id, NodeKind::DirLeaf, dir, |_| {});
        self.bit(
            self.geo().dyn_bitmap_base,
            u64::from(id) - self.geo().dyn_base,
            true,
        );
        self.edit_inode(dir, |i| {
            i.root = id;
            i.blocks += 1;
        });
    }

    fn intents(&self, list: &[(usize, Intent)]) {
        let id = self.geo().intent_base as u32;
        if self.home(id).is_none() {
            self.create(id, NodeKind::Intents, 0, |_| {});
        }
        self.edit(id, |page| {
            page[HEADER..].fill(0);
            for (slot, intent) in list {
                let at = HEADER + slot * intent::SIZE;
                page[at..at + intent::SIZE].copy_from_slice(&intent.encode());
            }
        });
    }
}

#[test]
fn index_pages() {
    let (disk, s) = Disk::sample();
    let (ino, root) = (s.dir, disk.inode(s.dir).root);
    assert_eq!(disk.inode(ino).depth, 1);
    let page = disk.page(root);
    let n = used(&page[..]);
    assert!(n >= 4, "{n} leaves");
    let key = |i: usize| index_entry(&page[..], i).0;
    let at = |i: usize| HEADER + i * dirent::INDEX_SIZE;
    disk.edit(root, |p| put_u64(p, at(2), key(1)));
    disk.finds(&[&format!(
        "error: directory: inode {ino}: key 2 of index page {root}, {:#x}, is out of order",
        key(1)
    )]);
    disk.edit(root, |p| {
        put_u64(p, at(2), key(2));
        put_u32(p, OFF_USED, 0);
    });
    disk.finds(&[&format!(
        "error: directory: inode {ino}: index page {root} holds 0 children"
    )]);
    disk.edit(root, |p| {
        put_u32(p, OFF_USED, n);
        // The first key is never looked at.
        put_u64(p, at(0), key(3));
    });
    disk.finds(&[]);
}

#[test]
fn an_entry_in_the_wrong_leaf() {
    let (disk, s) = Disk::sample();
    let (ino, root) = (s.dir, disk.inode(s.dir).root);
    let page = disk.page(root);
    let right = index_entry(&page[..], 1).1;
    let leaf = disk.page(right);
    let low = entries(&leaf[..])
        .filter(|e| e.ino != 0)
        .min_by_key(|e| e.cookie)
        .unwrap();
    disk.edit(root, |p| {
        put_u64(p, HEADER + dirent::INDEX_SIZE, low.cookie + 256)
    });
    disk.finds(&[&format!(
        "error: directory: inode {ino}, entry {:?}: cookie {:#x} does not belong into leaf {right}",
        String::from_utf8_lossy(low.name),
        low.cookie
    )]);
}

#[test]
fn leaves() {
    let (disk, s) = Disk::sample();
    let root = disk.inode(ROOT).root;
    let page = disk.page(root);
    let end = used(&page[..]);
    disk.edit(root, |p| put_u32(p, OFF_USED, end + 2));
    disk.finds(&[&format!(
        "error: directory: inode 1: the entries of leaf {root} do not fill it"
    )]);
    disk.edit(root, |p| put_u32(p, OFF_USED, end));
    let fifo = entries(&page[..]).find(|e| e.name == b"fifo").unwrap();
    disk.edit(root, |p| put_u64(p, fifo.at, fifo.cookie ^ 1 << 20));
    disk.finds(&[&format!(
        "error: directory: inode 1, entry \"fifo\": cookie {:#x} is not the name's",
        fifo.cookie ^ 1 << 20
    )]);
    disk.edit(root, |p| {
        put_u64(p, fifo.at, fifo.cookie);
        p[fifo.at + 18] = 8;
    });
    disk.finds(&[&format!(
        "error: directory: inode 1, entry \"fifo\": says type 8 of inode {}, which has type 1",
        s.fifo
    )]);
    disk.edit(root, |p| p[fifo.at + 18] = 1);
    disk.edit_inode(ROOT, |i| i.entries += 1);
    disk.finds(&["error: directory: inode 1: has 9 entries, its image says 10"]);
    disk.edit_inode(ROOT, |i| {
        i.entries -= 1;
        i.depth = 7;
    });
    disk.finds(&["error: directory: inode 1: 7 index levels are impossible"]);
}

#[test]
fn names_that_are_there_twice() {
    for (clash, what) in [
        (0, "cookie {} is there twice"),
        (1, "the name is there twice"),
    ] {
        let (disk, s) = Disk::sample();
        disk.append(ROOT, b"hard", clash, (s.hard, 8));
        disk.edit_inode(s.hard, |i| i.nlink += 1);
        let what = what.replace("{}", &format!("{:#x}", disk.cookie(b"hard")));
        disk.finds(&[&format!(
            "error: directory: inode 1, entry \"hard\": {what}"
        )]);
    }
}

#[test]
fn names_that_are_none() {
    for name in [&b"."[..], b"..", b"a/b", b"a\0b"] {
        let (disk, s) = Disk::sample();
        disk.append(ROOT, name, 0, (s.hard, 8));
        disk.edit_inode(s.hard, |i| i.nlink += 1);
        let shown = String::from_utf8_lossy(name);
        disk.finds(&[&format!(
            "error: directory: inode 1, entry {shown:?}: not a name"
        )]);
    }
}

#[test]
fn an_entry_for_nothing() {
    let (disk, _) = Disk::sample();
    let free = disk.free_ino();
    disk.append(ROOT, b"ghost", 0, (free, 8));
    disk.finds(&[&format!(
        "error: directory: inode 1, entry \"ghost\": inode {free} does not exist"
    )]);
    let (disk, _) = Disk::sample();
    disk.append(ROOT, b"ghost", 0, (u64::MAX, 8));
    disk.finds(&[&format!(
        "error: directory: inode 1, entry \"ghost\": inode {} does not exist",
        u64::MAX
    )]);
}

#[test]
fn link_counts() {
    let (disk, s) = Disk::sample();
    let links = |ino: Ino, n: u32, expected: &str| {
        let before = disk.inode(ino).nlink;
        disk.edit_inode(ino, |i| i.nlink = n);
        disk.finds(&[&format!("error: links: inode {ino}: {expected}")]);
        disk.edit_inode(ino, |i| i.nlink = before);
    };
    links(s.hard, 3, "has 2 names, but 3 links");
    links(s.hard, 1, "has 2 names, but 1 links");
    links(s.hard, 0, "has no links, but 2 names");
    links(s.dir, 4, "a directory with 1 subdirectories, but 4 links");
    links(s.dir, 2, "a directory with 1 subdirectories, but 2 links");
    links(ROOT, 2, "a directory with 1 subdirectories, but 2 links");
}

#[test]
fn what_cannot_be_reached() {
    let (disk, s) = Disk::sample();
    disk.remove(ROOT, b"fifo");
    let fifo = s.fifo;
    disk.finds(&[&format!(
        "error: links: inode {fifo}: no entry names it, but it has 1 links"
    )]);
    disk.edit_inode(fifo, |i| i.nlink = 0);
    disk.finds(&[&format!(
        "error: links: inode {fifo}: has no links, but no intent says that it is to be freed"
    )]);
    disk.intents(&[(
        5,
        Intent {
            ino: fifo,
            kind: IntentKind::Orphan,
        },
    )]);
    disk.finds(&[]);
    assert_eq!(disk.check().statistics.orphans, 1);

    let (disk, s) = Disk::sample();
    disk.remove(ROOT, b"dir");
    disk.edit_inode(ROOT, |i| i.nlink -= 1);
    disk.finds(&[&format!(
        "error: links: inode {}: a directory that no entry names",
        s.dir
    )]);
}

#[test]
fn parents() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.dir, |i| i.parent = s.sub);
    disk.finds(&[&format!(
        "error: links: inode {}: its parent is inode {}, but inode 1 has the entry",
        s.dir, s.sub
    )]);
    let (disk, s) = Disk::sample();
    disk.edit_inode(ROOT, |i| i.parent = s.dir);
    disk.finds(&[&format!(
        "error: links: inode 1: the root directory, but its parent is inode {}",
        s.dir
    )]);
    let (disk, s) = Disk::sample();
    disk.append(ROOT, b"again", 0, (s.dir, 4));
    disk.edit_inode(ROOT, |i| i.nlink += 1);
    disk.finds(&[&format!(
        "error: links: inode {}: a directory with several names, in inode 1 and inode 1",
        s.dir
    )]);
    let (disk, s) = Disk::sample();
    disk.leaf(s.sub);
    disk.append(s.sub, b"up", 0, (ROOT, 4));
    disk.edit_inode(s.sub, |i| i.nlink += 1);
    disk.finds(&[&format!(
        "error: links: inode 1: the root directory, but inode {} has an entry for it",
        s.sub
    )]);
}

#[test]
fn a_directory_below_itself() {
    let (disk, s) = Disk::sample();
    disk.remove(ROOT, b"dir");
    disk.edit_inode(ROOT, |i| i.nlink -= 1);
    disk.leaf(s.sub);
    disk.append(s.sub, b"dir", 0, (s.dir, 4));
    disk.edit_inode(s.sub, |i| i.nlink += 1);
    disk.edit_inode(s.dir, |i| i.parent = s.sub);
    disk.finds(&[&format!(
        "error: links: inode {}: a directory that lies below itself",
        s.dir
    )]);
}

#[test]
fn a_root_that_is_none() {
    let (disk, s) = Disk::sample();
    let fifo = disk.inode(s.fifo);
    disk.edit_inode(ROOT, |i| *i = fifo);
    let report = disk.check();
    let what = "inode 1, the root directory, is not there";
    assert!(report.findings.iter().any(|f| f.what == what), "{report}");
}

#[test]
fn intents_that_make_no_sense() {
    let (disk, s) = Disk::sample();
    let Sample { dir, hard, big, .. } = s;
    let at = |n: usize, kind: &str, ino: Ino, why: &str| {
        format!("error: intents: intent {n}, {kind} of inode {ino}: {why}")
    };
    let orphan = |ino| Intent {
        ino,
        kind: IntentKind::Orphan,
    };
    let truncate = |ino| Intent {
        ino,
        kind: IntentKind::Truncate,
    };
    disk.intents(&[(0, truncate(big)), (7, truncate(hard))]);
    disk.finds(&[]);
    disk.intents(&[(3, orphan(hard))]);
    disk.finds(&[&at(3, "Orphan", hard, "the inode has a name")]);
    disk.intents(&[(3, truncate(dir))]);
    disk.finds(&[&at(3, "Truncate", dir, "the inode is not a regular file")]);
    disk.intents(&[(3, truncate(9999)), (4, orphan(0))]);
    disk.finds(&[
        &at(3, "Truncate", 9999, "the inode does not exist"),
        &at(4, "Orphan", 0, "the inode does not exist"),
    ]);
    disk.intents(&[(3, truncate(big)), (9, truncate(big))]);
    disk.finds(&[&at(9, "Truncate", big, "a second one of this kind")]);
    disk.intents(&[]);
    disk.create(
        disk.geo().intent_base as u32 + 3,
        NodeKind::Intents,
        0,
        |_| {},
    );
    disk.finds(&["error: intents: node 4: the intent page before it does not exist"]);
}

#[test]
fn a_place_that_holds_no_intent() {
    let (disk, _) = Disk::sample();
    disk.intents(&[]);
    disk.edit(disk.geo().intent_base as u32, |p| {
        put_u64(p, HEADER + 8, 77)
    });
    disk.finds(&["error: intents: intent 0: not an intent"]);
}

#[test]
fn link_targets() {
    let (disk, s) = Disk::sample();
    let size = |ino: Ino, n: u64, expected: &str| {
        let before = disk.inode(ino).size;
        disk.edit_inode(ino, |i| i.size = n);
        disk.finds(&[&format!("error: symlink: inode {ino}: {expected}")]);
        disk.edit_inode(ino, |i| i.size = before);
    };
    size(s.link, 0, "a target of 0 bytes is impossible");
    size(s.link, 121, "a target of 121 bytes has no pages");
    size(s.long, 100, "a target of 100 bytes has pages");
    size(s.long, 201, "the target has 200 bytes, its image says 201");
    let (ino, id) = (s.long, disk.inode(s.long).root);
    disk.edit(id, |p| put_u32(p, OFF_USED, 0));
    disk.finds(&[&format!(
        "error: symlink: inode {ino}: target page {id} holds 0 bytes"
    )]);
}

#[test]
fn extended_attributes() {
    let (disk, s) = Disk::sample();
    let (ino, id) = (s.attr, disk.inode(s.attr).xattr);
    let start = format!("error: xattr: inode {ino}: extended attributes have");
    let len = disk.inode(ino).xattr_len;
    disk.edit_inode(ino, |i| i.xattr_len = len + 1);
    disk.finds(&[&format!("{start} {len} bytes, its image says {}", len + 1)]);
    disk.edit_inode(ino, |i| i.xattr_len = len);
    // The length of the first value.
    disk.edit(id, |p| put_u32(p, HEADER + 1, 3001));
    disk.finds(&[&format!("{start} bytes that are not attributes")]);
    let twice = vec![(b"user.x".to_vec(), vec![1]), (b"user.x".to_vec(), vec![2])];
    let set = xattr::encode(&twice);
    let chain = disk.page(id);
    assert_ne!(quayfs_layout::node::next(&chain[..]), 0);
    disk.edit(id, |p| {
        p[HEADER..HEADER + set.len()].copy_from_slice(&set);
        put_u32(p, OFF_USED, set.len() as u32);
    });
    let second = quayfs_layout::node::next(&chain[..]);
    let rest = xattr::encode(&vec![(b"user.y".to_vec(), vec![3])]);
    disk.edit(second, |p| {
        p[HEADER..HEADER + rest.len()].copy_from_slice(&rest);
        put_u32(p, OFF_USED, rest.len() as u32);
    });
    disk.edit_inode(ino, |i| i.xattr_len = (set.len() + rest.len()) as u32);
    disk.finds(&[&format!("{start} \"user.x\" twice")]);
}

#[test]
fn access_control_lists() {
    let (disk, s) = Disk::sample();
    let ino = s.attr;
    // Owner, a user, the group, a mask, all others.
    let mut list = vec![2, 0, 0, 0];
    for (tag, may, id) in [
        (1, 6, !0),
        (2, 7, 9),
        (4, 4, !0),
        (16, 5, !0),
        (32, 0, !0u32),
    ] {
        list.extend([tag, 0, may, 0]);
        list.extend(id.to_le_bytes());
    }
    let fs = disk.mount();
    fs.removexattr(ino, b"user.a").unwrap();
    fs.removexattr(ino, b"user.b").unwrap();
    fs.setxattr(ino, ACCESS, &list, SetXattr::Any).unwrap();
    fs.shutdown().unwrap();
    disk.finds(&[]);
    let id = disk.inode(ino).xattr;
    let value = HEADER + 5 + ACCESS.len();
    let start = format!("error: xattr: inode {ino}: extended attributes have");
    assert_eq!(disk.inode(ino).mode, 0o100_650);
    disk.edit_inode(ino, |i| i.mode = 0o100_640);
    disk.finds(&[&format!(
        "{start} \"system.posix_acl_access\" that stands for 650, with permissions 640"
    )]);
    disk.edit(id, |p| p[value + 4 + 3 * 8 + 2] = 9);
    disk.finds(&[&format!(
        "{start} \"system.posix_acl_access\" that is no list"
    )]);
    let name = HEADER + 5;
    disk.edit(id, |p| p[name..name + 4].copy_from_slice(b"user"));
    disk.finds(&[]);
    disk.edit(id, |p| {
        p[value + 4 + 3 * 8 + 2] = 5;
        p.copy_within(value..value + list.len(), value + 1);
        p[name..name + 24].copy_from_slice(DEFAULT);
        p[HEADER] = 24;
        let end = used(p) + 1;
        put_u32(p, OFF_USED, end);
    });
    disk.edit_inode(ino, |i| i.xattr_len += 1);
    disk.finds(&[&format!(
        "{start} \"system.posix_acl_default\" where there can be none"
    )]);
}

/// The permissions of the group were the list's mask: without the list they would be too many.
#[test]
fn a_lost_list_takes_what_the_group_was_allowed() {
    let (disk, s) = Disk::sample();
    let mut list = vec![2, 0, 0, 0];
    for (tag, may) in [(1, 6), (4, 0), (16, 6), (32, 4)] {
        list.extend([tag, 0, may, 0, 255, 255, 255, 255]);
    }
    let fs = disk.mount();
    fs.setxattr(s.attr, ACCESS, &list, SetXattr::Any).unwrap();
    fs.shutdown().unwrap();
    assert_eq!(disk.inode(s.attr).mode, 0o100_664);
    disk.edit_inode(s.attr, |i| i.mode = 0o100_666);
    let options = FsckOptions::default();
    let report = repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap();
    let told = "its extended attributes are lost, and what its group was allowed";
    assert!(report.done.iter().any(|d| d.what == told), "{report}");
    let i = disk.inode(s.attr);
    assert_eq!((i.mode, i.xattr), (0o100_606, 0));
    disk.finds(&[]);
}
