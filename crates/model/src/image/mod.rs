//! The image model: operations that run at the same time and share an inode, a bitmap word, a page
//! of inodes, or an inode number (orderings 4 and 5).
//!
//! A record is one durable thing here (the lane model takes it apart), each operation has a lane
//! to itself, and a crash keeps any subset of the records that are not fenced. What recovery shows
//! must be what the surviving operations would have done one after another: the survivors include
//! every acknowledged operation and everything that a reader was shown.

mod judge;
mod run;

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

/// Operations running at once, records (one each, and the creation of the shared page).
pub const THREADS: usize = 3;
const RECS: usize = THREADS + 1;
const PAGE_REC: usize = THREADS;
/// Blocks of the file, bits of the bitmap word, places in the shared inode page.
const BLKS: usize = 2;
const BITS: usize = 3;
const PLACES: usize = 2;

/// What a thread does; once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    None,
    /// Writes block `k`, a hole at first, and extends the file to it.
    Extend(u8),
    /// Writes a block of another file, whose LBN lies in the same bitmap word.
    Other,
    /// Creates an inode in the lowest free place of the page that inodes share.
    Create,
    /// Removes the inode in place `i`, which exists from the start.
    Unlink(u8),
}

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub commit: bool,
    pub jobs: [Job; THREADS],
    /// Inodes that exist from the start (then the page does, too).
    pub existing: u8,
    pub reader: bool,
    /// How counters would be logged if they were.
    pub counter_as_delta: bool,
    pub kept: Kept,
}

/// The shared structures, in DRAM or at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Home {
    size: u8,
    /// 1 + operation per block.
    ext: [u8; BLKS],
    bits: u8,
    free: u8,
    page: bool,
    /// 1 + operation per place; 9 for what mkfs made.
    ino: [u8; PLACES],
}

const OLD: u8 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Rec {
    seq: u8,
    appended: bool,
    durable: bool,
    /// Size and extents, if it carries an inode image.
    image: Option<(u8, [u8; BLKS])>,
    set: u8,
    /// The bitmap word and the counter, if these were logged.
    word: Option<u8>,
    counter: Option<u8>,
    delta: u8,
    page: bool,
    place: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Thread {
    pc: u8,
    bit: u8,
    place: u8,
    size: u8,
}

/// A state of the image model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    home: Home,
    dram: Home,
    rec: [Rec; RECS],
    thread: [Thread; THREADS],
    counter: u8,
    digested: u8,
    /// Homes are durable up to here, digested_seq is not yet; 0 for no digest in progress.
    homes: u8,
    commit_ts: u8,
    /// 1 + thread, 0 for free.
    mutex: u8,
    page_lock: u8,
    acked: u8,
    seen: u8,
    /// Per place: 1 + operation that released it.
    released: [u8; PLACES],
    crashed: bool,
}

/// A transition of the image model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Run(usize, u8),
    Read,
    Homes,
    StoreDigested,
    Commit,
    /// The unfenced records that survive, one bit each.
    PowerLoss(u8),
}

/// The image model under one configuration.
pub struct Images(pub Config);

impl Images {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }
}

impl State {
    /// The number of the record that released a place, 0 if none did.
    fn released_by(&self, place: usize) -> u8 {
        usize::from(self.released[place])
            .checked_sub(1)
            .map_or(0, |t| self.rec[t].seq)
    }
    fn thread_place(&self, t: usize) -> u8 {
        self.thread.get(t).map_or(0, |thread| thread.place)
    }
}

