//! Whose it is: suspects are looked up again, read again, and named.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

use quayfs_layout::inode::{self, Inode, ROOT, S_IFDIR};
use quayfs_layout::node::{self, INODES_PER_PAGE, NodeKind};
use quayfs_layout::{BLOCK, Ino, Lbn};
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir::{self, FIRST_COOKIE};
use quayfs_store::ns::extent::ExtentMap;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::txn::{Aside, PageSource};
use rangemap::RangeSet;
use rustc_hash::{FxHashMap, FxHashSet};

use super::scan::Suspects;
use super::{Area, Finding};
use crate::data::read::{self, Want};

const B: u64 = BLOCK as u64;
/// Names kept of one file.
const NAMES_MAX: usize = 8;
/// Names of one finding: a page of inodes concerns several files.
const PATHS_MAX: usize = 16;
/// Longest name shown; what is in front is cut off.
const PATH_MAX: usize = 1024;
/// Entries of a directory listed under its lock at once.
const LISTED: usize = 1024;
/// Inodes looked at before caches are trimmed.
const TRIM_EVERY: usize = 4096;

/// A finding, and the inodes whose names it is to have.
type Found = (Finding, Range<Ino>);

/// Confirms and names what a scan has met; nothing of it if the mount ends meanwhile.
pub(super) fn findings(e: &Engine, suspects: Suspects) -> Vec<Finding> {
    if suspects.nodes.is_empty() && suspects.lbns.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut nodes = suspects.nodes;
    // Digest may have replaced a page since.
    nodes.retain(|id, what| match e.nodes.verify(*id) {
        Ok(_) => false,
        Err(fault) => {
            *what = fault.to_string();
            true
        }
    });
    // What is found on the way has no consequence for the mount.
    let aside = Aside::new(&e.nodes);
    // Where inodes or extents are missing an owner may be among them.
    let complete = nodes.is_empty();
    let mut unowned = suspects.lbns.clone();
    let mut owner_of: BTreeMap<u32, Ino> = BTreeMap::new();
    for (i, ino) in inodes(e).into_iter().enumerate() {
        if e.stopping().load(Ordering::Acquire) {
            return Vec::new();
        }
        if i % TRIM_EVERY == TRIM_EVERY - 1 {
            e.trim_caches(e.journal.digested());
        }
        let Ok(handle) = e.inodes.get(&aside, ino) else {
            continue;
        };
        if !nodes.is_empty() {
            owned_nodes(&aside, &handle, &mut |id| {
                if nodes.contains_key(&id) {
                    owner_of.insert(id, ino);
                }
            });
        }
        if !suspects.lbns.is_empty() && handle.with(Inode::is_file) {
            file((e, &aside), &handle, &suspects.lbns, &mut unowned, &mut out);
        }
    }
    for (id, what) in nodes {
        out.push(page(e, id, what, owner_of.get(&id).copied()));
    }
    for lbn in unowned.iter().flat_map(Clone::clone) {
        out.extend(ownerless((e, &aside), lbn, complete).map(|f| (f, 0..0)));
    }
    named((e, &aside), out)
}

/// The text of an error without its kind, which is always the same.
pub(super) fn cause(err: FsError) -> String {
    err.cause().unwrap_or_else(|| err.to_string())
}

/// Numbers of all inodes there are.
fn inodes(e: &Engine) -> BTreeSet<Ino> {
    let g = &e.config.geometry;
    let mut all = BTreeSet::new();
    for id in g.inode_base..g.inode_end() {
        let Ok(Some(page)) = e.nodes.look_home(id as u32) else {
            continue;
        };
        for slot in 0..INODES_PER_PAGE {
            let at = inode::offset(slot as usize);
            if page[at..at + 4] != [0; 4] {
                all.insert((id - g.inode_base) * INODES_PER_PAGE + slot);
            }
        }
    }
    // Those that digest has not seen yet.
    e.inodes.for_each(|c| {
        all.insert(c.ino);
    });
    all
}

/// Looks at the extents of a file. Nothing is loaded for good: a scrub must not fill the cache.
fn with_extents<T>(
    aside: &Aside<'_>,
    handle: &InodeHandle,
    f: impl FnOnce(&ExtentMap) -> T,
) -> Result<T> {
    // A thread that changes the map holds this lock, so what is on pmem stays the truth if the map
    // is not in DRAM.
    let loaded = handle.extents.read();
    match loaded.as_ref() {
        Some(map) => Ok(f(map)),
        None => Ok(f(&ExtentMap::load(aside, handle.ino, &handle.image())?)),
    }
}

