//! Recorded runs of several threads, each with a directory, a part of one file and some names in two
//! directories to itself, while others digest, checkpoint and evict.
//!
//! What a crash may leave is told for each thread: one of the states between its last acknowledged
//! operation and the last one it has begun. Of all threads together: with an operation all those
//! that had returned, to whomever, before it began.
//!
//! With the feature `sched` the threads run in the interleaving that belongs to the seed, and with it
//! the run is the same each time. Without it the system decides.

mod judge;
mod worker;

use quayfs_background::checkpoint::{self, Reach};
use quayfs_background::digest;
use quayfs_crashsim::{Recorder, Trace};
use quayfs_fs::{Caller, Fs};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_pmem::Backend;
use quayfs_sync::atomic::{AtomicBool, Ordering};
use quayfs_sync::thread;
use std::mem::take;
use std::panic::resume_unwind;
use std::sync::Arc;

use crate::crash::{self, Depth};
use crate::rng::Rng;
use crate::{Media, Shape};
use worker::{PART, Worker};

/// The same for all, or no two runs would leave the same bytes.
const IDENTITY: quayfs_mkfs::Identity = quayfs_mkfs::Identity {
    uuid: *b"two are a crowd.",
    data_uuid: *b"three is company",
    hash_key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
};

/// What threads share.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// A file of which every thread has a part.
    file: Ino,
    /// Directories in which every thread has names.
    dirs: [Ino; 2],
}

/// A run that has ended.
pub struct Pair {
    recorder: Recorder,
    options: MountOptions,
    workers: Vec<Worker>,
    shared: Shared,
    name: String,
}

impl Pair {
    /// Lets `threads` threads do `steps` operations each.
    ///
    /// # Panics
    /// If an operation, or the background, does what it must not.
    pub fn run(
        with: (&Shape, Backend),
        options: &MountOptions,
        threads: u64,
        steps: usize,
        seed: u64,
    ) -> Self {
        let body = || Self::record(with, options, threads, steps, seed);
        #[cfg(feature = "sched")]
        return quayfs_sync::sched::run(seed, body).0;
        #[cfg(not(feature = "sched"))]
        body()
    }

    fn record(
        (shape, backend): (&Shape, Backend),
        options: &MountOptions,
        threads: u64,
        steps: usize,
        seed: u64,
    ) -> Self {
        let geometry = shape.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
        let (region, device) = (recorder.region(), recorder.device());
        quayfs_mkfs::format_as(&region, &*device, geometry, "test", &IDENTITY).expect("mkfs");
        let media = Media { region, device };
        // Now and then with the threads that the daemon has.
        let daemon = cfg!(feature = "sched") && seed % 4 == 3;
        let mount = Mount(if daemon {
            media.mount(options)
        } else {
            media.mount_quiet(options)
        });
        let fs = &*mount.0;
        let (shared, workers) = prepare(fs, threads);
        recorder.start_here();
        let stop = AtomicBool::new(false);
        let workers = thread::scope(|s| {
            let helpers: Vec<_> = (0..if daemon { 1 } else { 2 })
                .map(|n| {
                    let (stop, mut rng) = (&stop, Rng::new(seed ^ 0x5eed << n));
                    s.spawn(move || {
                        while !stop.load(Ordering::Acquire) {
                            if daemon {
                                press(fs, &mut rng);
                            } else {
                                help(fs, n, &mut rng);
                            }
                            pause(&mut rng);
                        }
                    })
                })
                .collect();
            let handles: Vec<_> = workers
                .into_iter()
                .map(|mut w| {
                    let recorder = &recorder;
                    s.spawn(move || {
                        w.work(fs, recorder, shared, steps, seed);
                        w
                    })
                })
                .collect();
            let done: Vec<_> = handles.into_iter().map(|h| h.join()).collect();
            stop.store(true, Ordering::Release);
            for helper in helpers {
                helper.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            done.into_iter()
                .map(|w| w.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let workers: Vec<Worker> = workers;
        let last: Vec<usize> = workers.iter().map(|w| w.states.len() - 1).collect();
        let live = judge::states(fs, &workers, shared, |w| {
            let last = last[w.number as usize];
            last..=last
        });
        if let Err(e) = live {
            panic!("when all was done: {e}");
        }
        drop(mount);
        let name = format!("{threads} threads, seed {seed}, {options}");
        Self {
            recorder,
            options: options.clone(),
            workers,
            shared,
            name,
        }
    }

    /// Looks at the crashes of the whole run.
    pub fn explore(self, depth: &Depth) {
        crash::explore(&self, depth);
    }

    /// What was recorded.
    pub fn recorded(&self) -> Trace {
        self.recorder.trace()
    }
}

/// A mount that ends, also when a thread panics.
struct Mount(Arc<Fs>);

impl Drop for Mount {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn prepare(fs: &Fs, threads: u64) -> (Shared, Vec<Worker>) {
    let me = Caller::default();
    let dir = |name: &str| {
        let made = fs.mkdir(me, ROOT, name.as_bytes(), 0o755);
        made.expect("mkdir").ino
    };
    let file = fs
        .mknod(me, ROOT, b"shared", S_IFREG | 0o644, 0)
        .expect("mknod")
        .ino;
    fs.write(file, 0, &vec![0; (threads * PART) as usize], false)
        .expect("write");
    let dirs = [dir("left"), dir("right")];
    let workers = (0..threads).map(|n| Worker::new(n, dir(&format!("t{n}"))));
    let workers = workers.collect();
    fs.sync_all().expect("sync");
    (Shared { file, dirs }, workers)
}

/// What the background does, by two threads.
fn help(fs: &Fs, which: u64, rng: &mut Rng) {
    if which == 0 {
        if rng.one_in(3) {
            fs.sync_all().expect("sync");
        }
        digest::digest_all(&fs.e).expect("digest");
        crate::evict::evict(fs);
    } else {
        let reach = if rng.one_in(2) {
            Reach::All
        } else {
            Reach::Older
        };
        let mut again = rng.one_in(2);
        checkpoint::rounds(&fs.e, reach, |_| take(&mut again)).expect("rounds");
        checkpoint::zero_freed(&fs.e).expect("zeroing pass");
    }
}

/// Has the daemon's threads do it.
fn press(fs: &Fs, rng: &mut Rng) {
    if rng.one_in(3) {
        fs.sync_all().expect("sync");
    }
    fs.e.kick(true, rng.one_in(2));
    crate::evict::evict(fs);
}

/// Lets the others do some of their work, more or less.
fn pause(rng: &mut Rng) {
    if cfg!(feature = "sched") {
        thread::sleep(std::time::Duration::from_micros(rng.below(2000)));
    } else {
        thread::yield_now();
    }
}
