//! Three personalities of Filebench, written anew from their definitions (`varmail.f`,
//! `fileserver.f`, `webproxy.f` of version 1.5). As there, one operation is one *flowop* (a file
//! created, one read as a whole, one closed, ...), files are taken in rotation, and 80 in 100 of the
//! set exist at the start.
//!
//! | | files | size | directory | threads | loop |
//! |---|---|---|---|---|---|
//! | `varmail` | 1,000 | gamma, mean 16 KiB, shape 1.5 | one | 16 | delete; create, append, fsync, close; open, read, append, fsync, close; open, read, close |
//! | `fileserver` | 10,000 | gamma, mean 128 KiB, shape 1.5 | width 20 | 50 | create, write, close; open, append, close; open, read, close; delete; stat |
//! | `webproxy` | 10,000 | 16 KiB | one | 100 | delete; create, append, close; five times open, read, close |
//!
//! Appends are of 0 to 16,382 bytes, each size as likely, after a seek to the end; one of 0 bytes counts
//! and calls nothing. Files are read from the start with calls of 1 MiB until one returns nothing. A file's
//! directory is looked at with `stat` before the file is created. Names are whole paths. A thread has 10 MiB of
//! memory; what a flowop reads or writes is at a random place in it, a multiple of the call's size.
//! `-durable`: a file that was written is made durable before it is closed, which is no flowop of the original.
//!
//! What differs from the original:
//! - directories have exactly their width, not one of a gamma distribution, and files are on each level
//!   of the tree, not on the lowest;
//! - if nothing can be created, the steps on that file are left out and not counted (in the original the
//!   thread ends). What is open is not deleted, which is not counted there either;
//! - a file that another thread is opening or closing is taken all the same; the original takes the next;
//! - what a thread writes is random, not zeros (a mebibyte over and over, and each write begins with its
//!   number);
//! - a thread's memory is filled before the measured time begins, in the original as its first part;
//! - `opslimit` of Webproxy has no limit to enforce, and is left out;
//! - `--seconds` (5) instead of 60.

use crate::error::Result;
use crate::fileset::{Fileset, Width, write_whole};
use crate::handle::Handle;
use crate::meter::Meter;
use crate::random::{GammaSizes, Random};
use crate::workload::{Flow, Info, Job, Place, Worker, Workload};
use rustix::fs::OFlags;

const FAMILY: &str = "filebench";
/// Appends are of fewer bytes: 16 KiB, of which the original takes one off before it scales a random number
/// down to what is left.
const APPEND: u64 = (16 << 10) - 1;
/// Files are read and written as a whole with calls of this size.
const CALL: usize = 1 << 20;
/// Memory of each thread.
const MEMORY: usize = 10 * CALL;
/// Shape of sizes that vary.
const SHAPE: f64 = 1.5;

const STEPS: &[&str] = &[
    "delete", "create", "append", "write", "fsync", "open", "read", "close", "stat",
];
const DELETE: usize = 0;
const CREATE: usize = 1;
const APPENDED: usize = 2;
const WRITTEN: usize = 3;
const FSYNC: usize = 4;
const OPEN: usize = 5;
const READ: usize = 6;
const CLOSE: usize = 7;
const STAT: usize = 8;

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let info = |name, about, threads, files| {
        Info::new(name, FAMILY, about)
            .threads(threads)
            .on_files(files)
            .steps(STEPS)
    };
    let gamma = |mean: f64| -> Size { Size::Gamma(GammaSizes::new(mean, SHAPE)) };
    let list = [
        (
            info(
                "varmail",
                "a mail server: small files deleted, created, appended, made durable, read",
                16,
                1000,
            ),
            Width::One,
            gamma(16384.0),
            varmail as Loop,
            false,
        ),
        (
            info(
                "fileserver",
                "a file server: files created, written, appended, read, deleted; nothing durable",
                50,
                10_000,
            ),
            Width::Tree(20),
            gamma(131_072.0),
            fileserver,
            false,
        ),
        (
            info(
                "webproxy",
                "a cache: files deleted, created, appended, and read five times as often; nothing durable",
                100,
                10_000,
            ),
            Width::One,
            Size::Constant(16 << 10),
            webproxy,
            false,
        ),
        (
            info(
                "fileserver-durable",
                "the file server with fsync before each close of a file that was written",
                50,
                10_000,
            ),
            Width::Tree(20),
            gamma(131_072.0),
            fileserver,
            true,
        ),
        (
            info(
                "webproxy-durable",
                "the cache with fsync before each close of a file that was written",
                100,
                10_000,
            ),
            Width::One,
            Size::Constant(16 << 10),
            webproxy,
            true,
        ),
    ];
    for (info, width, size, body, durable) in list {
        all.push(Box::new(Personality {
            info,
            width,
            size,
            body,
            durable,
        }));
    }
}

