//! What a worker does its work with: counted calls and a clock.
//!
//! Nothing here allocates, takes a lock or reads the clock more than once a step. A step begins
//! where the one before ended, so what a workload itself computes between two system calls (a name,
//! a random offset: some tens of nanoseconds) is part of the latency, and throughput and latencies
//! tell the same story. [`clock_cost`] measures what the clock and the histogram add.

use crate::error::{Error, Result};
use crate::handle::Handle;
use hdrhistogram::Histogram;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// Longest latency that is told apart, 10 minutes; a longer one counts as this.
const LONGEST_NS: u64 = 600_000_000_000;
/// Significant digits of a latency: an error of at most 1 %.
const DIGITS: u8 = 2;

/// Mode of new files.
pub const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// Mode of new directories.
pub const DIR_MODE: Mode = Mode::from_raw_mode(0o755);

macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// System calls made, by kind.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Calls {
            $($(#[doc = $doc])+ #[serde(default, skip_serializing_if = "is_zero")] pub $name: u64,)+
        }

        impl Calls {
            /// Adds those of another thread.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// Calls of all kinds.
            pub fn total(&self) -> u64 {
                0 $(+ self.$name)+
            }
        }
    };
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

calls! {
    /// `openat`.
    open,
    /// `close`.
    close,
    /// `read`, `pread`.
    read,
    /// `write`, `pwrite`.
    write,
    /// `fsync`, of files and directories.
    fsync,
    /// `statx` or `newfstatat`, of a path or a file.
    stat,
    /// `lseek`.
    seek,
    /// `unlinkat` of a file.
    unlink,
    /// `renameat`.
    rename,
    /// `mkdirat`.
    mkdir,
    /// `unlinkat` of a directory.
    rmdir,
    /// `getdents64`.
    readdir,
    /// `fchmod`.
    chmod,
    /// `utimensat`.
    utimens,
    /// `syncfs`.
    syncfs,
}

/// A histogram of nanoseconds.
pub type Latencies = Histogram<u64>;

/// An empty one, all its memory allocated.
///
/// # Panics
/// Never: the bounds are constants that fit.
pub fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are in order")
}

/// The system calls and the clock of one thread.
#[derive(Debug)]
pub struct Meter {
    calls: Calls,
    bytes_written: u64,
    bytes_read: u64,
    ops: u64,
    all: Latencies,
    steps: Vec<Latencies>,
    op_began: Instant,
    last: Instant,
    begun: Instant,
    excluded: Duration,
}

/// What one thread has done.
#[derive(Clone, Debug)]
pub struct Tally {
    /// System calls.
    pub calls: Calls,
    /// Bytes that writes acknowledged.
    pub bytes_written: u64,
    /// Bytes that reads returned.
    pub bytes_read: u64,
    /// Operations.
    pub ops: u64,
    /// Latencies of operations.
    pub all: Latencies,
    /// Latencies of the steps that operations consist of, in the order of the workload's names.
    pub steps: Vec<Latencies>,
    /// When the measured time began.
    pub begun: Instant,
    /// When the last operation ended.
    pub ended: Instant,
    /// Time in between that does not count.
    pub excluded: Duration,
}

impl Meter {
    /// A meter for a workload with this many kinds of steps.
    pub fn new(steps: usize) -> Self {
        let now = Instant::now();
        Self {
            calls: Calls::default(),
            bytes_written: 0,
            bytes_read: 0,
            ops: 0,
            all: latencies(),
            steps: (0..steps).map(|_| latencies()).collect(),
            op_began: now,
            last: now,
            begun: now,
            excluded: Duration::ZERO,
        }
    }

    /// Forgets everything; the measured time begins now.
    pub fn restart(&mut self) {
        self.calls = Calls::default();
        (self.bytes_written, self.bytes_read, self.ops) = (0, 0, 0);
        self.all.reset();
        self.steps.iter_mut().for_each(Histogram::reset);
        self.excluded = Duration::ZERO;
        self.begun = Instant::now();
        (self.last, self.op_began) = (self.begun, self.begun);
    }

    /// A step has ended, and with it what it was for has not.
    #[inline]
    pub fn step(&mut self, kind: usize) {
        let now = Instant::now();
        self.steps[kind].saturating_record(nanos(now - self.last));
        self.last = now;
    }

    /// An operation has ended with the step before.
    #[inline]
    pub fn op_ended(&mut self) {
        self.all.saturating_record(nanos(self.last - self.op_began));
        self.op_began = self.last;
        self.ops += 1;
    }

