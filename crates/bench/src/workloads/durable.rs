//! Work that is durable when it is done: `fsync` is part of the operation.

use crate::error::Result;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Private, Worker, Workload, filled_file,
};
use rustix::fs::OFlags;

const FAMILY: &str = "durable";
const FILE: u64 = 64 << 20;
/// `append-fsync` begins a new file at this size, so that no device is too small for it.
const LONGEST: u64 = 256 << 20;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let list: [(Info, MakeWorker); 6] = [
        (
            Info::new(
                "overwrite-fsync",
                FAMILY,
                "pwrite 4 KiB over a random block, fsync",
            )
            .on_bytes(FILE)
            .steps(&["write", "fsync"]),
            overwrite_fsync,
        ),
        (
            Info::new("append-fsync", FAMILY, "append 4 KiB, fsync").steps(&["write", "fsync"]),
            append_fsync,
        ),
        (
            Info::new(
                "create-fsync",
                FAMILY,
                "create a file, write 4 KiB, fsync, close",
            )
            .steps(&["create", "write", "fsync", "close"]),
            |place, thread| create_fsync(place, thread, false),
        ),
        (
            Info::new(
                "create-fsyncdir",
                FAMILY,
                "the same, then fsync of the directory: name and content are durable",
            )
            .steps(&["create", "write", "fsync", "close", "fsyncdir"]),
            |place, thread| create_fsync(place, thread, true),
        ),
        (
            Info::new(
                "rename-fsyncdir",
                FAMILY,
                "rename a file within its directory, fsync of the directory",
            )
            .steps(&["rename", "fsyncdir"]),
            rename_fsyncdir,
        ),
        (
            Info::new(
                "replace",
                FAMILY,
                "a new version of a 4 KiB file: create a temporary one, write, fsync, rename over the old, fsync of the directory",
            )
            .steps(&["create", "write", "fsync", "close", "rename", "fsyncdir"]),
            replace,
        ),
    ];
    for (info, worker) in list {
        all.push(Box::new(Private { info, worker }));
    }
}

fn overwrite_fsync<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    let bytes = place.params.file_bytes;
    let file = filled_file(&dir, c"file", bytes, OFlags::WRONLY, &mut random)?;
    let mut buffer = Aligned::random(4096, &mut random);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let at = random.below(bytes / 4096) * 4096;
        m.pwrite(&file, buffer.stamped(n), at)?;
        m.step(0);
        m.fsync(&file)?;
        m.step(1);
        m.op_ended();
        n += 1;
        Ok(Flow::More)
    }))
}

fn append_fsync<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut buffer = Aligned::random(4096, &mut place.random(thread));
    let flags = OFlags::WRONLY | OFlags::APPEND;
    let mut file = Meter::new(0).open(&dir, c"file", flags | OFlags::CREATE)?;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        if n > 0 && n % (LONGEST / 4096) == 0 {
            m.unlink(&dir, c"file")?;
            let next = m.open(&dir, c"file", flags | OFlags::CREATE)?;
            m.close(std::mem::replace(&mut file, next));
            m.exclude();
        }
        m.write(&file, buffer.stamped(n))?;
        m.step(0);
        m.fsync(&file)?;
        m.step(1);
        m.op_ended();
        n += 1;
        Ok(Flow::More)
    }))
}

fn create_fsync<'a>(
    place: &'a Place<'a>,
    thread: usize,
    directory_too: bool,
) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut buffer = Aligned::random(4096, &mut place.random(thread));
    let mut name = Name::new("f");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let file = m.create(&dir, name.at(n))?;
        m.step(0);
        m.write(&file, buffer.stamped(n))?;
        m.step(1);
        m.fsync(&file)?;
        m.step(2);
        m.close(file);
        m.step(3);
        if directory_too {
            m.fsync(&dir)?;
            m.step(4);
        }
        m.op_ended();
        n += 1;
        Ok(Flow::More)
    }))
}

fn rename_fsyncdir<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let (mut from, mut to) = (Name::new("f"), Name::new("f"));
    let mut setup = Meter::new(0);
    let file = setup.create(&dir, from.at(0))?;
    setup.close(file);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.rename(&dir, from.at(n), to.at(n + 1))?;
        m.step(0);
        m.fsync(&dir)?;
        m.step(1);
        m.op_ended();
        n += 1;
        Ok(Flow::More)
    }))
}

fn replace<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    drop(filled_file(
        &dir,
        c"file",
        4096,
        OFlags::RDONLY,
        &mut random,
    )?);
    let mut buffer = Aligned::random(4096, &mut random);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let file = m.create(&dir, c"file.new")?;
        m.step(0);
        m.write(&file, buffer.stamped(n))?;
        m.step(1);
        m.fsync(&file)?;
        m.step(2);
        m.close(file);
        m.step(3);
        m.rename(&dir, c"file.new", c"file")?;
        m.step(4);
        m.fsync(&dir)?;
        m.step(5);
        m.op_ended();
        n += 1;
        Ok(Flow::More)
    }))
}
