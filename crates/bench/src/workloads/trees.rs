//! Trees of small files.
//!
//! `tokubench` is the creation of small files in Tokubench (Esmet et al., "The TokuFS Streaming File
//! System", HotStorage 2012), written anew from the sources that BetrFS measures with. A tree of
//! directories of at most 128 entries is made beforehand. Each thread has a share of those that hold
//! files, in random order, and creates its share of the files in one after the other of them, in
//! rotation, with random numbers for names. One operation is one file.
//!
//! What differs from the original: 40,000 files of 4 KiB (`tokubench-200`: of 200 bytes, as there)
//! instead of 3 million; names are relative to an open directory. `-durable` makes each file, then the
//! directory that names it, durable; it has its directories open, and many files need many of those.
//!
//! The other workloads walk, read and remove trees of 128 entries in each directory, one tree for each
//! thread, which share the number of files. One operation is one file; the directories are part of it.

use crate::error::Result;
use crate::fileset::write_whole;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::random::Random;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Prepared, Private, Worker, Workload, make_dir,
};
use rustix::fs::OFlags;
use std::ffi::CString;

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
            |place, thread| scatter(place, thread, 4096, false),
        ),
        (
            "tokubench-200",
            "the same with files of 200 bytes",
            |place, thread| scatter(place, thread, 200, false),
        ),
        (
            "tokubench-durable",
            "the same with files of 4 KiB, fsync of each and of its directory",
            |place, thread| scatter(place, thread, 4096, true),
        ),
    ];
    for (name, about, worker) in fill {
        let info = Info::new(name, FAMILY, about).on_files(FILES).fixed();
        all.push(Box::new(Private { info, worker }));
    }
    let use_it: [(&'static str, &'static str, MakeWorker); 3] = [
        (
            "tree-walk",
            "list such a tree with the attributes of each file, kernel caches cold if root, a region never",
            walk,
        ),
        (
            "tree-read",
            "open, read and close each file of such a tree, kernel caches cold if root, a region never",
            read,
        ),
        (
            "tree-remove",
            "remove such a tree, kernel caches cold if root, a region never",
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

/// Paths of the directories that hold `files` files, in the order in which Tokubench makes them: as
/// long as there are more than fit, directories are made and each gets its part.
fn leaves(path: &str, files: u64, found: &mut Vec<String>) {
    if files <= FANOUT {
        found.push(path.to_owned());
        return;
    }
    let (each, more) = (files / FANOUT, files % FANOUT);
    let mut rest = files;
    for i in 0..FANOUT {
        let part = match each {
            0..FANOUT => rest.min(FANOUT),
            _ => each + u64::from(i < more),
        };
        if part > 0 {
            leaves(&format!("{path}/{i}"), part, found);
        }
        rest -= part;
    }
}

/// The part of `all` things that a thread gets: the first of them, and their number.
fn share(all: u64, threads: u64, thread: u64) -> (u64, u64) {
    let (each, more) = (all / threads, all % threads);
    let first = thread * each + thread.min(more);
    (first, each + u64::from(thread < more))
}

/// Directories in which a thread creates files; all of them are there afterwards.
fn own_leaves(place: &Place<'_>, thread: usize) -> Result<Vec<String>> {
    let threads = u64::from(place.params.threads);
    let mut all = Vec::new();
    leaves("b", place.params.files, &mut all);
    // The same order in each thread.
    shuffle(&mut all, &mut place.random(usize::MAX));
    let number = all.len() as u64;
    let own = if threads > number {
        vec![all.swap_remove(thread % all.len())]
    } else {
        let (first, n) = share(number, threads, thread as u64);
        all.drain(first as usize..(first + n) as usize).collect()
    };
    for path in &own {
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            make_dir(place.dir(), &CString::new(&path[..end]).unwrap_or_default())?;
        }
    }
    Ok(own)
}

fn shuffle(all: &mut [String], random: &mut Random) {
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i as u64 + 1) as usize);
    }
}

fn scatter<'a>(
    place: &'a Place<'a>,
    thread: usize,
    size: usize,
    durable: bool,
) -> Result<Box<dyn Worker + 'a>> {
    let own = own_leaves(place, thread)?;
    let mut setup = Meter::new(0);
    let mut dirs = Vec::new();
    for path in own.iter().filter(|_| durable) {
        let path = CString::new(path.as_str()).unwrap_or_default();
        dirs.push(setup.open_dir(place.dir(), &path)?);
    }
    let threads = u64::from(place.params.threads);
    let (_, files) = share(place.params.files, threads, thread as u64);
    let mut random = place.random(thread);
    let mut buffer = Aligned::random(4096, &mut random);
    let mut name = Name::new("f");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        if n == files {
            return Ok(Flow::Done);
        }
        let leaf = n as usize % own.len();
        let name = name.within(&own[leaf], random.below(u64::MAX));
        let file = m.open(place.dir(), name, OFlags::CREATE | OFlags::WRONLY)?;
        m.pwrite(&file, &buffer.stamped(n)[..size], 0)?;
        if durable {
            m.fsync(&file)?;
        }
        m.close(file);
        if durable {
            m.fsync(&dirs[leaf])?;
        }
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
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
        let threads = u64::from(place.params.threads);
        let (_, mine) = share(place.params.files, threads, thread as u64);
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

fn fill<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
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
        write_whole(m, &file, buffer.stamped(n), 4096)?;
        m.close(file);
        m.op();
        Ok(Flow::More)
    }))
}

/// Makes the tree of each thread.
fn make(place: &Place<'_>) -> Result<()> {
    for thread in 0..place.params.threads as usize {
        let mut worker = fill(place, thread)?;
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
