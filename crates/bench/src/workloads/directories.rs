//! Directories made, removed and listed.

use crate::caches::{self, What};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{
    Flow, Info, Job, Params, Place, Prepared, Private, Worker, Workload, make_dir,
};
use std::ffi::CStr;

const FAMILY: &str = "directories";
/// Bytes of a buffer for `getdents64`, as in glibc.
const ROOM: usize = 32 << 10;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    all.push(Box::new(Private {
        info: Info::new("mkdir-rmdir", FAMILY, "make a directory and remove it"),
        worker: mkdir_rmdir,
    }));
    all.push(Box::new(Prepared {
        info: Info::new(
            "ls",
            FAMILY,
            "list a cached directory of 1,000 files with the attributes of each; one operation is one name",
        )
        .on_files(1000),
        prepare: fill,
        worker: ls,
    }));
    all.push(Box::new(Cold(
        Info::new(
            "ls-cold",
            FAMILY,
            "the same after dropping dentries and inodes (root only), a region is never cold; 20 listings, one operation is one name",
        )
        .on_files(1000)
        .kernel_only("it drops the kernel's caches, which a library does not use")
        .fixed(),
    )));
}

fn mkdir_rmdir<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut name = Name::new("d");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let name = name.at(n);
        m.mkdir(&dir, name)?;
        m.rmdir(&dir, name)?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

/// The directory that is listed.
const LISTED: &CStr = c"listed";

fn fill(place: &Place<'_>) -> Result<()> {
    make_dir(place.dir(), LISTED)?;
    let mut setup = Meter::new(0);
    let dir = setup.open_dir(place.dir(), LISTED)?;
    let mut name = Name::new("file-");
    for n in 0..place.params.files {
        let file = setup.create(&dir, name.at(n))?;
        setup.close(file);
    }
    Ok(())
}

/// Lists the directory once. Its names share the time that the listing took, so that figures of
/// directories of any size compare.
fn list(m: &mut Meter, dir: &Handle<'_>, room: &mut Vec<u8>, expected: u64) -> Result<()> {
    let names = m.list_long(dir, room)?;
    if names != expected {
        return Err(Error::Short {
            call: "readdir",
            path: dir.path(),
            got: names as usize,
            asked: expected as usize,
        });
    }
    m.op_of_many(names);
    Ok(())
}

fn ls<'a>(place: &'a Place<'a>, _: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = Meter::new(0).open_dir(place.dir(), LISTED)?;
    let mut room = Vec::with_capacity(ROOM);
    Ok(Box::new(move |m: &mut Meter| {
        list(m, &dir, &mut room, place.params.files)?;
        Ok(Flow::More)
    }))
}

/// Listings that all begin without dentries and inodes in the kernel's caches. The page cache stays,
/// and with it what a kernel file system has there.
struct Cold(Info);

/// Number of listings of a run.
const LISTINGS: u32 = 20;

impl Workload for Cold {
    fn info(&self) -> &Info {
        &self.0
    }

    fn check(&self, params: &Params) -> Result<()> {
        let why = if !caches::can_drop() {
            "only root can drop the kernel's caches"
        } else if params.threads != 1 {
            "one thread only: dropping caches slows down all of them"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported {
            workload: self.0.name,
            why: why.into(),
        })
    }

    fn prepare(&self, place: &Place<'_>) -> Result<Box<dyn Job>> {
        fill(place)?;
        Ok(Box::new(ColdJob))
    }
}

struct ColdJob;

impl Job for ColdJob {
    fn worker<'a>(&'a self, place: &'a Place<'a>, _: usize) -> Result<Box<dyn Worker + 'a>> {
        let mut room = Vec::with_capacity(ROOM);
        let mut rest = LISTINGS;
        Ok(Box::new(move |m: &mut Meter| {
            if rest == 0 {
                return Ok(Flow::Done);
            }
            rest -= 1;
            m.syncfs(place.dir())?;
            caches::drop(What::Objects)?;
            m.exclude();
            let dir = m.open_dir(place.dir(), LISTED)?;
            list(m, &dir, &mut room, place.params.files)?;
            m.close(dir);
            m.exclude();
            Ok(Flow::More)
        }))
    }
}
