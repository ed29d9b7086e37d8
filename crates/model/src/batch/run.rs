//! What a daemon does while it runs, and how it recovers.

use super::*;
use crate::ordering::Ordering::*;
use std::collections::BTreeSet;

/// The owner of what a commit stores.
fn by(generation: u8) -> u8 {
    BY_COMMIT + generation % PLACES as u8
}

impl Batches {
    pub(super) fn running(&self, s: &State, out: &mut Vec<(Step, State)>) {
        out.extend(self.append(s).map(|next| (Step::Append, next)));
        out.extend(self.write(s).map(|next| (Step::Write, next)));
        out.extend(self.extend(s).map(|next| (Step::Extend, next)));
        self.flush(s, out);
        let answer = if self.keeps(CommitTsBeforeReply) {
            s.commit_ts
        } else {
            s.ahead.or(s.flying).unwrap_or(s.commit_ts)
        };
        if answer > s.acked {
            let acked = answer;
            out.push((Step::Acknowledge, State { acked, ..s.clone() }));
        }
        self.lazy(s, out);
        self.digest(s, out);
    }

    /// Into DRAM. Space is there when what it held before is not needed any more.
    fn append(&self, s: &State) -> Option<State> {
        let op = s.appended + 1;
        let job = *self.0.jobs.get(usize::from(op) - 1)?;
        let reusable = if self.keeps(RingAfterDigested) {
            s.digested
        } else {
            self.stored(s)
        };
        // A sector is free when none of its records is needed.
        let needed = (reusable + 1..op)
            .map(|old| s.pos_of[usize::from(old) - 1])
            .min();
        let head = needed.unwrap_or(s.tail) / SHARE as u8 * SHARE as u8;
        if usize::from(s.tail - head) >= RING {
            return None;
        }
        if !job.direct && usize::from(op) > usize::from(reusable) + SLOTS {
            return None;
        }
        let mut next = s.clone();
        let block = if job.direct {
            Some(self.fresh(s)?)
        } else {
            None
        };
        let reg = usize::from(job.reg);
        if let Some(old) = next.named[reg].take() {
            next.freed_by[usize::from(old)] = op;
        }
        if let Some(b) = block {
            next.freed_by[usize::from(b)] = u8::MAX;
            next.named[reg] = Some(b);
            next.block_of[usize::from(op) - 1] = b + 1;
        }
        next.appended = op;
        next.pos_of[usize::from(op) - 1] = s.tail;
        next.log[usize::from(s.tail) % RING] = op;
        next.tail += 1;
        Some(next)
    }

    /// The homes up to this operation are stored, durably or not.
    fn stored(&self, s: &State) -> u8 {
        match s.digest {
            Digest::Idle => s.digested,
            Digest::Stored(n) | Digest::Settled(n) | Digest::Raised(n) => n,
        }
    }

    /// A block that nothing can need.
    fn fresh(&self, s: &State) -> Option<u8> {
        let free = |by: u8| match by {
            0 => true,
            u8::MAX => false,
            // Once its record is appended, no operation names the block any more.
            by => !self.keeps(FreedRecordBelowDigested) || by <= s.digested,
        };
        (0..BLOCKS as u8).find(|b| free(s.freed_by[usize::from(*b)]))
    }

    /// A new commit.
    fn write(&self, s: &State) -> Option<State> {
        let full = s.ahead.is_some() && self.keeps(OneBatchAhead);
        if full || s.generation >= 7 {
            return None;
        }
        let mut next = s.clone();
        next.generation += 1;
        self.batch(s, &mut next)?;
        if self.keeps(BatchOwnsSectors) {
            next.tail = next.tail.next_multiple_of(SHARE as u8);
        }
        match next.flying {
            None => {
                next.flying = Some(s.appended);
                next.first = next.generation;
            }
            Some(_) => next.ahead = Some(s.appended),
        }
        Some(next)
    }

    /// The commit that waits for another one is written again, with what was appended meanwhile.
    fn extend(&self, s: &State) -> Option<State> {
        s.ahead?;
        let mut next = s.clone();
        self.batch(s, &mut next)?;
        next.ahead = Some(s.appended);
        Some(next)
    }

    /// Writes everything that is above the last commit, and the record of this one.
    fn batch(&self, s: &State, next: &mut State) -> Option<()> {
        let last = s.ahead.or(s.flying).unwrap_or(s.commit_ts);
        let cut = s.appended;
        if cut == last {
            return None;
        }
        let owner = by(next.generation);
        let touched: BTreeSet<_> = (last + 1..=cut)
            .map(|op| sector_of(s.pos_of[usize::from(op) - 1]))
            .collect();
        let busy = |sector: &usize| s.lazy.is_some_and(|(n, _)| usize::from(n) == *sector);
        if self.keeps(OneWriteASector) && touched.iter().any(busy) {
            return None;
        }
        let place = if self.keeps(CommitRecordsAlternate) {
            COMMIT + usize::from(next.generation) % PLACES
        } else {
            COMMIT
        };
        if next.m.is_full(place) || touched.iter().any(|n| next.m.is_full(LOG + n)) {
            return None;
        }
        for op in last + 1..=cut {
            if !self.keeps(PayloadsInBatch) {
                break;
            }
            match next.block_of[usize::from(op) - 1].checked_sub(1) {
                Some(b) => next.m.store(BLOCK + usize::from(b), op.into(), owner),
                None => next.m.store(SLOT + slot(op), op.into(), owner),
            }
        }
        for n in touched {
            next.m.store(LOG + n, sector(&s.log, n), owner);
        }
        let record = CommitRecord {
            epoch: s.epoch,
            generation: next.generation,
            cut,
            before: s.commit_ts,
        };
        next.m.store(place, record.encode(), owner);
        next.cuts |= 1 << cut;
        Some(())
    }

