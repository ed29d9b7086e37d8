//! Trees of small files, as in Tokubench (Esmet et al., "The TokuFS Streaming File System",
//! HotStorage 2012): a balanced tree of directories with 128 entries each, filled with small files,
//! then walked, read and removed. One operation is one file; the directories that it needs are part
//! of it.
//!
//! What differs from the original: 40,000 files of 4 KiB (`tokubench-200`: of 200 bytes, as there)
//! instead of 3 million; a thread has a tree of its own, and threads share the number of files.
//! `-durable` makes each file, then the directory that names it, durable.

use crate::error::Result;
use crate::fileset::write_whole;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Prepared, Private, Worker, Workload,
};
use rustix::fs::OFlags;

const FAMILY: &str = "trees";
/// Entries of a directory.
const FANOUT: u64 = 128;
const FILES: u64 = 40_000;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let fill: [(&'static str, &'static str, MakeWorker); 3] = [
        (
            "tokubench",
            "create 40,000 files of 4 KiB in a tree of directories of 128 entries",
            |place, thread| fill(place, thread, 4096, false),
        ),
        (
            "tokubench-200",
            "the same with files of 200 bytes",
            |place, thread| fill(place, thread, 200, false),
        ),
        (
            "tokubench-durable",
            "the same with files of 4 KiB, fsync of each and of its directory",
            |place, thread| fill(place, thread, 4096, true),
        ),
    ];
    for (name, about, worker) in fill {
        let info = Info::new(name, FAMILY, about).on_files(FILES).fixed();
        all.push(Box::new(Private { info, worker }));
    }
    let use_it: [(&'static str, &'static str, MakeWorker); 3] = [
        (
            "tree-walk",
            "list such a tree with the attributes of each file, with cold caches if root",
            walk,
        ),
        (
            "tree-read",
            "open, read and close each file of such a tree, with cold caches if root",
            read,
        ),
        (
            "tree-remove",
            "remove such a tree, with cold caches if root",
            remove,
        ),
    ];
    for (name, about, worker) in use_it {
        all.push(Box::new(Prepared {
            info: Info::new(name, FAMILY, about).on_files(FILES).fixed(),
            prepare: make,
            worker,
        }));
    }
}

/// The files of one thread of the run, in the order of their directories.
struct Tree<'a> {
    root: Handle<'a>,
    names: [Name; 3],
    files: u64,
    next: u64,
    /// Directory of the next file, and the one above.
    open: [Option<Handle<'a>>; 2],
}

impl<'a> Tree<'a> {
    fn new(place: &Place<'a>, thread: usize) -> Result<Self> {
        let (all, threads) = (place.params.files, u64::from(place.params.threads));
        let mine = all / threads + u64::from((thread as u64) < all % threads);
        Ok(Self {
            root: place.own_dir(thread)?,
            names: [Name::new("d"), Name::new("e"), Name::new("f")],
            files: mine,
            next: 0,
            open: [None, None],
        })
    }

    /// Number of the next file; makes or opens its directory if it is the first there.
    fn enter(&mut self, m: &mut Meter, make: bool) -> Result<Option<u64>> {
        let n = self.next;
        if n == self.files {
            return Ok(None);
        }
        let (leaf, upper) = (n / FANOUT, n / FANOUT / FANOUT);
        let levels = [
            (n.is_multiple_of(FANOUT * FANOUT), upper),
            (n.is_multiple_of(FANOUT), leaf % FANOUT),
        ];
        for (level, (first, number)) in levels.into_iter().enumerate() {
            if !first {
                continue;
            }
            let [upper, _] = &self.open;
            let parent = match level {
                0 => &self.root,
                _ => upper.as_ref().unwrap_or(&self.root),
            };
            let name = self.names[level].at(number);
            if make {
                m.mkdir(parent, name)?;
            }
            let dir = m.open_dir(parent, name)?;
            if let Some(old) = self.open[level].replace(dir) {
                m.close(old);
            }
        }
        self.next += 1;
        Ok(Some(n))
    }

    /// Directory of the file that was entered last.
    fn dir(&self) -> &Handle<'a> {
        self.open[1].as_ref().unwrap_or(&self.root)
    }
}

fn fill<'a>(
    place: &'a Place<'a>,
    thread: usize,
    size: u64,
    durable: bool,
) -> Result<Box<dyn Worker + 'a>> {
    let mut tree = Tree::new(place, thread)?;
    let mut buffer = Aligned::random(4096, &mut place.random(thread));
    Ok(Box::new(move |m: &mut Meter| {
        let Some(n) = tree.enter(m, true)? else {
            return Ok(Flow::Done);
        };
        let [_, _, name] = &mut tree.names;
        let name = name.at(n);
        let dir = tree.open[1].as_ref().unwrap_or(&tree.root);
        let file = m.create(dir, name)?;
        write_whole(m, &file, &mut buffer, n, size)?;
        if durable {
            m.fsync(&file)?;
        }
        m.close(file);
        if durable {
            m.fsync(dir)?;
        }
        m.op();
        Ok(Flow::More)
    }))
}

/// Makes the tree of each thread.
fn make(place: &Place<'_>) -> Result<()> {
    for thread in 0..place.params.threads as usize {
        let mut worker = fill(place, thread, 4096, false)?;
        let mut setup = Meter::new(0);
        while worker.go(&mut setup)? == Flow::More {
            place.go_on()?;
        }
    }
    Ok(())
}

fn walk<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut tree = Tree::new(place, thread)?;
    let mut room = Vec::with_capacity(32 << 10);
    Ok(Box::new(move |m: &mut Meter| {
        let Some(n) = tree.enter(m, false)? else {
            return Ok(Flow::Done);
        };
        // A directory at a time; its files are entered together.
        let names = m.list_long(tree.dir(), &mut room)?;
        tree.next = (n + FANOUT).min(tree.files);
        m.op_of_many(names);
        Ok(Flow::More)
    }))
}

fn read<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut tree = Tree::new(place, thread)?;
    let mut buffer = Aligned::random(64 << 10, &mut place.random(thread));
    Ok(Box::new(move |m: &mut Meter| {
        let Some(n) = tree.enter(m, false)? else {
            return Ok(Flow::Done);
        };
        let [_, _, name] = &mut tree.names;
        let name = name.at(n);
        let dir = tree.open[1].as_ref().unwrap_or(&tree.root);
        let file = m.open(dir, name, OFlags::RDONLY)?;
        m.read_to_end(&file, buffer.get())?;
        m.close(file);
        m.op();
        Ok(Flow::More)
    }))
}

fn remove<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut tree = Tree::new(place, thread)?;
    Ok(Box::new(move |m: &mut Meter| {
        let Some(n) = tree.enter(m, false)? else {
            return Ok(Flow::Done);
        };
        let last = n + 1 == tree.files;
        let [upper, leaf, name] = &mut tree.names;
        let [above, dir] = &tree.open;
        let dir = dir.as_ref().unwrap_or(&tree.root);
        let above = above.as_ref().unwrap_or(&tree.root);
        m.unlink(dir, name.at(n))?;
        if last || (n + 1).is_multiple_of(FANOUT) {
            m.rmdir(above, leaf.at(n / FANOUT % FANOUT))?;
        }
        if last || (n + 1).is_multiple_of(FANOUT * FANOUT) {
            m.rmdir(&tree.root, upper.at(n / FANOUT / FANOUT))?;
        }
        m.op();
        Ok(Flow::More)
    }))
}
