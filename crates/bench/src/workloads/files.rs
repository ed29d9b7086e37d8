//! Files opened, created, removed and renamed.

use crate::error::Result;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{Aligned, Flow, Info, Place, Private, Worker, Workload, filled_file};
use rustix::fs::OFlags;
use std::ffi::CStr;

const FAMILY: &str = "files";
/// Files of one directory: after so many `create` goes on in a new one.
const PER_DIRECTORY: u64 = 10_000;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let infos: [(Info, crate::workload::MakeWorker); 6] = [
        (
            Info::new("open", FAMILY, "open and close a cached file"),
            open,
        ),
        (
            Info::new(
                "open-read",
                FAMILY,
                "open, read 4 KiB from the cache, close",
            ),
            open_read,
        ),
        (
            Info::new(
                "create",
                FAMILY,
                "create an empty file and close it; 10,000 to a directory",
            ),
            create,
        ),
        (
            Info::new("unlink", FAMILY, "remove an empty file that was just made")
                .on_files(20_000)
                .fixed(),
            unlink,
        ),
        (
            Info::new(
                "create-unlink",
                FAMILY,
                "create a file, close it, remove it",
            ),
            create_unlink,
        ),
        (
            Info::new("rename", FAMILY, "rename a file within its directory"),
            rename,
        ),
    ];
    for (info, worker) in infos {
        all.push(Box::new(Private { info, worker }));
    }
}

fn one_file<'a>(place: &Place<'a>, thread: usize) -> Result<Handle<'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    drop(filled_file(
        &dir,
        c"file",
        4096,
        OFlags::RDONLY,
        &mut random,
    )?);
    Ok(dir)
}

fn open<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = one_file(place, thread)?;
    Ok(Box::new(move |m: &mut Meter| {
        let file = m.open(&dir, c"file", OFlags::RDWR)?;
        m.close(file);
        m.op();
        Ok(Flow::More)
    }))
}

fn open_read<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = one_file(place, thread)?;
    let mut buffer = Aligned::random(4096, &mut place.random(thread));
    Ok(Box::new(move |m: &mut Meter| {
        let file = m.open(&dir, c"file", OFlags::RDONLY)?;
        m.pread(&file, buffer.get(), 0)?;
        m.close(file);
        m.op();
        Ok(Flow::More)
    }))
}

/// Directories `d0`, `d1`, ..., each for [`PER_DIRECTORY`] files.
struct Fresh<'a> {
    parent: Handle<'a>,
    current: Handle<'a>,
    names: Name,
    used: u64,
}

impl<'a> Fresh<'a> {
    fn new(parent: Handle<'a>) -> Result<Self> {
        let mut names = Name::new("d");
        let current = Self::make(&parent, names.at(0), &mut Meter::new(0))?;
        Ok(Self {
            parent,
            current,
            names,
            used: 0,
        })
    }

    fn make(parent: &Handle<'a>, name: &CStr, m: &mut Meter) -> Result<Handle<'a>> {
        m.mkdir(parent, name)?;
        m.open_dir(parent, name)
    }

    /// The directory for the next file.
    fn next(&mut self, m: &mut Meter) -> Result<&Handle<'a>> {
        if self.used > 0 && self.used.is_multiple_of(PER_DIRECTORY) {
            let name = self.names.at(self.used / PER_DIRECTORY);
            let next = Self::make(&self.parent, name, m)?;
            m.close(std::mem::replace(&mut self.current, next));
            m.exclude();
        }
        self.used += 1;
        Ok(&self.current)
    }
}

fn create<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut fresh = Fresh::new(place.own_dir(thread)?)?;
    let mut name = Name::new("f");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let dir = fresh.next(m)?;
        let file = m.create(dir, name.at(n))?;
        m.close(file);
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn unlink<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut fresh = Fresh::new(place.own_dir(thread)?)?;
    let parent = place.own_dir(thread)?;
    let mut setup = Meter::new(0);
    let mut name = Name::new("f");
    let mut dirs = Vec::new();
    for n in 0..place.params.files {
        let dir = fresh.next(&mut setup)?;
        let file = setup.create(dir, name.at(n))?;
        setup.close(file);
    }
    let mut dir_name = Name::new("d");
    for d in 0..place.params.files.div_ceil(PER_DIRECTORY) {
        dirs.push(setup.open_dir(&parent, dir_name.at(d))?);
    }
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        if n == place.params.files {
            return Ok(Flow::Done);
        }
        let dir = &dirs[(n / PER_DIRECTORY) as usize];
        m.unlink(dir, name.at(n))?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn create_unlink<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut name = Name::new("f");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let name = name.at(n);
        let file = m.create(&dir, name)?;
        m.close(file);
        m.unlink(&dir, name)?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn rename<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let (mut from, mut to) = (Name::new("f"), Name::new("f"));
    let mut setup = Meter::new(0);
    let file = setup.create(&dir, from.at(0))?;
    setup.close(file);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.rename(&dir, from.at(n), to.at(n + 1))?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}