impl Model for Images {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let home = self.formatted();
        State {
            home,
            dram: home,
            rec: Default::default(),
            thread: Default::default(),
            counter: 0,
            digested: 0,
            homes: 0,
            commit_ts: 0,
            mutex: 0,
            page_lock: 0,
            acked: 0,
            seen: 0,
            released: [0; PLACES],
            crashed: false,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.crashed {
            return;
        }
        for t in 0..THREADS {
            if let Some(next) = self.run(s, t) {
                out.push((Step::Run(t, s.thread[t].pc), next));
            }
        }
        if self.0.reader {
            let mut next = s.clone();
            for &op in s
                .dram
                .ext
                .iter()
                .chain(&s.dram.ino)
                .filter(|&&op| op != 0 && op != OLD)
            {
                next.seen |= 1 << (op - 1);
            }
            if next.seen != s.seen {
                out.push((Step::Read, next));
            }
        }
        let upto = self.digestable(s);
        if upto > s.digested && s.homes == 0 {
            let recs: Vec<Rec> = s
                .rec
                .iter()
                .copied()
                .filter(|rec| rec.appended && rec.seq > s.digested && rec.seq <= upto)
                .collect();
            if let Some(home) = self.apply(s.home, &recs) {
                let next = State {
                    home,
                    homes: upto,
                    ..s.clone()
                };
                out.push((Step::Homes, next));
            }
        }
        if s.homes != 0 {
            let next = State {
                homes: 0,
                digested: s.homes,
                ..s.clone()
            };
            out.push((Step::StoreDigested, next));
        }
        if self.0.commit && s.commit_ts < s.counter {
            let mut next = s.clone();
            for rec in next.rec.iter_mut().filter(|rec| rec.appended) {
                rec.durable = true;
            }
            next.commit_ts = self.complete(&next);
            if next.commit_ts > s.commit_ts {
                for t in 0..THREADS {
                    let seq = s.rec[t].seq;
                    next.acked |= u8::from(seq != 0 && seq <= next.commit_ts) << t;
                }
                out.push((Step::Commit, next));
            }
        }
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.crashed {
            return;
        }
        let flying: Vec<usize> = (0..RECS)
            .filter(|&r| s.rec[r].appended && !s.rec[r].durable)
            .collect();
        for pick in 0..1u8 << flying.len() {
            let mut next = State {
                crashed: true,
                ..s.clone()
            };
            let mut mask = 0;
            for (i, &r) in flying.iter().enumerate() {
                next.rec[r].durable = pick >> i & 1 == 1;
                mask |= u8::from(next.rec[r].durable) << r;
            }
            out.push((Step::PowerLoss(mask), next));
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        if s.crashed { self.judge(s) } else { Ok(()) }
    }

    fn finished(&self, s: &State) -> Option<bool> {
        let done = |t: usize| s.thread[t].pc >= 9 || self.0.jobs[t] == Job::None;
        (!s.crashed).then(|| (0..THREADS).all(done))
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Run(t, pc) => {
                let job = match self.0.jobs[t] {
                    Job::None => "nothing".into(),
                    Job::Extend(k) => format!("write of block {k}"),
                    Job::Other => "write to another file".into(),
                    Job::Create => "create".into(),
                    Job::Unlink(i) => format!("unlink of inode {i}"),
                };
                let rec = after.rec[t];
                let what = match pc {
                    0 if self.0.jobs[t] == Job::Create => {
                        format!("is given place {}", after.thread[t].place)
                    }
                    0 => "starts, has its resources".into(),
                    1 if after.rec[PAGE_REC].appended && !before.rec[PAGE_REC].appended => {
                        "appends the record of the shared page".into()
                    }
                    1 => "finds or makes the shared page".into(),
                    2 => "fences the record of the shared page".into(),
                    3 => match rec.image {
                        Some((size, ext)) => {
                            format!("builds the image: size {size}, written by {ext:?}")
                        }
                        None => "builds its record".into(),
                    },
                    4 => format!("appends record {}", rec.seq),
                    5 => format!("fences record {}", rec.seq),
                    _ => "installs its change, unlocks, answers".into(),
                };
                format!("{job} (op {}) {what}", t + 1)
            }
            Step::Read => "a reader is shown the change".into(),
            Step::Homes => "digest: homes durable".into(),
            Step::StoreDigested => format!("digest: digested_seq = {}", after.digested),
            Step::Commit => format!("commit_ts = {}", after.commit_ts),
            Step::PowerLoss(mask) => {
                let flying =
                    (0..RECS).filter(|&r| before.rec[r].appended && !before.rec[r].durable);
                let text: Vec<String> = flying
                    .map(|r| {
                        let fate = if mask >> r & 1 == 1 { "whole" } else { "lost" };
                        format!("record {} {fate}", before.rec[r].seq)
                    })
                    .collect();
                format!("POWER LOSS [{}]", text.join(", "))
            }
        }
    }
}
