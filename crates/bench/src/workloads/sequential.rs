//! Long streams, 1 MiB a call. What is written is durable at the end, and that counts.

use crate::error::Result;
use crate::meter::Meter;
use crate::workload::{
    Aligned, Flow, Info, Place, Prepared, Private, Worker, Workload, filled_file,
};
use rustix::fs::OFlags;

const FAMILY: &str = "sequential";
/// Larger than the staging area of a usual pmem region, so that rounds take part.
const FILE: u64 = 1 << 30;
const CHUNK: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    all.push(Box::new(Private {
        info: Info::new(
            "seq-write",
            FAMILY,
            "write a new file of 1 GiB in calls of 1 MiB, and one fsync; one operation is one call",
        )
        .on_bytes(FILE)
        .fixed()
        .steps(&["write", "fsync"]),
        worker: writes,
    }));
    all.push(Box::new(Prepared {
        info: Info::new(
            "seq-read",
            FAMILY,
            "read a file of 1 GiB in calls of 1 MiB, with cold caches if root",
        )
        .on_bytes(FILE)
        .fixed(),
        prepare,
        worker: reads,
    }));
    all.push(Box::new(Prepared {
        info: Info::new(
            "seq-read-scattered",
            FAMILY,
            "the same after each 4 KiB of the file was overwritten, in random order",
        )
        .on_bytes(FILE)
        .fixed(),
        prepare: |place| {
            prepare(place)?;
            scatter(place)
        },
        worker: reads,
    }));
}

/// Overwrites every block of each thread's file once. A file system that writes elsewhere leaves the file
/// in the order of these writes.
fn scatter(place: &Place<'_>) -> Result<()> {
    let mut random = place.random(usize::MAX);
    let mut buffer = Aligned::random(BLOCK as usize, &mut random);
    let blocks = place.params.file_bytes / BLOCK;
    let mut order: Vec<u64> = (0..blocks).collect();
    let mut setup = Meter::new(0);
    for thread in 0..place.params.threads as usize {
        let dir = place.own_dir(thread)?;
        let file = setup.open(&dir, c"file", OFlags::WRONLY)?;
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        for (n, block) in order.iter().enumerate() {
            if n % 1024 == 0 {
                place.go_on()?;
            }
            setup.pwrite(&file, buffer.stamped(n as u64), block * BLOCK)?;
        }
        setup.fsync(&file)?;
    }
    Ok(())
}

fn writes<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut buffer = Aligned::random(CHUNK as usize, &mut place.random(thread));
    let file = Meter::new(0).create(&dir, c"file")?;
    let chunks = place.params.file_bytes / CHUNK;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.write(&file, buffer.stamped(n))?;
        m.step(0);
        n += 1;
        if n < chunks {
            m.op_ended();
            return Ok(Flow::More);
        }
        m.fsync(&file)?;
        m.step(1);
        m.op_ended();
        Ok(Flow::Done)
    }))
}

fn prepare(place: &Place<'_>) -> Result<()> {
    let mut random = place.random(usize::MAX);
    for thread in 0..place.params.threads as usize {
        let dir = place.own_dir(thread)?;
        let bytes = place.params.file_bytes;
        drop(filled_file(
            &dir,
            c"file",
            bytes,
            OFlags::RDONLY,
            &mut random,
        )?);
    }
    Ok(())
}

fn reads<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let file = Meter::new(0).open(&dir, c"file", OFlags::RDONLY)?;
    let mut buffer = Aligned::random(CHUNK as usize, &mut place.random(thread));
    let chunks = place.params.file_bytes / CHUNK;
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.pread(&file, buffer.get(), n * CHUNK)?;
        m.op();
        n += 1;
        Ok(if n < chunks { Flow::More } else { Flow::Done })
    }))
}