/// Blocks of a file that are damaged.
fn file(
    (e, aside): (&Engine, &Aside<'_>),
    handle: &InodeHandle,
    lbns: &RangeSet<Lbn>,
    unowned: &mut RangeSet<Lbn>,
    out: &mut Vec<Found>,
) {
    let blocks = with_extents(aside, handle, |map| {
        let mut blocks = BTreeMap::new();
        for (r, lbn) in map.iter() {
            let mine = lbn..lbn + (r.end - r.start);
            for hit in lbns.overlapping(&mine) {
                for l in hit.start.max(mine.start)..hit.end.min(mine.end) {
                    blocks.insert(r.start + (l - lbn), l);
                }
            }
        }
        blocks
    });
    let mut last: Option<Finding> = None;
    for (block, lbn) in blocks.unwrap_or_default() {
        unowned.remove(lbn..lbn + 1);
        let Some((area, what)) = confirm((e, aside), handle, block) else {
            continue;
        };
        let end = ((block + 1) * B)
            .min(handle.with(|i| i.size))
            .max(block * B + 1);
        match &mut last {
            Some(f) if f.area == area && f.bytes.as_ref().is_some_and(|r| r.end == block * B) => {
                f.bytes = f.bytes.take().map(|r| r.start..end);
                f.count += 1;
            }
            _ => {
                let next = Finding {
                    area,
                    inode: Some(handle.ino),
                    paths: Vec::new(),
                    bytes: Some(block * B..end),
                    count: 1,
                    what,
                };
                out.extend(last.replace(next).map(|f| (f, handle.ino..handle.ino + 1)));
            }
        }
    }
    out.extend(last.map(|f| (f, handle.ino..handle.ino + 1)));
}

/// Reads a block as a read of the file would.
fn confirm(
    (e, aside): (&Engine, &Aside<'_>),
    handle: &InodeHandle,
    block: u64,
) -> Option<(Area, String)> {
    let _op = handle.lock.read();
    let _range = handle.range.read(block * B..(block + 1) * B);
    let lbn = with_extents(aside, handle, |map| map.lbn(block)).ok()??;
    let mut buf = vec![0; BLOCK];
    let err = read::blocks_on_media(e, aside.watch(), &[Want { lbn, at: 0 }], &mut buf).err()?;
    let area = if e.staged.get(lbn).is_some() {
        Area::Staged
    } else if e.ppt.lookup(lbn).is_err() {
        Area::PageTable
    } else {
        Area::Data
    };
    Some((area, cause(err)))
}

/// What a block without a file is to be reported as.
fn ownerless((e, aside): (&Engine, &Aside<'_>), lbn: Lbn, complete: bool) -> Option<Finding> {
    let finding = |area, what| Finding {
        area,
        inode: None,
        paths: Vec::new(),
        bytes: None,
        count: 1,
        what,
    };
    // Every block has an entry, also a free one, and each is always intact.
    if let Err(err) = e.ppt.lookup(lbn) {
        return Some(finding(Area::PageTable, err.to_string()));
    }
    // The content of a free block does not matter.
    if complete || !e.lbns.pending_in(lbn..lbn + 1).is_empty() {
        return None;
    }
    let mut buf = vec![0; BLOCK];
    let err = read::blocks_on_media(e, aside.watch(), &[Want { lbn, at: 0 }], &mut buf).err()?;
    let what = format!("{}; its owner, if any, is lost", cause(err));
    Some(finding(Area::Data, what))
}

/// A damaged node page. One of inodes concerns all that it held.
fn page(e: &Engine, id: u32, what: String, owner: Option<Ino>) -> Found {
    let kind = e.nodes.static_kind(id);
    let of = match kind {
        Some(NodeKind::Inodes) => ", inodes",
        Some(NodeKind::Bitmap) => ", allocation bitmap",
        Some(NodeKind::Intents) => ", intents",
        Some(NodeKind::Quota) => ", quotas",
        _ => "",
    };
    let inos = match (kind, owner) {
        (Some(NodeKind::Inodes), _) => {
            let first = (u64::from(id) - e.config.geometry.inode_base) * INODES_PER_PAGE;
            first..first + INODES_PER_PAGE
        }
        (_, Some(ino)) => ino..ino + 1,
        (_, None) => 0..0,
    };
    let finding = Finding {
        area: Area::Metadata,
        inode: owner,
        paths: Vec::new(),
        bytes: None,
        count: 1,
        what: format!("{what}{of}"),
    };
    (finding, inos)
}

/// Calls `each` for the node pages of an inode, as far as they can be followed.
fn owned_nodes(aside: &Aside<'_>, handle: &InodeHandle, each: &mut dyn FnMut(u32)) {
    let _op = handle.lock.read();
    let image = handle.image();
    if image.mode == 0 {
        return;
    }
    if image.is_dir() {
        // What cannot be read has been passed to `each` before.
        let _ = dir::pages(aside, &image, each);
    } else if image.is_symlink() {
        chain(&Cached(aside), image.root, each);
    } else if image.is_file() {
        match handle.extents.read().as_ref() {
            Some(map) => map.pages().iter().for_each(|id| each(*id)),
            // Extent pages are never read through the cache.
            None => chain(&Homes(aside), image.root, each),
        }
    }
    chain(&Cached(aside), image.xattr, each);
}

/// Where the next page of a chain is looked up.
trait Next {
    fn next(&self, id: u32) -> Option<u32>;
}

struct Cached<'a>(&'a Aside<'a>);

impl Next for Cached<'_> {
    fn next(&self, id: u32) -> Option<u32> {
        self.0.read(id).ok().map(|p| node::next(&p[..]))
    }
}

struct Homes<'a>(&'a Aside<'a>);

impl Next for Homes<'_> {
    fn next(&self, id: u32) -> Option<u32> {
        self.0.home(id).ok().flatten().map(|p| node::next(&p[..]))
    }
}

fn chain(pages: &dyn Next, first: u32, each: &mut dyn FnMut(u32)) {
    let mut seen = FxHashSet::default();
    let mut id = Some(first);
    while let Some(here) = id.filter(|id| *id != 0 && seen.insert(*id)) {
        each(here);
        id = pages.next(here);
    }
}

/// Fills in names: the tree is walked once for all findings.
fn named((e, aside): (&Engine, &Aside<'_>), mut found: Vec<Found>) -> Vec<Finding> {
    let wanted: FxHashSet<Ino> = found.iter().flat_map(|(_, inos)| inos.clone()).collect();
    let mut names: FxHashMap<Ino, Vec<String>> = FxHashMap::default();
    if wanted.contains(&ROOT) {
        names.insert(ROOT, vec!["/".into()]);
    }
    if !wanted.is_empty() {
        walk((e, aside), &mut |ino, path: &dyn Fn() -> String| {
            if wanted.contains(&ino) {
                let all = names.entry(ino).or_default();
                if all.len() < NAMES_MAX {
                    all.push(shortened(&path()));
                }
            }
        });
    }
    for (f, inos) in &mut found {
        let all = inos.clone().filter_map(|ino| names.get(&ino));
        f.paths = all.flatten().take(PATHS_MAX).cloned().collect();
    }
    found.into_iter().map(|(f, _)| f).collect()
}

/// The end of a name, if that is long.
fn shortened(path: &str) -> String {
    let mut cut = path.len().saturating_sub(PATH_MAX);
    while !path.is_char_boundary(cut) {
        cut += 1;
    }
    let dots = if cut > 0 { "..." } else { "" };
    format!("{dots}{}", &path[cut..])
}

/// Calls `each` for every entry of every directory that can be read.
fn walk((e, aside): (&Engine, &Aside<'_>), each: &mut dyn FnMut(Ino, &dyn Fn() -> String)) {
    let mut open = vec![(ROOT, String::new())];
    let mut seen = 0;
    while let Some((ino, path)) = open.pop() {
        if e.stopping().load(Ordering::Acquire) {
            return;
        }
        let mut after = FIRST_COOKIE - 1;
        loop {
            let listed = list((e, aside), ino, after);
            for l in &listed {
                let full = || format!("{path}/{}", String::from_utf8_lossy(&l.name));
                each(l.ino, &full);
                if u32::from(l.kind) == S_IFDIR >> 12 {
                    open.push((l.ino, full()));
                }
            }
            match listed.last() {
                Some(l) => after = l.cookie,
                None => break,
            }
        }
        seen += 1;
        if seen % TRIM_EVERY == 0 {
            e.trim_caches(e.journal.digested());
        }
    }
}

/// Some entries behind `after`; none at the end, or where the directory is gone or damaged.
fn list((e, aside): (&Engine, &Aside<'_>), ino: Ino, after: u64) -> Vec<dir::Listed> {
    let mut out = Vec::new();
    let Ok(handle) = e.inodes.get(aside, ino) else {
        return out;
    };
    let _op = handle.lock.read();
    let image = handle.image();
    if image.is_dir() {
        // Damage is a finding of its own; what comes before it has names.
        let _ = dir::list(aside, &image, after, |l| {
            out.push(l);
            out.len() < LISTED
        });
    }
    out
}
