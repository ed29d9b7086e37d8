//! Link counts, parents, and whether everything can be reached from the root.

use std::collections::BTreeMap;

use quayfs_fs::attr::dirent_kind;
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFDIR};
use rustc_hash::FxHashMap;

use super::table::{Known, Status, Table};
use super::{Area, Check};

/// What is known of a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Directory {
    /// Parent according to the image.
    parent: Ino,
    /// The directory that has an entry for it, 0 for none.
    found_in: Ino,
    subdirectories: u32,
}

/// All directories.
#[derive(Default)]
pub(super) struct Links {
    directories: FxHashMap<Ino, Directory>,
    /// Directories that more than one entry names, with the directories that have them.
    doubled: BTreeMap<Ino, Vec<Ino>>,
}

impl Links {
    /// `ino` is a directory.
    pub(super) fn directory(&mut self, ino: Ino, parent: Ino) {
        self.directories.entry(ino).or_default().parent = parent;
    }

    /// Directory `parent` has an entry for directory `child`.
    pub(super) fn subdirectory(&mut self, parent: Ino, child: Ino) {
        self.directories.entry(parent).or_default().subdirectories += 1;
        let child_dir = self.directories.entry(child).or_default();
        if child_dir.found_in == 0 {
            child_dir.found_in = parent;
            return;
        }
        let first = child_dir.found_in;
        self.doubled
            .entry(child)
            .or_insert_with(|| vec![first])
            .push(parent);
    }

    /// Checks all links. With a `gap` not all entries are known, and only those that are too many
    /// can be reported.
    pub(super) fn check(&self, table: &Table, gap: bool, c: &mut Check) {
        if gap {
            c.skip("missing links and reachability: not all directories could be read");
        }
        match table.status(ROOT) {
            Status::Live(k) if k.kind == dirent_kind(S_IFDIR) => {}
            Status::Unknown => {}
            _ => c
                .findings
                .error(Area::Links, "inode 1, the root directory, is not there"),
        }
        table.each_known(|ino, k| {
            let wrong = if k.kind == dirent_kind(S_IFDIR) {
                self.of_directory(ino, k, gap)
            } else {
                of_other(k, gap)
            };
            if let Some(wrong) = wrong {
                c.findings
                    .error(Area::Links, format_args!("inode {ino}: {wrong}"));
            }
        });
        if !gap {
            self.cycles(table, c);
        }
    }

    fn of_directory(&self, ino: Ino, k: &Known, gap: bool) -> Option<String> {
        let d = self.directories.get(&ino).copied().unwrap_or_default();
        if let Some(parents) = self.doubled.get(&ino) {
            let list: Vec<_> = parents.iter().map(|p| format!("inode {p}")).collect();
            return Some(format!(
                "a directory with several names, in {}",
                list.join(" and ")
            ));
        }
        if k.nlink == 0 {
            return orphan(k);
        }
        let expected = 2 + d.subdirectories;
        if k.nlink < expected || (k.nlink > expected && !gap) {
            return Some(format!(
                "a directory with {} subdirectories, but {} links",
                d.subdirectories, k.nlink
            ));
        }
        if ino == ROOT {
            return match (d.found_in, d.parent) {
                (0, ROOT) => None,
                (0, parent) => Some(format!(
                    "the root directory, but its parent is inode {parent}"
                )),
                (by, _) => Some(format!(
                    "the root directory, but inode {by} has an entry for it"
                )),
            };
        }
        match d.found_in {
            0 if gap => None,
            0 => Some("a directory that no entry names".into()),
            by if by != d.parent => Some(format!(
                "its parent is inode {}, but inode {by} has the entry",
                d.parent
            )),
            _ => None,
        }
    }

    /// Directories that have an entry, but from which no way leads up to the root: one finding for
    /// each circle. Directories without an entry have been reported.
    fn cycles(&self, table: &Table, c: &mut Check) {
        // With the number of the walk that came by.
        // A circle is where a walk meets itself.
        let mut seen: FxHashMap<Ino, u32> = FxHashMap::default();
        let mut walk = 0;
        table.each_known(|ino, k| {
            if k.kind != dirent_kind(S_IFDIR) {
                return;
            }
            walk += 1;
            let mut at = ino;
            while at != ROOT && at != 0 && !seen.contains_key(&at) {
                seen.insert(at, walk);
                at = self.directories.get(&at).map_or(0, |d| d.found_in);
            }
            if at != ROOT && at != 0 && seen.get(&at) == Some(&walk) {
                let what = format_args!("inode {at}: a directory that lies below itself");
                c.findings.error(Area::Links, what);
            }
        });
    }
}

fn of_other(k: &Known, gap: bool) -> Option<String> {
    if k.nlink == 0 {
        return orphan(k);
    }
    if k.names == 0 && !gap {
        return Some(format!("no entry names it, but it has {} links", k.nlink));
    }
    (k.names > k.nlink || (k.names < k.nlink && !gap))
        .then(|| format!("has {} names, but {} links", k.names, k.nlink))
}

/// An inode without links has no name, and an intent that it will be freed.
fn orphan(k: &Known) -> Option<String> {
    match (k.names, k.orphan) {
        (0, true) => None,
        (0, false) => Some("has no links, but no intent says that it is to be freed".into()),
        (n, _) => Some(format!("has no links, but {n} names")),
    }
}
