//! What directories held whose inodes are lost: their leaves still say it.

use quayfs_layout::flaw::is_name;
use quayfs_layout::inode::ROOT;
use quayfs_layout::node::NodeKind;
use quayfs_layout::{Ino, dirent};
use rustc_hash::FxHashMap;

use super::Tree;
use crate::Area;
use crate::damaged::path;
use crate::repair::report::Journal;

/// The directory that an inode was in, and its name there.
type Names = FxHashMap<Ino, (Ino, Vec<u8>)>;

impl Tree<'_> {
    /// Says which names are lost together with their directories, before entries of these are dropped.
    pub(super) fn name_what_is_gone(&self, log: &mut Journal) {
        let mut names = Names::default();
        let mut gone: Vec<(Ino, Ino, Vec<u8>)> = Vec::new();
        let mut owners: Vec<Ino> = self.leaves.keys().copied().collect();
        owners.sort_unstable();
        for dir in owners
            .into_iter()
            .filter(|dir| !self.inodes.contains_key(dir))
        {
            for page in self.leaves[&dir].iter() {
                let Some(page) = self.mine(*page, dir, NodeKind::DirLeaf) else {
                    continue;
                };
                for e in dirent::entries(&page[..]).filter(|e| e.ino != 0 && is_name(e.name)) {
                    gone.push((dir, e.ino, e.name.to_vec()));
                    names.entry(e.ino).or_insert_with(|| (dir, e.name.to_vec()));
                }
            }
        }
        if gone.is_empty() {
            return;
        }
        for (dir, d) in &self.dirs {
            for e in &d.entries {
                names.insert(e.ino, (*dir, e.name.clone()));
            }
        }
        for (dir, ino, name) in gone {
            let what = match self.inodes.contains_key(&ino) {
                true => format!("this name of inode {ino} is lost, as its directory is"),
                false => format!("inode {ino} is lost, as its directory is"),
            };
            log.at(Area::Directory, below(&names, dir, &name), what);
        }
    }
}

/// The path of a name in a lost directory.
fn below(names: &Names, dir: Ino, name: &[u8]) -> String {
    let named = |at: Ino| names.get(&at).map(|(dir, name)| (*dir, &name[..]));
    let above = match path(dir, named) {
        Some(_) if dir == ROOT => String::new(),
        Some(path) => path,
        None => format!("#{dir}"),
    };
    format!("{above}/{}", String::from_utf8_lossy(name))
}
