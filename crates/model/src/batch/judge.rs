//! Which commit recovery believes, and whether what it shows is right.

use super::*;
use crate::ordering::Ordering::*;

impl Batches {
    /// Reads commit records, log and payloads, and stores the homes of what it replays.
    pub(super) fn scan(&self, s: &State) -> State {
        let mut next = s.clone();
        if self.keeps(RecoveryDrainsFirst) {
            next.m.drain(0..CELLS);
        }
        next.epoch = s.m.load(EPOCH) as u8;
        next.digested = s.m.load(DIGESTED) as u8;
        let (cut, damage) = self.believed(s, next.epoch, next.digested);
        next.cut = cut.max(next.digested);
        next.damage = damage;
        next.phase = Phase::Replayed;
        if !damage {
            // What is not there cannot be replayed.
            for op in (next.digested + 1..=cut).filter(|op| self.whole(s, *op)) {
                self.store_home(&mut next, op, BY_RECOVERY);
            }
            // A home has a checksum.
            next.damage = (HOME..CELLS).any(|at| next.m.load(at) == TORN);
        }
        next
    }

    /// The cut of the newest commit whose batch is whole, and whether something is missing that no crash takes.
    fn believed(&self, s: &State, epoch: u8, digested: u8) -> (u8, bool) {
        let commits = self.commits(s, epoch);
        let Some(newest) = commits.first() else {
            return (digested, false);
        };
        let whole = |from: u8, to: u8| (from.max(digested) + 1..=to).all(|op| self.whole(s, op));
        let durable = newest.before;
        let damage = self.keeps(CommitVouchesForLast) && !whole(0, durable);
        let believes = |c: &&CommitRecord| whole(durable, c.cut) || !self.keeps(BatchIsWhole);
        let last_two = commits
            .iter()
            .filter(|c| c.generation + 1 >= newest.generation);
        let believed = last_two.clone().find(believes);
        (believed.map_or(durable, |c| c.cut.max(durable)), damage)
    }

    /// The commit records that can be read, the newest first. One that is torn says nothing.
    fn commits(&self, s: &State, epoch: u8) -> Vec<CommitRecord> {
        let current = |c: &CommitRecord| c.epoch == epoch || !self.keeps(EpochInCommitRecord);
        let mut commits: Vec<_> = (COMMIT..LOG)
            .filter_map(|at| CommitRecord::decode(s.m.load(at)))
            .filter(current)
            .collect();
        commits.sort_by_key(|c| std::cmp::Reverse(c.generation));
        commits
    }

    /// Whether the record of an operation is there, and its payload.
    fn whole(&self, s: &State, op: u8) -> bool {
        let pos = s.pos_of[usize::from(op) - 1];
        let value = s.m.load(LOG + sector_of(pos));
        let shift = 4 * (usize::from(pos) % SHARE);
        let here = value != TORN && value >> shift & 15 == u16::from(op);
        let payload = match s.block_of[usize::from(op) - 1].checked_sub(1) {
            Some(b) => BLOCK + usize::from(b),
            None => SLOT + slot(op),
        };
        here && s.m.load(payload) == u16::from(op)
    }

    /// One durable cell, of what a recovery reads.
    pub(super) fn rots(&self, s: &State, out: &mut Vec<(Step, State)>) {
        for at in COMMIT..HOME {
            if s.m.load(at) == 0 || s.m.load(at) == TORN {
                continue;
            }
            let mut next = s.clone();
            next.m.drain(0..CELLS);
            next.rotted = true;
            next.excused = self.looks_cut_off(&next, at);
            next.m.format(at, TORN);
            out.push((Step::Rot(at), next));
        }
    }

    /// Whether the loss of a cell looks like the end of the log: it belongs to commits that nothing says are durable,
    /// or to none.
    fn looks_cut_off(&self, s: &State, at: usize) -> bool {
        let (epoch, digested) = (s.m.load(EPOCH) as u8, s.m.load(DIGESTED) as u8);
        let commits = self.commits(s, epoch);
        let durable = commits.first().map_or(digested, |c| c.before);
        if at < LOG {
            let lost = CommitRecord::decode(s.m.load(at));
            return lost.is_some_and(|c| c.epoch == epoch && c.cut > durable);
        }
        let holds = |op: u8| {
            let payload = match s.block_of[usize::from(op) - 1].checked_sub(1) {
                Some(b) => BLOCK + usize::from(b),
                None => SLOT + slot(op),
            };
            at == payload || at == LOG + sector_of(s.pos_of[usize::from(op) - 1])
        };
        !(digested + 1..=durable).any(holds)
    }

    /// What the registers read as, once recovery has said what it has found.
    pub(super) fn judge(&self, s: &State) -> Result<(), Property> {
        if s.phase == Phase::Down || s.phase == Phase::Running {
            return Ok(());
        }
        if s.damage {
            let silent = if s.rotted {
                Ok(())
            } else {
                Err(Property::FalseDamage)
            };
            return silent;
        }
        let lost = |property| {
            if !s.rotted {
                Err(property)
            } else if s.excused {
                Ok(())
            } else {
                Err(Property::SilentDamage)
            }
        };
        if s.cut < s.acked {
            return lost(Property::AckedLost);
        }
        // Undone numbers are below digested_seq after a recovery, which changes nothing.
        if s.cuts >> s.cut & 1 == 0 && s.cut != s.appended {
            return lost(Property::NotTheCommit);
        }
        for reg in 0..REGS {
            let (op, block) = parts(s.m.load(HOME + reg));
            let want = self.last_of(s, reg, s.cut);
            if op != want {
                return lost(Property::NotTheCommit);
            }
            let content = block.map(|b| s.m.load(BLOCK + usize::from(b)));
            // What has rotted fails its checksum when it is read.
            let noticed = s.rotted && content == Some(TORN);
            if content.is_some_and(|content| content != u16::from(op)) && !noticed {
                return lost(Property::ForeignContent);
            }
        }
        Ok(())
    }
}
