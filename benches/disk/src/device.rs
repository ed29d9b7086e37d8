//! The disk: a cache in front of the image, and how long commands take.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::cache::{Cache, Cut, Run, SECTOR};

/// Requests may come this much too early: pauses of the caller do not count against it.
const BURST: Duration = Duration::from_millis(4);

/// A disk with a volatile write cache.
pub struct Device {
    image: File,
    size: u64,
    flush_takes: Duration,
    pace: Option<Pace>,
    state: Mutex<State>,
    flushed: Condvar,
}

struct State {
    cache: Cache,
    rng: StdRng,
    /// The power is cut, or the image failed.
    dead: bool,
    /// Flushes that have begun, and that are done: one at a time.
    begun: u64,
    done: u64,
}

impl State {
    fn alive(&self) -> io::Result<()> {
        match self.dead {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

/// Spaces requests evenly.
struct Pace {
    gap: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    fn wait(&self) {
        let now = Instant::now();
        let turn = {
            let mut next = self.next.lock();
            let turn = (*next).max(now.checked_sub(BURST).unwrap_or(now));
            *next = turn + self.gap;
            turn
        };
        thread::sleep(turn.saturating_duration_since(now));
    }
}

impl Device {
    /// A disk with the content and length of `image`. `requests`: most reads and writes a second, 0 for no limit.
    ///
    /// # Errors
    /// Those of asking for the length; one that is not a multiple of a sector's.
    pub fn new(image: File, flush_takes: Duration, requests: u32, seed: u64) -> io::Result<Self> {
        let size = image.metadata()?.len();
        if !size.is_multiple_of(SECTOR as u64) {
            return Err(io::Error::other("the image ends within a sector"));
        }
        Ok(Self {
            image,
            size,
            flush_takes,
            pace: (requests > 0).then(|| Pace {
                gap: Duration::from_secs(1) / requests,
                next: Mutex::new(Instant::now()),
            }),
            state: Mutex::new(State {
                cache: Cache::default(),
                rng: StdRng::seed_from_u64(seed),
                dead: false,
                begun: 0,
                done: 0,
            }),
            flushed: Condvar::new(),
        })
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads whole sectors; less at the end of the disk.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let len = (self.size.saturating_sub(offset)).min(out.len() as u64) as usize;
        let out = &mut out[..len];
        whole_sectors(offset, len)?;
        self.pace();
        // Under the lock: no flush moves content from the cache to the image in between.
        let state = self.state.lock();
        state.alive()?;
        self.image.read_exact_at(out, offset)?;
        state.cache.read(offset, out);
        Ok(len)
    }

    /// Writes whole sectors, into the cache.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        whole_sectors(offset, data.len())?;
        if offset.checked_add(data.len() as u64) > Some(self.size) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.pace();
        let mut state = self.state.lock();
        state.alive()?;
        state.cache.write(offset, data);
        Ok(())
    }

    /// Makes durable what was written before: by the next flush to begin, which calls that wait meanwhile share.
    pub fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        while state.done < wanted {
            if state.begun > state.done {
                self.flushed.wait(&mut state);
                continue;
            }
            state.begun += 1;
            let covered = state.cache.completed();
            MutexGuard::unlocked(&mut state, || thread::sleep(self.flush_takes));
            if state.alive().is_ok() {
                let runs = state.cache.flush(covered);
                self.store(&mut state, &runs);
            }
            state.done = state.begun;
            self.flushed.notify_all();
        }
        state.alive()
    }

    /// Cuts the power.
    pub fn cut(&self) -> Option<Cut> {
        let mut state = self.state.lock();
        state.alive().ok()?;
        let State { cache, rng, .. } = &mut *state;
        let cut = cache.cut(rng);
        self.store(&mut state, &cut.runs);
        state.dead = true;
        Some(cut)
    }

    /// An orderly end, after the last request: everything reaches the image, unless the power was cut.
    pub fn end(&self) {
        let mut state = self.state.lock();
        let runs = state.cache.flush(u64::MAX);
        self.store(&mut state, &runs);
    }

    fn pace(&self) {
        if let Some(pace) = &self.pace {
            pace.wait();
        }
    }

    fn store(&self, state: &mut State, runs: &[Run]) {
        for (at, bytes) in runs {
            if let Err(e) = self.image.write_all_at(bytes, *at) {
                eprintln!("disk: the image cannot be written: {e}");
                state.dead = true;
                return;
            }
        }
    }
}

fn whole_sectors(offset: u64, len: usize) -> io::Result<()> {
    match offset.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}
