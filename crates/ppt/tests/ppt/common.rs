//! A tape of everything done to a region, and the images that a crash at any point of it may leave,
//! by the rules of the persistence model in crate `quayfs-pmem`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use quayfs_pmem::{Backend, LINE, Observer, Region, SECTOR, lines};

#[derive(Clone, Debug)]
pub enum Event {
    Store {
        off: u64,
        bytes: Vec<u8>,
        nt: bool,
        by: ThreadId,
    },
    Flush {
        off: u64,
        len: u64,
        by: ThreadId,
    },
    Fence {
        by: ThreadId,
    },
    Drain {
        by: ThreadId,
    },
    /// The operation of this number was acknowledged.
    Ack(usize),
}

/// Records events of a simulated region.
#[derive(Default)]
pub struct Tape(Mutex<Vec<Event>>);

impl Tape {
    pub fn region(backend: Backend, image: &[u8]) -> (Arc<Tape>, Arc<Region>) {
        let tape = Arc::new(Tape::default());
        let region = Region::from_image(image, Some(tape.clone()), backend);
        (tape, Arc::new(region))
    }

    pub fn ack(&self, op: usize) {
        self.push(Event::Ack(op));
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().expect("the tape"))
    }

    fn push(&self, event: Event) {
        self.0.lock().expect("the tape").push(event);
    }
}

impl Observer for Tape {
    fn store(&self, off: u64, bytes: &[u8], nt: bool, _: &'static Location<'static>) {
        let by = thread::current().id();
        self.push(Event::Store {
            off,
            bytes: bytes.to_vec(),
            nt,
            by,
        });
    }

    fn flush(&self, off: u64, len: u64, _: &'static Location<'static>) {
        self.push(Event::Flush {
            off,
            len,
            by: thread::current().id(),
        });
    }

    fn fence(&self, _: &'static Location<'static>) {
        self.push(Event::Fence {
            by: thread::current().id(),
        });
    }

    fn drain(&self, _: &'static Location<'static>) {
        self.push(Event::Drain {
            by: thread::current().id(),
        });
    }
}

/// What the medium keeps whole: at most 8 aligned bytes.
#[derive(Clone)]
struct Atom {
    off: u64,
    bytes: Vec<u8>,
    /// Threads whose fence settles it.
    by: HashSet<ThreadId>,
    nt: bool,
}

/// Pieces of a store, each of which is there or not.
fn atoms(off: u64, bytes: &[u8], nt: bool, by: ThreadId) -> Vec<Atom> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let here = off + at as u64;
        let len = if here.is_multiple_of(8) && bytes.len() - at >= 8 {
            8
        } else {
            1
        };
        let by = if nt {
            HashSet::from([by])
        } else {
            HashSet::new()
        };
        pieces.push(Atom {
            off: here,
            bytes: bytes[at..at + len].to_vec(),
            by,
            nt,
        });
        at += len;
    }
    // The only other atomic store is the aligned one of 4 bytes.
    if bytes.len() == 4 && off.is_multiple_of(4) && !nt {
        let by = HashSet::new();
        return vec![Atom {
            off,
            bytes: bytes.to_vec(),
            by,
            nt,
        }];
    }
    pieces
}

/// The medium as it moves through a tape: what is settled, and what is in flight in program order.
pub struct Medium {
    backend: Backend,
    settled: Vec<u8>,
    flying: Vec<Atom>,
}

impl Medium {
    pub fn new(backend: Backend, image: Vec<u8>) -> Self {
        Self {
            backend,
            settled: image,
            flying: Vec::new(),
        }
    }

    pub fn step(&mut self, event: &Event) {
        match event {
            Event::Store { off, bytes, nt, by } => {
                self.flying.extend(atoms(*off, bytes, *nt, *by));
            }
            Event::Flush { off, len, by } => {
                let flushed: HashSet<u64> = lines(*off, *len).collect();
                for atom in &mut self.flying {
                    if flushed.contains(&(atom.off - atom.off % LINE)) {
                        atom.by.insert(*by);
                    }
                }
            }
            Event::Fence { by } => self.settle(|atom| atom.by.contains(by)),
            Event::Drain { .. } if self.backend.needs_drain() => {
                self.settle_all();
            }
            Event::Drain { by } => self.settle(|atom| atom.by.contains(by)),
            Event::Ack(_) => {}
        }
    }

    fn settle_all(&mut self) {
        let atoms = std::mem::take(&mut self.flying);
        for atom in &atoms {
            apply(&mut self.settled, atom);
        }
    }

