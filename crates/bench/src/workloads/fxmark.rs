//! Nine microbenchmarks of FxMark (Min et al., "Understanding Manycore Scalability of File Systems",
//! USENIX ATC 2016), written anew from what they do. The name says: data or metadata, read or write,
//! what, and how much threads share (L low, M medium).
//!
//! What differs from the original:
//! - threads of one process, not processes, so they share a table of open files; they are bound to CPUs
//!   only with `--pin`, and sleep at the start where the original spins;
//! - the clock is read after each operation;
//! - names are relative to an open directory, so the path above the benchmark is not looked up again, but
//!   for MRPL, which is about just that;
//! - DWAL begins its file anew at 256 MiB, which is not measured: the original fills the device;
//! - one thread unless told otherwise; the original takes as many as there are CPUs;
//! - the original writes the same page all the time and leaves its bytes to chance (MWCM: zeros); here
//!   they are random, and different each time.

use crate::error::Result;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Prepared, Private, Worker, Workload, filled_file,
    make_dir,
};
use rustix::fs::OFlags;
use std::ffi::CString;

const FAMILY: &str = "fxmark";
const PAGE: u64 = 4096;
/// DWOM: what each thread has of the shared file.
const REGION: u64 = 8 << 20;
/// DWAL: where a file ends.
const LONGEST: u64 = 256 << 20;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let private: [(&'static str, &'static str, MakeWorker); 7] = [
        (
            "DWSL",
            "pwrite 4 KiB over the one block of a private file, fsync",
            |place, thread| overwrite(place, thread, true),
        ),
        (
            "DWOL",
            "pwrite 4 KiB over the one block of a private file",
            |place, thread| overwrite(place, thread, false),
        ),
        ("DWAL", "append 4 KiB to a private file", append),
        (
            "DRBL",
            "pread 4 KiB, the one block of a private file",
            read_block,
        ),
        (
            "MWCL",
            "create an empty file in a private directory and close it",
            create_private,
        ),
        (
            "MWRL",
            "rename a file within a private directory",
            rename_private,
        ),
        (
            "MRPL",
            "stat of a file five directories deep, private to the thread",
            resolve_private,
        ),
    ];
    for (name, about, worker) in private {
        let mut info = Info::new(name, FAMILY, about);
        if name == "DWSL" {
            info = info.steps(&["write", "fsync"]);
        }
        all.push(Box::new(Private { info, worker }));
    }
    all.push(Box::new(Prepared {
        info: Info::new(
            "DWOM",
            FAMILY,
            "pwrite 4 KiB over the first block of the thread's 8 MiB of a shared file",
        ),
        prepare: share_file,
        worker: overwrite_shared,
    }));
    all.push(Box::new(Private {
        info: Info::new(
            "MWCM",
            FAMILY,
            "create a file in a shared directory, write 4 KiB, close",
        ),
        worker: create_shared,
    }));
}

/// A private file of one block.
fn one_block<'a>(place: &Place<'a>, thread: usize, buffer: &mut Aligned) -> Result<Handle<'a>> {
    let dir = place.own_dir(thread)?;
    let mut setup = Meter::new(0);
    let file = setup.open(&dir, c"file", OFlags::CREATE | OFlags::RDWR)?;
    setup.write(&file, buffer.get())?;
    Ok(file)
}

fn page(place: &Place<'_>, thread: usize) -> Aligned {
    Aligned::random(PAGE as usize, &mut place.random(thread))
}

fn overwrite<'a>(
    place: &'a Place<'a>,
    thread: usize,
    durable: bool,
) -> Result<Box<dyn Worker + 'a>> {
    let mut buffer = page(place, thread);
    let file = one_block(place, thread, &mut buffer)?;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.pwrite(&file, buffer.stamped(n), 0)?;
        n += 1;
        if durable {
            m.step(0);
            m.fsync(&file)?;
            m.op_of(1);
        } else {
            m.op();
        }
        Ok(Flow::More)
    }))
}

fn append<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut buffer = page(place, thread);
    let flags = OFlags::CREATE | OFlags::RDWR;
    let mut file = Meter::new(0).open(&dir, c"file", flags)?;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        if n > 0 && n % (LONGEST / PAGE) == 0 {
            m.unlink(&dir, c"file")?;
            let next = m.open(&dir, c"file", flags)?;
            m.close(std::mem::replace(&mut file, next));
            m.exclude();
        }
        m.write(&file, buffer.stamped(n))?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn read_block<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut buffer = page(place, thread);
    let file = one_block(place, thread, &mut buffer)?;
    Ok(Box::new(move |m: &mut Meter| {
        m.pread(&file, buffer.get(), 0)?;
        m.op();
        Ok(Flow::More)
    }))
}

fn create_private<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut name = Name::new("inode_alloc-");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let file = m.open(&dir, name.at(n), OFlags::CREATE | OFlags::RDWR)?;
        m.close(file);
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn rename_private<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let (mut from, mut to) = (Name::new("file_rename-"), Name::new("file_rename-"));
    let mut setup = Meter::new(0);
    let file = setup.create(&dir, from.at(0))?;
    setup.fsync(&file)?;
    setup.close(file);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.rename(&dir, from.at(n), to.at(n + 1))?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn resolve_private<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    for path in [c"0", c"0/0", c"0/0/0"] {
        make_dir(&dir, path)?;
    }
    let mut setup = Meter::new(0);
    let file = setup.create(&dir, c"0/0/0/0")?;
    setup.close(file);
    // The thread's directory is part of the path.
    let mut prefix = Name::new("t");
    let name = [prefix.at(thread as u64).to_bytes(), b"/0/0/0/0\0"].concat();
    let name = CString::from_vec_with_nul(name).unwrap_or_default();
    let path = place.dir().whole_path(&name);
    Ok(Box::new(move |m: &mut Meter| {
        m.stat(place.dir(), &path)?;
        m.op();
        Ok(Flow::More)
    }))
}

fn share_file(place: &Place<'_>) -> Result<()> {
    let bytes = REGION * u64::from(place.params.threads);
    let mut random = place.random(usize::MAX);
    filled_file(place.dir(), c"file", bytes, OFlags::RDWR, &mut random).map(drop)
}

fn overwrite_shared<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let file = Meter::new(0).open(place.dir(), c"file", OFlags::RDWR)?;
    let mut buffer = page(place, thread);
    let at = REGION * thread as u64;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.pwrite(&file, buffer.stamped(n), at)?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn create_shared<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let mut buffer = page(place, thread);
    // Names of threads must differ: the number of the thread is in the upper half.
    let mut name = Name::new("file_cr-");
    let base = (thread as u64) << 32;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let flags = OFlags::CREATE | OFlags::RDWR;
        let file = m.open(place.dir(), name.at(base + n), flags)?;
        m.write(&file, buffer.stamped(n))?;
        m.close(file);
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}