/// One pass of a thread.
type Loop = fn(&mut Thread<'_>, &mut Meter) -> Result<()>;

#[derive(Clone, Copy)]
enum Size {
    Constant(u64),
    Gamma(GammaSizes),
}

struct Personality {
    info: Info,
    width: Width,
    size: Size,
    body: Loop,
    durable: bool,
}

impl Workload for Personality {
    fn info(&self) -> &Info {
        &self.info
    }

    fn prepare(&self, place: &Place<'_>) -> Result<Box<dyn Job>> {
        let size = self.size;
        let set = Fileset::make(
            place,
            place.params.files,
            self.width,
            &move |random| match size {
                Size::Constant(bytes) => bytes,
                Size::Gamma(sizes) => sizes.next(random),
            },
        )?;
        Ok(Box::new(Shared {
            set,
            body: self.body,
            durable: self.durable,
        }))
    }
}

struct Shared {
    set: Fileset,
    body: Loop,
    durable: bool,
}

impl Job for Shared {
    fn worker<'a>(&'a self, place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
        let mut random = place.random(thread);
        let mut thread = Thread {
            set: &self.set,
            place,
            memory: Memory::new((thread as u64) << 40, &mut random),
            random,
            durable: self.durable,
        };
        let body = self.body;
        Ok(Box::new(move |m: &mut Meter| {
            body(&mut thread, m)?;
            Ok(Flow::More)
        }))
    }
}

/// A file that a thread has open.
struct Opened<'a> {
    file: usize,
    fd: Handle<'a>,
}

struct Thread<'a> {
    set: &'a Fileset,
    place: &'a Place<'a>,
    random: Random,
    memory: Memory,
    durable: bool,
}

/// What a thread reads into and writes from.
struct Memory {
    bytes: Vec<u8>,
    stamp: u64,
}

impl Memory {
    /// A piece of random bytes over and over: a copy is cheaper than more of them, and there may be a
    /// hundred threads. Writes are numbered from `stamp` on.
    fn new(stamp: u64, random: &mut Random) -> Self {
        let mut piece = vec![0; CALL];
        random.fill(&mut piece);
        let bytes = piece.repeat(MEMORY / CALL);
        Self { bytes, stamp }
    }

    /// So many bytes at a random one of the places that are that far apart.
    fn room(&mut self, len: usize, random: &mut Random) -> &mut [u8] {
        let at = random.below((MEMORY - len) as u64) as usize / len * len;
        &mut self.bytes[at..at + len]
    }

    /// So many bytes to write. They begin with their number, so no two writes are the same.
    fn data(&mut self, len: usize, random: &mut Random) -> &[u8] {
        self.stamp += 1;
        let stamp = self.stamp.to_le_bytes();
        let data = self.room(len, random);
        let known = len.min(stamp.len());
        data[..known].copy_from_slice(&stamp[..known]);
        data
    }
}

/// Flowops. Each is one operation.
impl<'a> Thread<'a> {
    fn delete(&self, m: &mut Meter) -> Result<()> {
        if let Some(file) = self.set.take_victim() {
            m.unlink(self.place.dir(), self.set.name(file))?;
            self.set.removed(file);
            m.op_of(DELETE);
        }
        Ok(())
    }