    fn settle(&mut self, which: impl Fn(&Atom) -> bool) {
        if self.backend.needs_drain() {
            return;
        }
        let mut last_settled = HashMap::new();
        for (n, atom) in self
            .flying
            .iter()
            .enumerate()
            .filter(|(_, atom)| which(atom))
        {
            apply(&mut self.settled, atom);
            last_settled.insert(atom.off, n);
        }
        let mut n = 0;
        self.flying.retain(|atom| {
            // An older store to a settled place cannot come after it any more.
            let keep = last_settled.get(&atom.off).is_none_or(|&last| n > last);
            n += 1;
            keep
        });
    }

    /// Groups in flight, of each of which a prefix may be on the medium, in order of their first
    /// store. Non-temporal pieces are each on their own.
    fn groups(&self) -> Vec<Vec<usize>> {
        let unit = if self.backend.needs_drain() {
            SECTOR
        } else {
            LINE
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut group_of = BTreeMap::new();
        for (n, atom) in self.flying.iter().enumerate() {
            if atom.nt && !self.backend.needs_drain() {
                groups.push(vec![n]);
                continue;
            }
            let group = *group_of.entry(atom.off / unit).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(n);
        }
        groups
    }

    /// Calls `look` with every image of a selection: all of them if there are at most `exhaustive`,
    /// else nothing, everything, each group alone in each of its prefixes with nothing or
    /// everything else, and `random` mixtures.
    pub fn images(
        &self,
        exhaustive: usize,
        random: usize,
        seed: u64,
        mut look: impl FnMut(Vec<u8>),
    ) {
        let groups = self.groups();
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let total = sizes.iter().try_fold(1usize, |n, size| {
            n.checked_mul(size + 1).filter(|&n| n <= exhaustive)
        });
        let mut seen = HashSet::new();
        let mut emit = |prefixes: &[usize]| {
            let image = self.image(&groups, prefixes);
            if seen.insert(digest(&image)) {
                look(image);
            }
        };
        if total.is_some() {
            let mut prefixes = vec![0; sizes.len()];
            loop {
                emit(&prefixes);
                let Some(next) = (0..sizes.len()).find(|&n| prefixes[n] < sizes[n]) else {
                    return;
                };
                prefixes[..next].fill(0);
                prefixes[next] += 1;
            }
        }
        let nothing = vec![0; sizes.len()];
        emit(&nothing);
        emit(&sizes);
        for n in 0..sizes.len() {
            for len in 0..=sizes[n] {
                for others in [&nothing, &sizes] {
                    let mut prefixes = others.clone();
                    prefixes[n] = len;
                    emit(&prefixes);
                }
            }
        }
        mixtures(&sizes, random, seed, emit);
    }

    /// Only nothing, everything, and `random` mixtures: for tapes with very many stores.
    pub fn some_images(&self, random: usize, seed: u64, mut look: impl FnMut(Vec<u8>)) {
        let groups = self.groups();
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        look(self.settled.clone());
        look(self.image(&groups, &sizes));
        mixtures(&sizes, random, seed, |prefixes| {
            look(self.image(&groups, prefixes))
        });
    }

    fn image(&self, groups: &[Vec<usize>], prefixes: &[usize]) -> Vec<u8> {
        let on_medium = groups
            .iter()
            .zip(prefixes)
            .flat_map(|(group, &len)| &group[..len]);
        let mut on_medium: Vec<usize> = on_medium.copied().collect();
        on_medium.sort_unstable();
        let mut image = self.settled.clone();
        for n in on_medium {
            apply(&mut image, &self.flying[n]);
        }
        image
    }
}

/// Random prefixes, each mixture with its own share of what made it, so that extremes occur.
fn mixtures(sizes: &[usize], count: usize, seed: u64, mut emit: impl FnMut(&[usize])) {
    let mut random = seed | 1;
    for _ in 0..count {
        let share = next(&mut random) % 101;
        let prefixes: Vec<usize> = sizes
            .iter()
            .map(|&size| match next(&mut random) % 100 < share {
                true => 1 + next(&mut random) as usize % size,
                false => 0,
            })
            .collect();
        emit(&prefixes);
    }
}

fn apply(image: &mut [u8], atom: &Atom) {
    let at = atom.off as usize;
    image[at..at + atom.bytes.len()].copy_from_slice(&atom.bytes);
}

pub fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Small deterministic generator: the tests need variety, not quality.
pub fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}
