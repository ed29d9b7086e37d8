//! Recorded runs of several threads, each with a directory and a part of one file to itself, while
//! another one digests and checkpoints.
//!
//! What a crash may leave is told for each thread alone: one of the states between its last
//! acknowledged operation and the last one it has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quayfs::config::MountOptions;
use quayfs::fs::{Caller, Fs};
use quayfs::{background, checkpoint};
use quayfs_crashsim::{CrashImage, Recorder, Trace};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_pmem::Backend;

use crate::crash::{self, Depth, Run};
use crate::dump::{self, Tree, difference};
use crate::model::Model;
use crate::ops::{Op, Taste, random};
use crate::rng::{Rng, bytes};
use crate::{Media, Shape, apply};

const ACKNOWLEDGED: u64 = 1 << 40;
const THREAD: u32 = 48;
/// Bytes of the shared file that belong to one thread: no whole number of blocks.
const PART: u64 = 10_000;

/// What one thread has done to what is its own.
struct State {
    tree: Tree,
    part: Vec<u8>,
}

struct Worker {
    number: u64,
    dir: Ino,
    states: Vec<State>,
}

/// A run that has ended.
pub struct Duo {
    recorder: Recorder,
    options: MountOptions,
    workers: Vec<Worker>,
    shared: Ino,
    name: String,
}

impl Duo {
    /// Lets `threads` threads do `steps` operations each.
    pub fn run(
        (shape, backend): (&Shape, Backend),
        options: &MountOptions,
        threads: u64,
        steps: usize,
        seed: u64,
    ) -> Self {
        let geometry = shape.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(options);
        let me = Caller::default();
        let shared = fs
            .mknod(me, ROOT, b"shared", S_IFREG | 0o644, 0)
            .expect("mknod")
            .ino;
        fs.write(shared, 0, &vec![0; (threads * PART) as usize], false)
            .expect("write");
        let workers: Vec<Worker> = (0..threads)
            .map(|number| {
                let name = format!("t{number}");
                let dir = fs
                    .mkdir(me, ROOT, name.as_bytes(), 0o755)
                    .expect("mkdir")
                    .ino;
                Worker {
                    number,
                    dir,
                    states: Vec::new(),
                }
            })
            .collect();
        fs.sync_all().expect("sync");
        recorder.settle();
        let stop = AtomicBool::new(false);
        let workers = std::thread::scope(|s| {
            let background = s.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    background::digest_all(&fs.e).expect("digest");
                    checkpoint::round(&fs.e).expect("round");
                    checkpoint::zero_batch(&fs.e).expect("zero batch");
                    crate::evict::evict(&fs);
                    std::thread::yield_now();
                }
            });
            let handles: Vec<_> = workers
                .into_iter()
                .map(|mut w| {
                    let (fs, recorder) = (&fs, &recorder);
                    s.spawn(move || {
                        w.work(fs, recorder, shared, steps, seed);
                        w
                    })
                })
                .collect();
            let done: Vec<_> = handles.into_iter().map(|h| h.join()).collect();
            stop.store(true, Ordering::Release);
            background.join().expect("background");
            done.into_iter()
                .map(|w| w.expect("a worker failed"))
                .collect()
        });
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
}

impl Run for Duo {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn look(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = Media {
            region: Arc::new(image.region()),
            device: Arc::new(image.device()),
        };
        if n.is_multiple_of(depth.fsck) {
            media.fsck()?;
        }
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let mut found = 0;
        for w in &self.workers {
            let state = w.check(&fs, self.shared, image.acked())?;
            found = found * 1_000_003 + state as u64;
        }
        if n.is_multiple_of(depth.used) {
            fs.shutdown().map_err(|e| e.to_string())?;
            media.fsck()?;
            let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
            for w in &self.workers {
                w.check(&fs, self.shared, image.acked())?;
            }
        }
        Ok(found)
    }
}

impl Worker {
    fn mark(&self, recorder: &Recorder, bits: u64, state: usize) {
        recorder.mark(self.number << THREAD | bits | state as u64);
    }

    fn work(&mut self, fs: &Fs, recorder: &Recorder, shared: Ino, steps: usize, seed: u64) {
        let taste = Taste {
            names: 5,
            blocks: 40,
            write: 3,
            xattr: 300,
            inodes: 8,
            wild: false,
            quiet: false,
        };
        let mut rng = Rng::new(seed ^ self.number << 32);
        let mut model = Model::below(self.dir, 0o755);
        let mut part = vec![0; PART as usize];
        let durable = fs.sync_is_free();
        self.states.push(State {
            tree: own(dump::expected(&model)),
            part: part.clone(),
        });
        while self.states.len() <= steps {
            let next = self.states.len();
            self.mark(recorder, 0, next);
            if rng.one_in(4) {
                let at = rng.below(PART - 1);
                let data = bytes(rng.number(), 1 + rng.below((PART - at).min(6000)) as usize);
                fs.write(shared, self.number * PART + at, &data, false)
                    .expect("write");
                part[at as usize..][..data.len()].copy_from_slice(&data);
            } else {
                let op = random(&mut rng, &model, &taste);
                if !worth(&op, &model) {
                    continue;
                }
                if let Err(e) = apply::both(fs, &mut model, &op, false) {
                    panic!("seed {seed}, thread {}: {e}", self.number);
                }
            }
            self.states.push(State {
                tree: own(dump::expected(&model)),
                part: part.clone(),
            });
            if durable {
                self.mark(recorder, ACKNOWLEDGED, next);
            } else if rng.one_in(4) {
                fs.sync_all().expect("sync");
                self.mark(recorder, ACKNOWLEDGED, next);
            }
        }
    }

    fn check(&self, fs: &Fs, shared: Ino, marks: &[u64]) -> Result<usize, String> {
        let mine = marks.iter().filter(|m| *m >> THREAD == self.number);
        let (acks, begun): (Vec<u64>, Vec<u64>) = mine.partition(|m| *m & ACKNOWLEDGED != 0);
        let most = |all: Vec<u64>| all.iter().map(|m| m & 0xffff_ffff).max().unwrap_or(0) as usize;
        let low = most(acks);
        let high = most(begun).clamp(low, self.states.len() - 1);
        let read = |e| format!("thread {}: cannot be read: {e}", self.number);
        let tree = own(dump::dump(fs, self.dir).map_err(read)?);
        let part = fs
            .read(shared, self.number * PART, PART as usize)
            .map_err(read)?;
        let mut why = Vec::new();
        for k in (low..=high).rev() {
            let s = &self.states[k];
            match difference(&tree, &s.tree) {
                None if s.part == part => return Ok(k),
                None => why.push(format!("state {k}: its part of the shared file")),
                Some(d) => why.push(format!("state {k}: {d}")),
            }
        }
        Err(format!(
            "thread {}, states {low} to {high}:\n{}",
            self.number,
            why.join("\n")
        ))
    }
}

/// Whether an operation changes something by one record, or shows something.
fn worth(op: &Op, m: &Model) -> bool {
    match op {
        // What lies above is another's.
        Op::Lookup { dir, name } => *dir != m.root || name.0 != b"..",
        Op::SetAttr { ino, .. } => *ino != m.root,
        _ => true,
    }
}

/// Without the directory itself, whose link counts say nothing new.
fn own(mut tree: Tree) -> Tree {
    tree.remove(&[][..]);
    tree
}
