//! PostMark (Katcher, "PostMark: A New File System Benchmark", NetApp TR-3022), written anew from its
//! description: a pool of small files of a mail server. One operation is one transaction, and that
//! is a file read as a whole or appended to, then a file created or deleted, all four as likely.
//! Sizes are from 500 to 9,999 bytes, each as likely; an append never makes a file larger than 10,000.
//!
//! What differs from the original:
//! - the pool has 5,000 files, not 500, and is made before the measured time; it is removed after it;
//! - transactions for `--seconds`, not 500 of them (`--ops` says how many);
//! - the system calls of its buffered mode, which the C library makes of calls of 512 bytes: reads and
//!   writes of 4 KiB, and an `fstat` of each file. Its raw mode would use 512 bytes;
//! - names are relative to an open directory;
//! - a thread has a pool of its own; the original knows one thread, and ends when no file is left.

use crate::error::Result;
use crate::fileset::write_whole;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::name::Name;
use crate::random::Random;
use crate::workload::{Aligned, Flow, Info, Place, Private, Worker, Workload};
use rustix::fs::OFlags;

const FAMILY: &str = "pool";
const SMALLEST: u64 = 500;
const LARGEST: u64 = 10_000;
const CALL: usize = 4096;

const STEPS: &[&str] = &["read", "append", "create", "delete"];

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let info = |name, about| Info::new(name, FAMILY, about).on_files(5000).steps(STEPS);
    all.push(Box::new(Private {
        info: info(
            "postmark",
            "a file of 0.5 to 10 KB read or appended to, then one created or deleted; nothing durable",
        ),
        worker: |place, thread| worker(place, thread, false),
    }));
    all.push(Box::new(Private {
        info: info(
            "postmark-durable",
            "the same with fsync before each close of a file that was written",
        ),
        worker: |place, thread| worker(place, thread, true),
    }));
}

fn worker<'a>(place: &'a Place<'a>, thread: usize, durable: bool) -> Result<Box<dyn Worker + 'a>> {
    let files = place.params.files as usize;
    let mut random = place.random(thread);
    let mut pool = Pool {
        dir: place.own_dir(thread)?,
        name: Name::new("f"),
        files: Vec::with_capacity(2 * files),
        created: 0,
        buffer: Aligned::random(CALL, &mut random),
        random,
        durable: false,
    };
    let mut setup = Meter::new(STEPS.len());
    while pool.files.len() < files {
        place.go_on()?;
        pool.create(&mut setup)?;
    }
    pool.durable = durable;
    Ok(Box::new(move |m: &mut Meter| {
        if pool.random.coin() {
            pool.read(m)?;
        } else {
            pool.append(m)?;
        }
        if pool.random.coin() {
            pool.create(m)?;
        } else {
            pool.delete(m)?;
        }
        m.op_ended();
        Ok(Flow::More)
    }))
}

/// Files by number, with their sizes.
struct Pool<'a> {
    dir: Handle<'a>,
    name: Name,
    files: Vec<(u64, u64)>,
    created: u64,
    random: Random,
    buffer: Aligned,
    durable: bool,
}

impl<'a> Pool<'a> {
    fn any(&mut self) -> Option<usize> {
        let n = self.files.len() as u64;
        (n > 0).then(|| self.random.below(n) as usize)
    }

    fn finish(&self, m: &mut Meter, file: Handle<'a>) -> Result<()> {
        if self.durable {
            m.fsync(&file)?;
        }
        m.close(file);
        Ok(())
    }

    fn create(&mut self, m: &mut Meter) -> Result<()> {
        // Twice the pool is the most there is room for, as in the original.
        if self.files.len() < self.files.capacity() {
            let size = self.random.between(SMALLEST, LARGEST - 1);
            let number = self.created;
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let file = m.open(&self.dir, self.name.at(number), flags)?;
            m.fstat(&file)?;
            write_whole(m, &file, self.buffer.stamped(number), size)?;
            self.finish(m, file)?;
            self.files.push((number, size));
            self.created += 1;
        }
        m.step(2);
        Ok(())
    }

    fn delete(&mut self, m: &mut Meter) -> Result<()> {
        if let Some(i) = self.any() {
            let (number, _) = self.files.swap_remove(i);
            m.unlink(&self.dir, self.name.at(number))?;
        }
        m.step(3);
        Ok(())
    }

    fn read(&mut self, m: &mut Meter) -> Result<()> {
        if let Some(i) = self.any() {
            let (number, size) = self.files[i];
            let file = m.open(&self.dir, self.name.at(number), OFlags::RDONLY)?;
            m.fstat(&file)?;
            m.read_known(&file, self.buffer.get(), size)?;
            m.close(file);
        }
        m.step(0);
        Ok(())
    }

    fn append(&mut self, m: &mut Meter) -> Result<()> {
        if let Some(i) = self.any() {
            let (number, size) = self.files[i];
            if size < LARGEST {
                let more = self.random.between(1, LARGEST - size);
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
                let file = m.open(&self.dir, self.name.at(number), flags)?;
                m.seek_end(&file)?;
                m.fstat(&file)?;
                write_whole(m, &file, self.buffer.stamped(number), more)?;
                self.finish(m, file)?;
                self.files[i].1 = size + more;
            }
        }
        m.step(1);
        Ok(())
    }
}