    fn create(&self, m: &mut Meter) -> Result<Option<Opened<'a>>> {
        let Some(file) = self.set.take_missing() else {
            return Ok(None);
        };
        m.stat(self.place.dir(), self.set.directory(file))?;
        let flags = OFlags::CREATE | OFlags::RDWR;
        let fd = m.open(self.place.dir(), self.set.name(file), flags)?;
        self.set.created(file);
        m.op_of(CREATE);
        Ok(Some(Opened { file, fd }))
    }

    fn open(&self, m: &mut Meter) -> Result<Option<Opened<'a>>> {
        let Some(file) = self.set.take_existing() else {
            return Ok(None);
        };
        let fd = m.open(self.place.dir(), self.set.name(file), OFlags::RDWR)?;
        m.op_of(OPEN);
        Ok(Some(Opened { file, fd }))
    }

    fn append(&mut self, m: &mut Meter, o: &Opened<'_>) -> Result<()> {
        let len = self.random.below(APPEND) as usize;
        if len > 0 {
            m.seek_end(&o.fd)?;
            m.write(&o.fd, self.memory.data(len, &mut self.random))?;
        }
        m.op_of(APPENDED);
        Ok(())
    }

    fn write(&mut self, m: &mut Meter, o: &Opened<'_>) -> Result<()> {
        let size = self.set.size(o.file);
        let data = self.memory.data(CALL, &mut self.random);
        write_whole(m, &o.fd, data, size)?;
        m.op_of(WRITTEN);
        Ok(())
    }

    fn read(&mut self, m: &mut Meter, o: &Opened<'_>) -> Result<()> {
        m.seek_start(&o.fd)?;
        m.read_to_end(&o.fd, self.memory.room(CALL, &mut self.random))?;
        m.op_of(READ);
        Ok(())
    }

    fn fsync(&self, m: &mut Meter, o: &Opened<'_>) -> Result<()> {
        m.fsync(&o.fd)?;
        m.op_of(FSYNC);
        Ok(())
    }

    fn close(&self, m: &mut Meter, o: Opened<'_>) {
        m.close(o.fd);
        self.set.closed(o.file);
        m.op_of(CLOSE);
    }

    /// Closes a file that was written.
    fn finish(&self, m: &mut Meter, o: Opened<'_>) -> Result<()> {
        if self.durable {
            self.fsync(m, &o)?;
        }
        self.close(m, o);
        Ok(())
    }

    fn open_read_close(&mut self, m: &mut Meter) -> Result<()> {
        if let Some(o) = self.open(m)? {
            self.read(m, &o)?;
            self.close(m, o);
        }
        Ok(())
    }

    fn stat(&self, m: &mut Meter) -> Result<()> {
        // Taken as if to be opened, so that no thread removes it meanwhile.
        if let Some(file) = self.set.take_existing() {
            m.stat(self.place.dir(), self.set.name(file))?;
            self.set.closed(file);
            m.op_of(STAT);
        }
        Ok(())
    }
}

fn varmail(t: &mut Thread<'_>, m: &mut Meter) -> Result<()> {
    t.delete(m)?;
    if let Some(o) = t.create(m)? {
        t.append(m, &o)?;
        t.fsync(m, &o)?;
        t.close(m, o);
    }
    if let Some(o) = t.open(m)? {
        t.read(m, &o)?;
        t.append(m, &o)?;
        t.fsync(m, &o)?;
        t.close(m, o);
    }
    t.open_read_close(m)
}

fn fileserver(t: &mut Thread<'_>, m: &mut Meter) -> Result<()> {
    if let Some(o) = t.create(m)? {
        t.write(m, &o)?;
        t.finish(m, o)?;
    }
    if let Some(o) = t.open(m)? {
        t.append(m, &o)?;
        t.finish(m, o)?;
    }
    t.open_read_close(m)?;
    t.delete(m)?;
    t.stat(m)
}

fn webproxy(t: &mut Thread<'_>, m: &mut Meter) -> Result<()> {
    t.delete(m)?;
    if let Some(o) = t.create(m)? {
        t.append(m, &o)?;
        t.finish(m, o)?;
    }
    for _ in 0..5 {
        t.open_read_close(m)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_everywhere() {
        let random = &mut Random::new(1, 0);
        let mut memory = Memory::new(0, random);
        let start = memory.bytes.as_ptr() as usize;
        for len in [1, 7, 8, 100, APPEND as usize, CALL] {
            let mut places: Vec<usize> = (0..200)
                .map(|_| {
                    let data = memory.data(len, random);
                    assert_eq!(data.len(), len);
                    data.as_ptr() as usize - start
                })
                .collect();
            assert!(places.iter().all(|p| p.is_multiple_of(len)), "{len}");
            places.sort_unstable();
            places.dedup();
            // Of those of the largest calls there are nine.
            assert!(places.len() >= 9, "{len}: {places:?}");
            let (first, last) = (places[0], places[places.len() - 1]);
            assert!(first < 2 * CALL && last >= 8 * CALL, "{len}: {places:?}");
        }
    }

    #[test]
    fn no_two_writes_are_the_same() {
        let random = &mut Random::new(1, 0);
        let mut memory = Memory::new(7 << 40, random);
        for n in 1..100 {
            let data = memory.data(64, random);
            assert_eq!(data[..8], ((7 << 40) + n as u64).to_le_bytes());
            assert!(data[8..].iter().any(|b| *b != 0));
        }
    }
}
