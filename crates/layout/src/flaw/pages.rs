//! What cannot be true of a page, kind by kind.

use super::Flaw;
use crate::dirent::{self, CLASH_BITS, INDEX_MAX};
use crate::extent::{self, Extent, FILE_BLOCKS};
use crate::geometry::Geometry;
use crate::intent::{self, Intent};
use crate::node::{self, BITS_PER_PAGE, HEADER, PAYLOAD};
use crate::quota;

/// Whether bytes can be the name of a directory entry.
pub fn is_name(name: &[u8]) -> bool {
    name.len() <= dirent::NAME_MAX
        && !matches!(name, b"" | b"." | b"..")
        && !name.contains(&b'/')
        && !name.contains(&0)
}

/// Whether this is the type of a directory entry.
pub(super) fn is_kind(kind: u8) -> bool {
    matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}

fn dynamic(g: &Geometry, id: u32) -> Result<(), Flaw> {
    match (g.dyn_base..g.nat_entries).contains(&u64::from(id)) {
        true => Ok(()),
        false => Err(Flaw::Reference(id)),
    }
}

/// The next page of a chain, if there is one.
pub(super) fn next(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    match node::next(page) {
        0 => Ok(()),
        id => dynamic(g, id),
    }
}

pub(super) fn leaf(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    if !dirent::leaf_is_sound(page) {
        return Err(Flaw::Entries);
    }
    let mut cookies = [0; PAYLOAD / dirent::ENTRY_HEADER];
    let mut n = 0;
    for e in dirent::entries(page).filter(|e| e.ino != 0) {
        let wrong = |why| Err(Flaw::Entry { at: e.at, why });
        if !is_name(e.name) {
            return wrong("not a name");
        }
        if e.ino >= g.inodes() {
            return wrong("names an inode that cannot be one");
        }
        if !is_kind(e.kind) {
            return wrong("says a type that there is not");
        }
        if e.cookie >> CLASH_BITS == 0 || e.cookie == u64::MAX {
            return wrong("has a cookie that no name has");
        }
        cookies[n] = e.cookie;
        n += 1;
    }
    let cookies = &mut cookies[..n];
    cookies.sort_unstable();
    match cookies.windows(2).any(|w| w[0] == w[1]) {
        true => Err(Flaw::Entries),
        false => Ok(()),
    }
}

pub(super) fn index(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    let n = node::used(page) as usize;
    if n == 0 || n > INDEX_MAX {
        return Err(Flaw::Children(n));
    }
    // The first child covers everything below the second key, whatever its own key says.
    let mut low = 0;
    for i in 0..n {
        let (key, child) = dirent::index_entry(page, i);
        if i > 0 && key <= low {
            return Err(Flaw::Key(i));
        }
        low = if i > 0 { key } else { 0 };
        dynamic(g, child)?;
    }
    Ok(())
}

/// Checks places of extents, those of a page or those of an inode.
///
/// # Errors
/// [`Flaw::Place`], [`Flaw::Extent`].
pub fn extents(g: &Geometry, places: &[u8]) -> Result<(), Flaw> {
    for (place, bytes) in places.chunks_exact(extent::SIZE).enumerate() {
        let Some(e) = Extent::decode(bytes) else {
            if bytes.iter().any(|b| *b != 0) {
                return Err(Flaw::Place(place));
            }
            continue;
        };
        let blocks = e.file_block..e.file_block + e.len;
        if blocks.end > FILE_BLOCKS || e.lbn + e.len > g.visible_blocks() {
            return Err(Flaw::Extent {
                place,
                blocks,
                lbn: e.lbn,
            });
        }
    }
    Ok(())
}

/// The first number that a bitmap page describes, and how many there are of its kind from there on.
fn described(g: &Geometry, id: u32) -> u64 {
    let id = u64::from(id);
    let (base, total) = if g.lbn_bitmaps().contains(&id) {
        (g.lbn_bitmap_base, g.visible_blocks())
    } else if id >= g.dyn_bitmap_base {
        (g.dyn_bitmap_base, g.dyn_nodes())
    } else {
        (g.ino_bitmap_base, g.inodes())
    };
    let first = id.saturating_sub(base).saturating_mul(BITS_PER_PAGE);
    total.saturating_sub(first).min(BITS_PER_PAGE)
}

pub(super) fn bitmap(g: &Geometry, id: u32, page: &[u8]) -> Result<(), Flaw> {
    let numbers = described(g, id);
    let (mut set, mut beyond) = (0, 0);
    for (word, first) in page[HEADER..].chunks_exact(8).zip((0..).step_by(64)) {
        let word = crate::bytes::get_u64(word, 0);
        set += u64::from(word.count_ones());
        let there = numbers.saturating_sub(first);
        if there < 64 {
            beyond += u64::from((word >> there).count_ones());
        }
    }
    let counter = u64::from(node::bits_set(page));
    match (set == counter, beyond) {
        (false, _) => Err(Flaw::Counter { set, counter }),
        (true, 0) => Ok(()),
        (true, n) => Err(Flaw::Beyond(n)),
    }
}

pub(super) fn intents(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    for (i, bytes) in page[HEADER..].chunks_exact(intent::SIZE).enumerate() {
        match Intent::decode(bytes) {
            Ok(None) => {}
            Ok(Some(e)) if e.ino != 0 && e.ino < g.inodes() => {}
            _ => return Err(Flaw::Intent(i)),
        }
    }
    Ok(())
}

pub(super) fn quotas(page: &[u8]) -> Result<(), Flaw> {
    for place in 0..quota::PER_PAGE {
        let e = quota::Entry::decode(&page[quota::offset(place)..][..quota::SIZE]);
        let counts = [e.usage.blocks, e.usage.inodes];
        let too_many = || counts.iter().any(|n| *n > i64::MAX as u64);
        if !e.is_possible() || !e.is_free() && too_many() {
            return Err(Flaw::Quota(place));
        }
    }
    Ok(())
}
