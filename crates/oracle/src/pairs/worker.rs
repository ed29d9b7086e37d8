//! One of the threads: what it does, and what it may find again.

use std::collections::BTreeSet;

use quayfs_crashsim::Recorder;
use quayfs_fs::{Caller, Fs, RenameFlags};
use quayfs_layout::Ino;
use quayfs_layout::inode::S_IFREG;

use super::Shared;
use crate::apply;
use crate::dump::{self, Tree};
use crate::model::Model;
use crate::ops::{Op, Taste, random};
use crate::rng::{Rng, bytes};

/// Bytes of the shared file that belong to one thread: no whole number of blocks.
pub(super) const PART: u64 = 10_000;
/// Names in the shared directories that one thread uses.
const NAMES: u64 = 4;

/// What a mark says of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It is about to begin.
    Begun,
    /// It has returned; all before it have, too.
    Returned,
    /// It is durable; all before it are, too.
    Durable,
}

/// A mark as a number and back: thread, what, state.
pub(super) fn encode(thread: u64, mark: Mark, state: usize) -> u64 {
    thread << 48 | (mark as u64) << 40 | state as u64
}

pub(super) fn decode(word: u64) -> (u64, Mark, usize) {
    let mark = match word >> 40 & 0xff {
        0 => Mark::Begun,
        1 => Mark::Returned,
        _ => Mark::Durable,
    };
    (word >> 48, mark, (word & 0xffff_ffff) as usize)
}

/// What belongs to one thread.
#[derive(Clone)]
pub(super) struct State {
    pub(super) tree: Tree,
    pub(super) part: Vec<u8>,
    /// By directory and number.
    pub(super) names: BTreeSet<(usize, u64)>,
}

/// One of the threads.
pub(super) struct Worker {
    pub(super) number: u64,
    pub(super) dir: Ino,
    /// What there was to be found after each operation, the first before any.
    pub(super) states: Vec<State>,
}

impl Worker {
    pub(super) fn new(number: u64, dir: Ino) -> Self {
        Self {
            number,
            dir,
            states: Vec::new(),
        }
    }

    /// One of the thread's names in a shared directory.
    pub(super) fn name(&self, name: u64) -> String {
        format!("{}-{name}", self.number)
    }

    pub(super) fn work(
        &mut self,
        fs: &Fs,
        recorder: &Recorder,
        shared: Shared,
        steps: usize,
        seed: u64,
    ) {
        let taste = Taste {
            names: 5,
            blocks: 40,
            write: 3,
            xattr: 300,
            inodes: 8,
            wild: false,
            quiet: false,
            limits: false,
        };
        let mut rng = Rng::new(seed ^ self.number << 32);
        let mut model = Model::below(self.dir, 0o755);
        let mut now = State {
            tree: own(dump::expected(&model)),
            part: vec![0; PART as usize],
            names: BTreeSet::new(),
        };
        self.states.push(now.clone());
        let durable = fs.sync_is_free();
        while self.states.len() <= steps {
            let next = self.states.len();
            let mark = |mark| recorder.mark(encode(self.number, mark, next));
            match rng.below(8) {
                0 | 1 => {
                    let at = rng.below(PART - 1);
                    let len = 1 + rng.below((PART - at).min(6000)) as usize;
                    let data = bytes(rng.number(), len);
                    mark(Mark::Begun);
                    fs.write(shared.file, self.number * PART + at, &data, false)
                        .expect("write");
                    now.part[at as usize..][..len].copy_from_slice(&data);
                }
                2 | 3 => {
                    mark(Mark::Begun);
                    self.rename(fs, shared, &mut now.names, &mut rng);
                }
                _ => {
                    let op = random(&mut rng, &model, &taste);
                    if !worth(&op, &model) {
                        continue;
                    }
                    mark(Mark::Begun);
                    if let Err(e) = apply::both(fs, &mut model, &op, false) {
                        panic!("seed {seed}, thread {}: {e}", self.number);
                    }
                    now.tree = own(dump::expected(&model));
                }
            }
            self.states.push(now.clone());
            if durable {
                recorder.mark(encode(self.number, Mark::Durable, next));
            } else {
                recorder.mark(encode(self.number, Mark::Returned, next));
                if rng.one_in(4) {
                    fs.sync_all().expect("sync");
                    recorder.mark(encode(self.number, Mark::Durable, next));
                }
            }
        }
    }

    /// Makes, moves or removes a name next to those of others.
    fn rename(&self, fs: &Fs, shared: Shared, names: &mut BTreeSet<(usize, u64)>, rng: &mut Rng) {
        let (dir, n) = (rng.below(2) as usize, rng.below(NAMES));
        let name = self.name(n);
        let (at, to) = (shared.dirs[dir], rng.below(2) as usize);
        if !names.contains(&(dir, n)) {
            fs.mknod(Caller::default(), at, name.as_bytes(), S_IFREG | 0o600, 0)
                .expect("mknod");
            names.insert((dir, n));
        } else if let Some(free) = (0..NAMES).find(|n| !names.contains(&(to, *n)))
            && rng.below(3) > 0
        {
            let new = self.name(free);
            let new = (shared.dirs[to], new.as_bytes());
            fs.rename((at, name.as_bytes()), new, RenameFlags::default())
                .expect("rename");
            names.remove(&(dir, n));
            names.insert((to, free));
        } else {
            let ino = fs.lookup(at, name.as_bytes()).expect("lookup").ino;
            fs.unlink(at, name.as_bytes()).expect("unlink");
            // Once for the name that was made, once for the one that was looked up.
            fs.forget(ino, 2);
            names.remove(&(dir, n));
        }
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
pub(super) fn own(mut tree: Tree) -> Tree {
    tree.remove(&[][..]);
    tree
}