    /// An operation of a single step has ended, of this kind.
    #[inline]
    pub fn op_of(&mut self, kind: usize) {
        self.step(kind);
        self.op_ended();
    }

    /// An operation of a single step has ended, in a workload that knows only one kind.
    #[inline]
    pub fn op(&mut self) {
        self.last = Instant::now();
        self.op_ended();
    }

    /// So many operations have ended together, which share the time they took.
    pub fn op_of_many(&mut self, ops: u64) {
        let now = Instant::now();
        let each = nanos(now - self.op_began) / ops.max(1);
        // The count is not zero and fits: the histogram counts in 64 bits.
        self.all.saturating_record_n(each, ops);
        self.ops += ops;
        (self.last, self.op_began) = (now, now);
    }

    /// What was done since the last operation is not measured: a fresh directory, caches dropped.
    /// Its system calls count all the same.
    pub fn exclude(&mut self) {
        let now = Instant::now();
        self.excluded += now - self.last;
        (self.last, self.op_began) = (now, now);
    }

    /// When the last step ended.
    #[inline]
    pub fn now(&self) -> Instant {
        self.last
    }

    /// Operations since the start.
    #[inline]
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// The result.
    pub fn finish(self) -> Tally {
        Tally {
            calls: self.calls,
            bytes_written: self.bytes_written,
            bytes_read: self.bytes_read,
            ops: self.ops,
            all: self.all,
            steps: self.steps,
            begun: self.begun,
            ended: self.last,
            excluded: self.excluded,
        }
    }

