//! Cached reads and writes of an open file: nothing is made durable by the workload.

use crate::error::Result;
use crate::meter::Meter;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Private, Worker, Workload, filled_file,
};
use rustix::fs::OFlags;

const FAMILY: &str = "readwrite";
const FILE: u64 = 64 << 20;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let list: [(Info, MakeWorker); 4] = [
        (
            Info::new(
                "read",
                FAMILY,
                "pread 4 KiB at a random block of a cached file",
            ),
            |place, thread| reads(place, thread, 4096),
        ),
        (
            Info::new(
                "read-1m",
                FAMILY,
                "pread 1 MiB at a random MiB of a cached file",
            ),
            |place, thread| reads(place, thread, 1 << 20),
        ),
        (
            Info::new("overwrite", FAMILY, "pwrite 4 KiB over a random block"),
            |place, thread| writes(place, thread, 4096),
        ),
        (
            Info::new("write-1m", FAMILY, "pwrite 1 MiB over a random MiB"),
            |place, thread| writes(place, thread, 1 << 20),
        ),
    ];
    for (info, worker) in list {
        let info = info.on_bytes(FILE);
        all.push(Box::new(Private { info, worker }));
    }
}

fn reads<'a>(place: &'a Place<'a>, thread: usize, size: u64) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    let bytes = place.params.file_bytes;
    let file = filled_file(&dir, c"file", bytes, OFlags::RDONLY, &mut random)?;
    let mut buffer = Aligned::random(1 << 20, &mut random);
    let mut setup = Meter::new(0);
    for at in 0..bytes >> 20 {
        setup.pread(&file, buffer.get(), at << 20)?;
    }
    Ok(Box::new(move |m: &mut Meter| {
        let at = random.below(bytes / size) * size;
        m.pread(&file, &mut buffer.get()[..size as usize], at)?;
        m.op();
        Ok(Flow::More)
    }))
}

fn writes<'a>(place: &'a Place<'a>, thread: usize, size: u64) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    let bytes = place.params.file_bytes;
    let file = filled_file(&dir, c"file", bytes, OFlags::WRONLY, &mut random)?;
    let mut buffer = Aligned::random(size as usize, &mut random);
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let at = random.below(bytes / size) * size;
        m.pwrite(&file, buffer.stamped(n), at)?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}
