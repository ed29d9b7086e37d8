//! Names: entries that name nothing go, inodes that nothing names go to `/lost+found`, and link
//! counts and parents follow from that.

use quayfs_shown::count;
use std::collections::{BTreeMap, BTreeSet};

use quayfs_fs::attr::dirent_kind;
use quayfs_layout::Ino;
use quayfs_layout::inode::ROOT;
use rustc_hash::FxHashMap;

use super::dirs::Entry;
use super::{Tree, directory};
use crate::Area;
use crate::repair::report::Journal;

/// Where nameless inodes go.
const LOST: &str = "lost+found";

/// `DT_DIR`.
const DIR: u8 = 4;

impl Tree<'_> {
    pub(super) fn names(&mut self, log: &mut Journal) {
        // A removed inode leaves its entries in directories that have been read before.
        let gone: Vec<Ino> = self
            .dirs
            .keys()
            .copied()
            .filter(|d| !self.inodes.contains_key(d))
            .collect();
        for ino in gone {
            self.dirs.remove(&ino);
        }
        self.drop_entries(log);
        self.one_name_each(log);
        self.cut_circles(log);
        self.count();
        self.rescue(log);
        self.count();
        self.derive(log);
    }

    /// Removes entries of a directory and marks the leaves they were in.
    fn retain(&mut self, dir: Ino, mut keep: impl FnMut(&Entry) -> bool) {
        if let Some(d) = self.dirs.get_mut(&dir) {
            let touched = &mut d.touched;
            d.entries.retain(|e| {
                let keep = keep(e);
                if !keep {
                    touched.insert(e.leaf);
                }
                keep
            });
        }
    }

    /// What an entry names exists and is of the type it says.
    fn drop_entries(&mut self, log: &mut Journal) {
        let kinds: BTreeMap<Ino, u8> = self
            .inodes
            .iter()
            .map(|(ino, i)| (*ino, dirent_kind(i.mode)))
            .collect();
        let all: Vec<Ino> = self.dirs.keys().copied().collect();
        for dir in all {
            self.retain(dir, |e| {
                let why = match kinds.get(&e.ino) {
                    None => "its inode is gone",
                    Some(_) if e.ino == ROOT => "it names the root directory",
                    Some(_) => return true,
                };
                if !kinds.contains_key(&e.ino) {
                    log.lose(e.ino);
                }
                let name = String::from_utf8_lossy(&e.name);
                log.of(
                    Area::Directory,
                    dir,
                    format_args!("entry {name:?} is removed: {why}"),
                );
                false
            });
            let Some(d) = self.dirs.get_mut(&dir) else {
                continue;
            };
            for e in &mut d.entries {
                let kind = kinds[&e.ino];
                if e.kind != kind {
                    e.kind = kind;
                    d.touched.insert(e.leaf);
                    let name = String::from_utf8_lossy(&e.name);
                    log.of(
                        Area::Directory,
                        dir,
                        format_args!("entry {name:?} says the right type again"),
                    );
                }
            }
        }
    }

    /// A directory has one name: the one in the parent it knows, or the first.
    fn one_name_each(&mut self, log: &mut Journal) {
        let mut places: BTreeMap<Ino, Vec<(Ino, Vec<u8>)>> = BTreeMap::new();
        for (dir, d) in &self.dirs {
            for e in d.entries.iter().filter(|e| e.kind == DIR) {
                places
                    .entry(e.ino)
                    .or_default()
                    .push((*dir, e.name.clone()));
            }
        }
        // Each directory that loses names is gone through once, however many it loses.
        let mut gone: BTreeMap<Ino, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for (child, list) in places.into_iter().filter(|(_, list)| list.len() > 1) {
            let parent = self.inodes[&child].parent;
            let keep = list.iter().position(|(dir, _)| *dir == parent).unwrap_or(0);
            for (n, (dir, name)) in list.into_iter().enumerate() {
                if n != keep {
                    let shown = String::from_utf8_lossy(&name);
                    let what =
                        format_args!("entry {shown:?} is removed: the directory has another name");
                    log.of(Area::Directory, dir, what);
                    gone.entry(dir).or_default().insert(name);
                }
            }
        }
        for (dir, names) in gone {
            self.retain(dir, |e| !names.contains(&e.name));
        }
    }

    /// A directory that lies below itself loses its name; of a circle the one with the lowest number.
    fn cut_circles(&mut self, log: &mut Journal) {
        let mut parent: BTreeMap<Ino, Ino> = BTreeMap::new();
        for (dir, d) in &self.dirs {
            parent.extend(
                d.entries
                    .iter()
                    .filter(|e| e.kind == DIR)
                    .map(|e| (e.ino, *dir)),
            );
        }
        let mut gone: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        // With the number of the walk that came by: a circle is where a walk meets itself.
        let mut seen: FxHashMap<Ino, usize> = FxHashMap::from_iter([(ROOT, usize::MAX)]);
        for (walk, start) in self.dirs.keys().copied().enumerate() {
            let mut way = Vec::new();
            let mut at = start;
            while !seen.contains_key(&at) {
                seen.insert(at, walk);
                way.push(at);
                match parent.get(&at) {
                    Some(up) => at = *up,
                    None => break,
                }
            }
            let met = seen.get(&at) == Some(&walk) && parent.contains_key(&at);
            if let Some(from) = way.iter().position(|d| *d == at).filter(|_| met) {
                let lowest = way[from..].iter().copied().min().unwrap_or(at);
                if let Some(dir) = parent.remove(&lowest) {
                    gone.entry(dir).or_default().insert(lowest);
                    log.of(Area::Links, lowest, "the directory lay below itself");
                }
            }
        }
        for (dir, children) in gone {
            self.retain(dir, |e| !children.contains(&e.ino));
        }
    }

    /// Counts names.
    fn count(&mut self) {
        self.named.clear();
        self.links.clear();
        for (dir, d) in &self.dirs {
            for e in &d.entries {
                *self.links.entry(e.ino).or_default() += 1;
                self.named
                    .entry(e.ino)
                    .or_insert_with(|| (*dir, e.name.clone()));
            }
        }
    }

    /// Inodes that should have a name and have none get one.
    fn rescue(&mut self, log: &mut Journal) {
        let full = |ino: &Ino| self.dirs.get(ino).is_some_and(|d| !d.entries.is_empty());
        let nameless: Vec<Ino> = self
            .inodes
            .iter()
            .filter(|(ino, i)| {
                **ino != ROOT && !self.named.contains_key(ino) && (i.nlink > 0 || full(ino))
            })
            .map(|(ino, _)| *ino)
            .collect();
        if nameless.is_empty() {
            return;
        }
        let Some((lost, made)) = self.lost_and_found() else {
            log.add(Area::Links, "there is no inode left for /lost+found");
            return;
        };
        if made {
            log.of(Area::Links, lost, "made");
        }
        let there = self.dirs[&lost].entries.iter();
        let mut taken: BTreeSet<Vec<u8>> = there.map(|e| e.name.clone()).collect();
        for ino in nameless.into_iter().filter(|ino| *ino != lost) {
            let mut name = format!("#{ino}").into_bytes();
            let mut n = 0;
            while !taken.insert(name.clone()) {
                n += 1;
                name = format!("#{ino}.{n}").into_bytes();
            }
            self.add(lost, &name, ino);
            log.rescued += 1;
            log.of(Area::Links, ino, "nothing named it any more");
        }
    }

    fn add(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let kind = dirent_kind(self.inodes[&ino].mode);
        let cookie = self.media.hash.cookie(name);
        if let Some(d) = self.dirs.get_mut(&dir) {
            d.rebuild = true;
            d.entries.push(Entry {
                leaf: 0,
                cookie,
                ino,
                kind,
                name: name.to_vec(),
            });
        }
    }

    /// The directory for nameless inodes, and whether it is new. Nothing else that has its name is
    /// touched: it then gets another one.
    fn lost_and_found(&mut self) -> Option<(Ino, bool)> {
        let names = std::iter::once(LOST.to_string()).chain((1..).map(|n| format!("{LOST}.{n}")));
        let root = self.dirs[&ROOT].entries.iter();
        let there: FxHashMap<&[u8], (u8, Ino)> =
            root.map(|e| (&e.name[..], (e.kind, e.ino))).collect();
        for name in names {
            let name = name.into_bytes();
            match there.get(&name[..]) {
                Some((DIR, ino)) => return Some((*ino, false)),
                Some(_) => continue,
                None => {}
            }
            // Mostly in the page of the root directory: then both are there or neither.
            let ino = (2..self.media.geo.inodes()).find(|ino| !self.inodes.contains_key(ino))?;
            self.inodes.insert(ino, directory(0o700));
            self.dirs.insert(ino, Default::default());
            self.add(ROOT, &name, ino);
            return Some((ino, true));
        }
        None
    }

    /// Link counts and parents.
    fn derive(&mut self, log: &mut Journal) {
        let mut corrected = 0;
        for (ino, i) in &mut self.inodes {
            let before = (i.nlink, i.parent);
            let names = self.links.get(ino).copied().unwrap_or(0);
            match self.dirs.get(ino) {
                Some(d) => {
                    let below = d.entries.iter().filter(|e| e.kind == DIR).count() as u32;
                    i.parent = match self.named.get(ino) {
                        Some((parent, _)) => *parent,
                        None if *ino == ROOT => ROOT,
                        None => i.parent,
                    };
                    i.nlink = if names > 0 || *ino == ROOT {
                        2 + below
                    } else {
                        0
                    };
                }
                None => i.nlink = names,
            }
            corrected += u64::from(before != (i.nlink, i.parent));
        }
        if corrected > 0 {
            let what = format_args!(
                "link counts or parents of {} are corrected",
                count(corrected, "inode")
            );
            log.add(Area::Links, what);
        }
    }
}
