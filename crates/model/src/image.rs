//! The image model: operations that run at the same time and share an inode, a bitmap word, a page
//! of inodes, or an inode number (DESIGN 3.4 and 3.5).
//!
//! A record is one durable thing here (the lane model takes it apart), each operation has a lane
//! to itself, and a crash keeps any subset of the records that are not fenced. What recovery shows
//! must be what the surviving operations would have done one after another: the survivors include
//! every acknowledged operation and everything that a reader was shown.

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
    /// Homes are durable up to here, D is not yet; 0 for no digest in progress.
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
    StoreD,
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

    fn run(&self, s: &State, t: usize) -> Option<State> {
        let job = self.0.jobs[t];
        let me = t as u8 + 1;
        let mut s = s.clone();
        let pc = s.thread[t].pc;
        s.thread[t].pc = pc + 1;
        match pc {
            // Locks and resources. The size that is read here is only a hint.
            0 => {
                match job {
                    Job::None => return None,
                    Job::Extend(_) | Job::Other => {
                        let bit = (0..BITS).find(|bit| s.dram.bits >> bit & 1 == 0)?;
                        s.dram.bits |= 1 << bit;
                        s.thread[t].bit = bit as u8;
                        s.thread[t].size = s.dram.size;
                    }
                    Job::Create => {
                        let free = |place: &usize| {
                            s.dram.ino[*place] == 0
                                && (s.released_by(*place) <= s.digested
                                    || !self.keeps(Ordering::NumberReuseBelowD))
                                && (0..THREADS).all(|o| {
                                    self.0.jobs[o] != Job::Create
                                        || s.thread[o].pc == 0
                                        || o == t
                                        || usize::from(s.thread[o].place) != *place
                                })
                        };
                        s.thread[t].place = (0..PLACES).find(free)? as u8;
                    }
                    Job::Unlink(place) => s.thread[t].place = place,
                }
                if !self.keeps(Ordering::SequenceAtAppend) {
                    s.counter += 1;
                    s.rec[t].seq = s.counter;
                }
                if job != Job::Create || s.dram.page {
                    s.thread[t].pc = 3;
                }
            }
            // A page that objects share is created by its own record, durable before it is used.
            1 => {
                if s.dram.page {
                    s.thread[t].pc = 3;
                } else if self.keeps(Ordering::SharedPageByOwnRecord) {
                    if s.page_lock != 0 {
                        return None;
                    }
                    s.page_lock = me;
                    s.counter += 1;
                    s.rec[PAGE_REC] = Rec {
                        seq: s.counter,
                        appended: true,
                        page: true,
                        ..Rec::default()
                    };
                } else {
                    s.dram.page = true;
                    s.rec[t].page = true;
                    s.thread[t].pc = 3;
                }
            }
            2 => {
                s.rec[PAGE_REC].durable = true;
                s.dram.page = true;
                s.page_lock = 0;
            }
            // The commit mutex, and the image under it.
            3 => {
                if matches!(job, Job::Extend(_)) && self.keeps(Ordering::CommitMutex) {
                    if s.mutex != 0 {
                        return None;
                    }
                    s.mutex = me;
                }
                let th = s.thread[t];
                let rec = &mut s.rec[t];
                if matches!(job, Job::Extend(_) | Job::Other) {
                    rec.set = 1 << th.bit;
                    if !self.keeps(Ordering::BitsNotWords) {
                        rec.word = Some(s.dram.bits);
                    }
                    if !self.keeps(Ordering::CountersDerived) {
                        rec.counter = Some(s.dram.free - 1);
                        rec.delta = 1;
                    }
                }
                match job {
                    Job::Extend(k) => {
                        let size = if self.keeps(Ordering::SizeReread) {
                            s.dram.size
                        } else {
                            th.size
                        };
                        let mut ext = s.dram.ext;
                        ext[usize::from(k)] = me;
                        rec.image = Some((size.max(k + 1), ext));
                    }
                    Job::Other | Job::None => {}
                    Job::Create => rec.place = Some((th.place, me)),
                    Job::Unlink(_) => rec.place = Some((th.place, 0)),
                }
            }
            4 => {
                if self.keeps(Ordering::SequenceAtAppend) {
                    s.counter += 1;
                    s.rec[t].seq = s.counter;
                }
                s.rec[t].appended = true;
                let early = !self.keeps(Ordering::LocksUntilDurable);
                if self.0.commit || early || !self.keeps(Ordering::ImageAfterFence) {
                    self.install(&mut s, t);
                }
                if self.0.commit || early {
                    self.unlock(&mut s, me);
                }
                if self.0.commit {
                    s.thread[t].pc = 9;
                }
            }
            5 => s.rec[t].durable = true,
            6 => {
                if self.keeps(Ordering::LocksUntilDurable) && self.keeps(Ordering::ImageAfterFence)
                {
                    self.install(&mut s, t);
                }
                self.unlock(&mut s, me);
                s.acked |= 1 << t;
                s.thread[t].pc = 9;
            }
            _ => return None,
        }
        Some(s)
    }

    fn unlock(&self, s: &mut State, me: u8) {
        if s.mutex == me {
            s.mutex = 0;
        }
    }

    /// The change becomes visible to others.
    fn install(&self, s: &mut State, t: usize) {
        let rec = s.rec[t];
        if let Some((size, ext)) = rec.image {
            s.dram.size = size;
            s.dram.ext = ext;
        }
        if rec.set != 0 {
            s.dram.free -= 1;
        }
        if let Some((place, ino)) = rec.place {
            s.dram.ino[usize::from(place)] = ino;
            s.released[usize::from(place)] = if ino == 0 { t as u8 + 1 } else { 0 };
        }
    }

    /// Records are applied in order; `None` where one does not apply.
    fn apply(&self, mut home: Home, recs: &[Rec]) -> Option<Home> {
        let mut order: Vec<&Rec> = recs.iter().collect();
        order.sort_by_key(|rec| rec.seq);
        for rec in order {
            if let Some((size, ext)) = rec.image {
                home.size = size;
                home.ext = ext;
            }
            let bits = rec.word.unwrap_or(home.bits | rec.set);
            home.free = match rec.counter {
                None => home.free - (bits & !home.bits).count_ones() as u8,
                Some(_) if self.0.counter_as_delta => home.free.wrapping_sub(rec.delta),
                Some(free) => free,
            };
            home.bits = bits;
            home.page |= rec.page;
            if let Some((place, ino)) = rec.place {
                if !home.page {
                    return None;
                }
                home.ino[usize::from(place)] = ino;
            }
        }
        Some(home)
    }

    fn complete(&self, s: &State) -> u8 {
        let unfinished = s.rec.iter().filter(|rec| rec.seq != 0 && !rec.durable);
        unfinished.map(|rec| rec.seq - 1).min().unwrap_or(s.counter)
    }

    fn digestable(&self, s: &State) -> u8 {
        if self.0.commit {
            s.commit_ts
        } else {
            self.complete(s)
        }
    }

    /// What the operations in `set` do, one after another; `None` if one of them could not.
    fn specified(&self, s: &State, set: &[usize]) -> Option<Home> {
        let mut home = self.formatted();
        let mut order = set.to_vec();
        order.sort_by_key(|&t| s.rec[t].seq);
        for t in order {
            let me = t as u8 + 1;
            let place = usize::from(s.thread_place(t));
            match self.0.jobs.get(t) {
                None => home.page = true,
                Some(Job::None) => {}
                Some(Job::Other) => {
                    home.bits |= s.rec[t].set;
                    home.free -= 1;
                }
                Some(Job::Extend(k)) => {
                    home.size = home.size.max(k + 1);
                    home.ext[usize::from(*k)] = me;
                    home.bits |= s.rec[t].set;
                    home.free -= 1;
                }
                Some(Job::Create) if home.ino[place] != 0 => return None,
                Some(Job::Create) => home.ino[place] = me,
                Some(Job::Unlink(_)) => home.ino[place] = 0,
            }
            home.page |= s.rec[t].page;
        }
        Some(home)
    }

    fn formatted(&self) -> Home {
        let mut ino = [0; PLACES];
        for (place, ino) in ino.iter_mut().enumerate() {
            *ino = if self.0.existing >> place & 1 == 1 {
                OLD
            } else {
                0
            };
        }
        Home {
            free: BITS as u8,
            page: self.0.existing != 0,
            ino,
            ..Home::default()
        }
    }

    fn judge(&self, s: &State) -> Result<(), Property> {
        let alive = |t: &usize| {
            let rec = s.rec[*t];
            rec.seq != 0
                && if self.0.commit {
                    rec.seq <= s.commit_ts.max(s.digested)
                } else {
                    rec.durable || rec.seq <= s.digested
                }
        };
        let survivors: Vec<usize> = (0..RECS).filter(alive).collect();
        let above: Vec<Rec> = survivors
            .iter()
            .map(|&t| s.rec[t])
            .filter(|rec| rec.seq > s.digested)
            .collect();
        let Some(got) = self.apply(s.home, &above) else {
            return Err(Property::Unreadable);
        };
        let mask = survivors.iter().fold(0u8, |mask, t| mask | 1 << t);
        if s.acked & !mask != 0 {
            return Err(Property::AckedLost);
        }
        if !self.0.commit && s.seen & !mask != 0 {
            return Err(Property::ObservedLost);
        }
        let Some(want) = self.specified(s, &survivors) else {
            return Err(Property::DoubleOwned);
        };
        if got.bits.count_ones() + u32::from(got.free) != BITS as u32 {
            Err(Property::WrongCounter)
        } else if got.bits & !want.bits != 0 {
            Err(Property::Leaked)
        } else if want.bits & !got.bits != 0 {
            Err(Property::DoubleOwned)
        } else if want
            .ext
            .iter()
            .zip(got.ext)
            .any(|(&want, got)| want != 0 && got != want)
            || got.size < want.size
            || want
                .ino
                .iter()
                .zip(got.ino)
                .any(|(&want, got)| want != 0 && got != want)
        {
            Err(Property::AckedLost)
        } else if got != want {
            Err(Property::Torn)
        } else {
            Ok(())
        }
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
            out.push((Step::StoreD, next));
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
            Step::StoreD => format!("digest: D = {}", after.digested),
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