    /// The flush of the first commit in flight ends. What the second one has written meanwhile may be covered or not.
    fn flush(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let Some(cut) = s.flying else { return };
        let mut next = s.clone();
        next.commit_ts = cut;
        next.flying = next.ahead.take();
        if next.flying.is_some() {
            next.first = s.generation;
            let mut alone = next.clone();
            alone.m.fence(by(s.first));
            out.push((Step::Flush, alone));
        }
        next.m.drain(0..CELLS);
        out.push((Step::Flush, next));
    }

    /// The digest writes all that is dirty, and a sector of the log may be.
    fn lazy(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if let Some((n, value)) = s.lazy {
            let at = LOG + usize::from(n);
            if !s.m.is_full(at) {
                let mut next = s.clone();
                next.m.store(at, value, BY_LAZY);
                next.lazy = None;
                out.push((Step::LazyEnd, next));
            }
            return;
        }
        for n in 0..SECTORS {
            let value = sector(&s.log, n);
            let waits = self.keeps(OneWriteASector) && s.flying.is_some() && !s.m.settled(LOG + n);
            if s.left[0] > 0 && value != s.m.load(LOG + n) && !waits {
                let mut next = s.clone();
                next.left[0] -= 1;
                next.lazy = Some((n as u8, value));
                out.push((Step::LazyBegin(n as u8), next));
            }
        }
    }

    fn digest(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let upto = if self.keeps(DigestedBelowCommitTs) {
            s.commit_ts
        } else {
            s.appended
        };
        let mut next = s.clone();
        match s.digest {
            Digest::Idle if s.digested < upto => {
                for op in s.digested + 1..=upto {
                    self.store_home(&mut next, op, BY_DIGEST);
                }
                next.digest = Digest::Stored(upto);
                out.push((Step::StoreHome, next));
            }
            Digest::Idle => {}
            Digest::Stored(n) => {
                if self.keeps(NatBeforeDigested) {
                    next.m.drain(0..CELLS);
                }
                next.digest = Digest::Settled(n);
                out.push((Step::SettleHomes, next));
            }
            Digest::Settled(n) => {
                next.m.store(DIGESTED, n.into(), BY_DIGEST);
                next.digest = Digest::Raised(n);
                out.push((Step::RaiseDigested, next));
            }
            Digest::Raised(n) => {
                next.m.drain(0..CELLS);
                next.digest = Digest::Idle;
                next.digested = n;
                out.push((Step::SettleDigested, next));
            }
        }
    }

    pub(super) fn store_home(&self, s: &mut State, op: u8, owner: u8) {
        let block = s.block_of[usize::from(op) - 1].checked_sub(1);
        let at = HOME + usize::from(self.job(op).reg);
        s.m.store(at, home(op, block), owner);
    }

    /// Everything that only DRAM knows is gone.
    pub(super) fn goes_down(&self, s: &mut State) {
        s.phase = Phase::Down;
        s.flying = None;
        s.ahead = None;
        s.lazy = None;
        s.digest = Digest::Idle;
        s.log = [0; RING];
        s.named = [None; REGS];
        s.freed_by = [0; BLOCKS];
        s.commit_ts = 0;
        s.digested = 0;
        s.generation = 0;
        s.first = 0;
        s.epoch = 0;
        s.cut = 0;
    }

    pub(super) fn recovering(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.damage {
            return;
        }
        if s.phase == Phase::Down {
            if self.0.rot && !s.rotted {
                self.rots(s, out);
            }
            out.push((Step::Scan, self.scan(s)));
            return;
        }
        let mut next = s.clone();
        next.m.drain(0..CELLS);
        let step = match s.phase {
            Phase::Replayed => {
                // Above every number seen, so that no number has two meanings.
                next.digested = s.appended;
                for op in s.cut + 1..=s.appended {
                    next.undone |= 1 << op;
                }
                next.m.store(DIGESTED, s.appended.into(), BY_RECOVERY);
                next.phase = Phase::Raised;
                Step::RecoveryRaisesD
            }
            Phase::Raised => {
                next.epoch = s.epoch + 1;
                next.m.store(EPOCH, next.epoch.into(), BY_RECOVERY);
                if self.keeps(CommitRecordsCleared) {
                    for at in COMMIT..LOG {
                        next.m.store(at, 0, BY_RECOVERY);
                    }
                }
                next.phase = Phase::Begun;
                Step::RecoveryBeginsEpoch
            }
            _ => {
                next.commit_ts = s.appended;
                next.tail = s.tail.next_multiple_of(SHARE as u8);
                next.cuts |= 1 << s.appended;
                next.acked = s.appended;
                next.phase = Phase::Running;
                self.load(&mut next);
                Step::Serve
            }
        };
        out.push((step, next));
    }

    /// DRAM, from the homes.
    fn load(&self, s: &mut State) {
        for reg in 0..REGS {
            let (_, block) = parts(s.m.load(HOME + reg));
            s.named[reg] = block;
            if let Some(b) = block {
                s.freed_by[usize::from(b)] = u8::MAX;
            }
        }
        for n in 0..SECTORS {
            let value = s.m.load(LOG + n);
            for i in 0..SHARE {
                let op = (value >> (4 * i) & 7) as u8;
                s.log[n * SHARE + i] = if value == TORN { 0 } else { op };
            }
        }
        s.cut = 0;
    }
}