    /// Opens a file below `dir`.
    pub fn open<'l>(&mut self, dir: &Handle<'l>, name: &CStr, flags: OFlags) -> Result<Handle<'l>> {
        self.calls.open += 1;
        dir.open(name, flags, FILE_MODE)
            .map_err(|e| named("open", dir, name, e))
    }

    /// Creates a file that is not there, for writing.
    pub fn create<'l>(&mut self, dir: &Handle<'l>, name: &CStr) -> Result<Handle<'l>> {
        self.open(dir, name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)
    }

    /// Opens a directory.
    pub fn open_dir<'l>(&mut self, dir: &Handle<'l>, name: &CStr) -> Result<Handle<'l>> {
        self.open(dir, name, OFlags::DIRECTORY | OFlags::RDONLY)
    }

    /// Closes a file. Errors of `close` are not seen.
    pub fn close(&mut self, file: Handle<'_>) {
        self.calls.close += 1;
        drop(file);
    }

    /// Writes all of `data` at `offset` with one call.
    pub fn pwrite(&mut self, file: &Handle<'_>, data: &[u8], offset: u64) -> Result<()> {
        self.calls.write += 1;
        let n = file
            .pwrite(data, offset)
            .map_err(|e| opened("write", file, e))?;
        self.wrote(file, n, data.len())
    }

    /// Writes all of `data` at the file's position with one call.
    pub fn write(&mut self, file: &Handle<'_>, data: &[u8]) -> Result<()> {
        self.calls.write += 1;
        let n = file.write(data).map_err(|e| opened("write", file, e))?;
        self.wrote(file, n, data.len())
    }

    #[inline]
    fn wrote(&mut self, file: &Handle<'_>, got: usize, asked: usize) -> Result<()> {
        self.bytes_written += got as u64;
        if got == asked {
            Ok(())
        } else {
            Err(short("write", file, got, asked))
        }
    }

    /// Reads all of `buffer` at `offset` with one call.
    pub fn pread(&mut self, file: &Handle<'_>, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.calls.read += 1;
        let asked = buffer.len();
        let got = file
            .pread(buffer, offset)
            .map_err(|e| opened("read", file, e))?;
        self.bytes_read += got as u64;
        if got == asked {
            Ok(())
        } else {
            Err(short("read", file, got, asked))
        }
    }

    /// Reads from the file's position on until its end, with calls of the buffer's size, and
    /// returns the number of bytes.
    pub fn read_to_end(&mut self, file: &Handle<'_>, buffer: &mut [u8]) -> Result<u64> {
        let mut total = 0;
        loop {
            self.calls.read += 1;
            let got = file.read(buffer).map_err(|e| opened("read", file, e))?;
            if got == 0 {
                self.bytes_read += total;
                return Ok(total);
            }
            total += got as u64;
        }
    }

    /// Reads `bytes` from the file's position on, with calls of the buffer's size, and does not ask
    /// whether there are more.
    pub fn read_known(&mut self, file: &Handle<'_>, buffer: &mut [u8], bytes: u64) -> Result<()> {
        let mut total = 0;
        while total < bytes {
            self.calls.read += 1;
            let got = file.read(buffer).map_err(|e| opened("read", file, e))?;
            if got == 0 {
                return Err(short("read", file, total as usize, bytes as usize));
            }
            total += got as u64;
        }
        self.bytes_read += total;
        Ok(())
    }

    /// Moves the position to the end, and returns it.
    pub fn seek_end(&mut self, file: &Handle<'_>) -> Result<u64> {
        self.calls.seek += 1;
        file.seek_end().map_err(|e| opened("seek", file, e))
    }

    /// Moves the position to the start.
    pub fn seek_start(&mut self, file: &Handle<'_>) -> Result<()> {
        self.calls.seek += 1;
        file.seek_start().map_err(|e| opened("seek", file, e))
    }

    /// Attributes of an open file.
    pub fn fstat(&mut self, file: &Handle<'_>) -> Result<()> {
        self.calls.stat += 1;
        file.fstat().map_err(|e| opened("stat", file, e))
    }

    /// Makes a file or directory durable.
    pub fn fsync(&mut self, file: &Handle<'_>) -> Result<()> {
        self.calls.fsync += 1;
        file.fsync().map_err(|e| opened("fsync", file, e))
    }

    /// Makes a whole file system durable, as far as it is told.
    pub fn syncfs(&mut self, file: &Handle<'_>) -> Result<()> {
        self.calls.syncfs += 1;
        file.syncfs().map_err(|e| opened("syncfs", file, e))
    }

    /// Attributes of what is there; links are followed.
    pub fn stat(&mut self, dir: &Handle<'_>, name: &CStr) -> Result<()> {
        self.calls.stat += 1;
        dir.stat(name).map_err(|e| named("stat", dir, name, e))
    }

    /// Finds that a name is not there.
    pub fn stat_missing(&mut self, dir: &Handle<'_>, name: &CStr) -> Result<()> {
        self.calls.stat += 1;
        match dir.stat(name) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(named("stat", dir, name, e)),
            Ok(()) => Err(named("stat", dir, name, Errno::EXIST)),
        }
    }

    /// Removes a file.
    pub fn unlink(&mut self, dir: &Handle<'_>, name: &CStr) -> Result<()> {
        self.calls.unlink += 1;
        dir.unlink(name).map_err(|e| named("unlink", dir, name, e))
    }

    /// Renames within a directory.
    pub fn rename(&mut self, dir: &Handle<'_>, from: &CStr, to: &CStr) -> Result<()> {
        self.calls.rename += 1;
        dir.rename(from, to)
            .map_err(|e| named("rename", dir, from, e))
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, dir: &Handle<'_>, name: &CStr) -> Result<()> {
        self.calls.mkdir += 1;
        dir.mkdir(name, DIR_MODE)
            .map_err(|e| named("mkdir", dir, name, e))
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: &Handle<'_>, name: &CStr) -> Result<()> {
        self.calls.rmdir += 1;
        dir.rmdir(name).map_err(|e| named("rmdir", dir, name, e))
    }

    /// Lists a directory as `ls -l` does, with the attributes of each name, and returns how many
    /// there are. `room` has to hold some KiB.
    pub fn list_long(&mut self, dir: &Handle<'_>, room: &mut Vec<u8>) -> Result<u64> {
        let listed = dir.list_long(room).map_err(|e| opened("readdir", dir, e))?;
        self.calls.readdir += listed.calls;
        self.calls.stat += listed.names;
        self.calls.seek += listed.seeks;
        Ok(listed.names)
    }

    /// Sets mode bits of an open file.
    pub fn fchmod(&mut self, file: &Handle<'_>, mode: Mode) -> Result<()> {
        self.calls.chmod += 1;
        file.chmod(mode).map_err(|e| opened("chmod", file, e))
    }

    /// Sets the time of the last modification, in seconds.
    pub fn set_mtime(&mut self, file: &Handle<'_>, seconds: i64) -> Result<()> {
        self.calls.utimens += 1;
        file.set_mtime(seconds)
            .map_err(|e| opened("utimens", file, e))
    }
}

fn nanos(d: Duration) -> u64 {
    d.as_secs() * 1_000_000_000 + u64::from(d.subsec_nanos())
}

#[cold]
fn named(call: &'static str, dir: &Handle<'_>, name: &CStr, errno: Errno) -> Error {
    Error::Call {
        call,
        path: dir.path_below(name),
        errno,
    }
}

