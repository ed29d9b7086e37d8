//! O_DIRECT: no page cache in between. With 16 threads 16 requests are under way at once, on one
//! file, as in a database.

use crate::error::Result;
use crate::meter::Meter;
use crate::workload::{
    Aligned, Flow, Info, MakeWorker, Place, Prepared, Worker, Workload, filled_file,
};
use rustix::fs::OFlags;

const FAMILY: &str = "direct";
const FILE: u64 = 64 << 20;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let list: [(&'static str, &'static str, u32, MakeWorker); 4] = [
        (
            "direct-write",
            "O_DIRECT pwrite 4 KiB over a random block of a file, one at a time",
            1,
            writes,
        ),
        (
            "direct-write-16",
            "the same from 16 threads on one file",
            16,
            writes,
        ),
        (
            "direct-read",
            "O_DIRECT pread 4 KiB at a random block of a file, one at a time",
            1,
            reads,
        ),
        (
            "direct-read-16",
            "the same from 16 threads on one file",
            16,
            reads,
        ),
    ];
    for (name, about, threads, worker) in list {
        all.push(Box::new(Prepared {
            info: Info::new(name, FAMILY, about)
                .threads(threads)
                .on_bytes(FILE),
            prepare,
            worker,
        }));
    }
}

fn prepare(place: &Place<'_>) -> Result<()> {
    let mut random = place.random(usize::MAX);
    let bytes = place.params.file_bytes;
    filled_file(place.dir(), c"file", bytes, OFlags::RDONLY, &mut random).map(drop)
}

fn writes<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let flags = OFlags::WRONLY | OFlags::DIRECT;
    let file = Meter::new(0).open(place.dir(), c"file", flags)?;
    let mut random = place.random(thread);
    let mut buffer = Aligned::random(4096, &mut random);
    let blocks = place.params.file_bytes / 4096;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let at = random.below(blocks) * 4096;
        m.pwrite(&file, buffer.stamped(n), at)?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}

fn reads<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let flags = OFlags::RDONLY | OFlags::DIRECT;
    let file = Meter::new(0).open(place.dir(), c"file", flags)?;
    let mut random = place.random(thread);
    let mut buffer = Aligned::random(4096, &mut random);
    let blocks = place.params.file_bytes / 4096;
    Ok(Box::new(move |m: &mut Meter| {
        let at = random.below(blocks) * 4096;
        m.pread(&file, buffer.get(), at)?;
        m.op();
        Ok(Flow::More)
    }))
}
