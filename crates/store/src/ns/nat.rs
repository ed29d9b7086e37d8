//! The node address table as a mount reads it: which pages are taken.

use std::fmt;
use std::ops::Range;
// Not the scheduler's of tests: their volumes are short.
use std::thread;

use quayfs_layout::bytes;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::node;
use quayfs_pmem::Region;
use quayfs_sync::atomic::{AtomicU64, Ordering};

/// Entries from which on a NAT is read by several threads, and by how many at most.
const LONG: u64 = 1 << 18;
const THREADS: u64 = 8;

/// What the NAT says, or a part of it.
pub(super) struct Nat {
    /// A bit for each page that a node has.
    pub(super) used: Vec<u64>,
    /// How many pages that are.
    pub(super) live: u64,
    /// Damaged entries: how many, and the first one.
    pub(super) damage: Option<(u64, String)>,
}

impl Nat {
    /// Reads all of it, a long one by several threads: a volume can have millions of pages, and a mount waits. Sets the bits
    /// of static nodes that have one.
    pub(super) fn read_all(
        region: &Region,
        geo: &Geometry,
        salt: u64,
        present: &[AtomicU64],
    ) -> Self {
        let read = |ids| Self::read(region, geo, salt, present, ids);
        let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
        let each = geo.nat_entries.div_ceil(threads.min(THREADS));
        if geo.nat_entries < LONG || each == geo.nat_entries {
            return read(0..geo.nat_entries);
        }
        let parts = thread::scope(|scope| {
            let firsts = (0..geo.nat_entries).step_by(each as usize);
            let spawn = |first| {
                let part = move || read(first..(first + each).min(geo.nat_entries));
                thread::Builder::new().spawn_scoped(scope, part).ok()
            };
            let parts: Vec<_> = firsts.map(spawn).collect();
            let join = |part: Option<thread::ScopedJoinHandle<'_, _>>| part?.join().ok();
            parts.into_iter().map(join).collect::<Option<Vec<_>>>()
        });
        let sound = |part: &Self| part.damage.is_none();
        let whole = parts.filter(|parts| parts.iter().all(sound));
        // Damage, and pages of two owners, are told in order; and a thread may be more than the system has.
        whole
            .and_then(|parts| parts.into_iter().try_fold(Self::nothing(geo), Self::and))
            .unwrap_or_else(|| {
                present.iter().for_each(|w| w.store(0, Ordering::Relaxed));
                read(0..geo.nat_entries)
            })
    }

    fn nothing(geo: &Geometry) -> Self {
        Self {
            used: vec![0; (geo.node_pages as usize).div_ceil(64)],
            live: 0,
            damage: None,
        }
    }

    /// Both, unless they have a page in common.
    fn and(mut self, other: Self) -> Option<Self> {
        for (mine, theirs) in self.used.iter_mut().zip(other.used) {
            if *mine & theirs != 0 {
                return None;
            }
            *mine |= theirs;
        }
        self.live += other.live;
        Some(self)
    }

    /// The entries of some nodes.
    fn read(
        region: &Region,
        geo: &Geometry,
        salt: u64,
        present: &[AtomicU64],
        ids: Range<u64>,
    ) -> Self {
        let mut nat = Self::nothing(geo);
        let first = ids.start;
        let (off, count) = (geo.nat_off + 8 * first, ids.end - first);
        region.table(off, count, 8, |part, words| {
            let ids = first + part.start..first + part.end;
            let Some(words) = words else {
                // An entry is never all zeros.
                let (n, id) = (ids.end - ids.start, ids.start);
                nat.damaged(n, format_args!("NAT entry of node {id} is damaged"));
                return;
            };
            for (id, word) in ids.zip(words.chunks_exact(8)) {
                let nid = id as u32;
                match node::nat_decode(nid, bytes::get_u64(word, 0), salt) {
                    Some(None) => {}
                    Some(Some(page)) if page < geo.node_pages => {
                        if !nat.take(page, nid) {
                            continue;
                        }
                        if id < geo.dyn_base {
                            present[nid as usize / 64].fetch_or(1 << (nid % 64), Ordering::Relaxed);
                        }
                    }
                    _ => nat.damaged(1, format_args!("NAT entry of node {nid} is damaged")),
                }
            }
        });
        nat
    }

    /// The page is that of a node, and of no other.
    fn take(&mut self, page: u64, nid: u32) -> bool {
        let (w, bit) = (page as usize / 64, 1 << (page % 64));
        if self.used[w] & bit != 0 {
            let what = format_args!("node page {page} is owned twice, second by node {nid}");
            self.damaged(1, what);
            return false;
        }
        self.used[w] |= bit;
        self.live += 1;
        true
    }

    fn damaged(&mut self, more: u64, what: fmt::Arguments<'_>) {
        match &mut self.damage {
            Some((n, _)) => *n += more,
            none => *none = Some((more, what.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 7;

    /// A table whose node `n` has page `n` / 3, if that is whole, and some others.
    fn table(others: &[(u32, u64)]) -> (Region, Geometry) {
        let geo = Geometry::compute(2 << 30, 1 << 30, 4).unwrap();
        assert!(geo.nat_entries > LONG, "long enough to be read in parts");
        let region = Region::anonymous(geo.pmem_len);
        for id in 0..geo.nat_entries as u32 {
            let page = (id % 3 == 0).then_some(u64::from(id / 3));
            let page = page.filter(|page| *page < geo.node_pages);
            let word = match page {
                Some(page) => node::nat_encode(id, page, SALT),
                None => node::nat_absent(id, SALT),
            };
            region.store_u64(geo.nat_entry(id), word);
        }
        for (id, page) in others {
            region.store_u64(geo.nat_entry(*id), node::nat_encode(*id, *page, SALT));
        }
        (region, geo)
    }

    /// With the static nodes that have a page.
    fn read(others: &[(u32, u64)], all: bool) -> (Nat, Vec<u64>) {
        let (region, geo) = table(others);
        let present: Vec<_> = (0..geo.dyn_base.div_ceil(64))
            .map(|_| AtomicU64::new(0))
            .collect();
        let nat = match all {
            true => Nat::read_all(&region, &geo, SALT, &present),
            false => Nat::read(&region, &geo, SALT, &present, 0..geo.nat_entries),
        };
        let present = present.into_iter().map(AtomicU64::into_inner).collect();
        (nat, present)
    }

    #[test]
    fn in_parts_it_is_the_same_table() {
        let end = table(&[]).1.nat_entries as u32;
        // A page of two owners, near each other or far; a page that does not exist.
        for others in [
            vec![],
            vec![(1, 1)],
            vec![(end - 1, 0)],
            vec![(end - 2, u64::from(end))],
        ] {
            let (whole, parts) = (read(&others, false), read(&others, true));
            assert_eq!(whole.0.damage.is_some(), !others.is_empty());
            assert_eq!(
                (&whole.0.damage, whole.0.live),
                (&parts.0.damage, parts.0.live)
            );
            assert!(
                whole.0.used == parts.0.used && whole.1 == parts.1,
                "{others:?}"
            );
        }
    }
}