#[cold]
fn opened(call: &'static str, file: &Handle<'_>, errno: Errno) -> Error {
    Error::Call {
        call,
        path: file.path(),
        errno,
    }
}

#[cold]
fn short(call: &'static str, file: &Handle<'_>, got: usize, asked: usize) -> Error {
    Error::Short {
        call,
        path: file.path(),
        got,
        asked,
    }
}

/// What one operation costs when it does nothing: reading the clock, recording the latency.
/// Nanoseconds, the median of a number of batches.
pub fn clock_cost() -> u64 {
    const BATCH: u32 = 1000;
    let mut meter = Meter::new(1);
    let mut costs: Vec<u64> = (0..101)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..BATCH {
                meter.op_of(0);
            }
            nanos(begun.elapsed()) / u64::from(BATCH)
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_belong_to_operations() {
        let mut m = Meter::new(2);
        m.restart();
        for _ in 0..3 {
            m.step(0);
            m.step(1);
            m.step(1);
            m.op_ended();
        }
        m.op_of(0);
        let t = m.finish();
        assert_eq!((t.ops, t.all.len()), (4, 4));
        assert_eq!((t.steps[0].len(), t.steps[1].len()), (4, 6));
        assert_eq!(t.excluded, Duration::ZERO);
    }

    #[test]
    fn what_is_excluded_is_in_no_latency() {
        let mut m = Meter::new(0);
        m.restart();
        std::thread::sleep(Duration::from_millis(20));
        m.exclude();
        m.op();
        let t = m.finish();
        assert!(t.excluded >= Duration::from_millis(20), "{:?}", t.excluded);
        assert!(t.ended - t.begun >= t.excluded);
        assert_eq!(t.all.len(), 1);
        assert!(u128::from(t.all.max()) <= (t.ended - t.begun - t.excluded).as_nanos() * 102 / 100);
    }

    #[test]
    fn errors_name_call_path_and_reason() {
        let dir = tempfile::tempdir().unwrap();
        let at = Handle::directory(dir.path()).unwrap();
        let mut m = Meter::new(0);
        let e = m.unlink(&at, c"nothing").unwrap_err();
        let path = dir.path().join("nothing");
        assert_eq!(
            e.to_string(),
            format!(
                "unlink {}: No such file or directory (os error 2)",
                path.display()
            )
        );
        let file = m.create(&at, c"f").unwrap();
        let e = m.pread(&file, &mut [0; 8], 0).unwrap_err();
        assert!(e.to_string().contains("Bad file descriptor"), "{e}");
        m.pwrite(&file, b"abc", 0).unwrap();
        m.close(file);
        let file = m.open(&at, c"f", OFlags::RDONLY).unwrap();
        let e = m.pread(&file, &mut [0; 8], 0).unwrap_err();
        assert!(e.to_string().ends_with("/f: 3 of 8 bytes"), "{e}");
    }

    #[test]
    fn links_are_followed_but_not_by_a_listing() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nothing", dir.path().join("link")).unwrap();
        let at = Handle::directory(dir.path()).unwrap();
        let mut m = Meter::new(0);
        let e = m.stat(&at, c"link").unwrap_err().to_string();
        assert!(e.contains("No such file"), "{e}");
        let mut room = Vec::with_capacity(4096);
        assert_eq!(m.list_long(&at, &mut room).unwrap(), 1);
    }

    #[test]
    fn a_whole_path_begins_at_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        let path = Handle::directory(dir.path()).unwrap().whole_path(c"f");
        let real = dir.path().canonicalize().unwrap().join("f");
        assert_eq!(path.to_str().unwrap(), real.to_str().unwrap());
        let elsewhere = Handle::directory(other.path()).unwrap();
        Meter::new(0).stat(&elsewhere, &path).unwrap();
    }

    #[test]
    fn a_long_listing_stats_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = Handle::directory(dir.path()).unwrap();
        let mut m = Meter::new(0);
        let mut name = crate::name::Name::new("some-longer-name-");
        for n in 0..300 {
            let file = m.create(&at, name.at(n)).unwrap();
            m.close(file);
        }
        let mut room = Vec::with_capacity(4096);
        for _ in 0..2 {
            assert_eq!(m.list_long(&at, &mut room).unwrap(), 300);
        }
        let calls = m.finish().calls;
        assert_eq!((calls.open, calls.close, calls.stat), (300, 300, 600));
        assert!(calls.readdir > 6, "{calls:?}");
    }
}
