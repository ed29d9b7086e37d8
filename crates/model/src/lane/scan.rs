//! What recovery would make of the lanes, and whether that is right.

use super::*;

impl Lanes {
    /// Walks the lanes, replays, and compares every register with what its callers were told.
    pub(super) fn judge(&self, s: &State) -> Result<(), Property> {
        let digested = s.m.load(DIGESTED) as u8;
        let commit_ts = s.m.load(COMMIT_TS) as u8;
        let mut damage = false;
        let mut found = Vec::new();
        for lane in 0..LANES {
            damage |= self.walk(s, lane, &mut found);
        }
        let seq = |&op: &usize| s.rec[op].seq;
        if self.0.commit {
            damage |= (digested + 1..=commit_ts).any(|n| !found.iter().any(|op| seq(op) == n));
            found.retain(|op| seq(op) <= commit_ts);
        }
        if self.keeps(Ordering::ReplayAboveDigested) {
            found.retain(|op| seq(op) > digested);
        }
        found.sort_by_key(seq);
        if !self.keeps(Ordering::RecoverySkipsHoles) {
            let mut next = digested + 1;
            found.retain(|op| {
                let contiguous = seq(op) == next;
                next += u8::from(contiguous);
                contiguous
            });
        }
        if damage {
            return if s.rotted {
                Ok(())
            } else {
                Err(Property::FalseDamage)
            };
        }
        if self.0.commit && commit_ts < s.acked_cut {
            return Err(Property::AckedLost);
        }
        for reg in 0..REGS {
            let mut value = s.m.load(HOME + reg);
            for &op in found
                .iter()
                .filter(|&&op| usize::from(self.job(op).reg) == reg)
            {
                value = op as u16 + 1;
            }
            let got = if value == 0 {
                0
            } else {
                s.rec[usize::from(value) - 1].seq
            };
            let mut mine: Vec<usize> = (0..OPS)
                .filter(|&op| {
                    op % EACH < self.0.jobs[op / EACH].len()
                        && usize::from(self.job(op).reg) == reg
                        && s.rec[op].seq != 0
                        && s.failed >> op & 1 == 0
                })
                .collect();
            mine.sort_by_key(seq);
            if self.0.commit {
                let want = mine
                    .iter()
                    .map(seq)
                    .filter(|&n| n <= commit_ts)
                    .max()
                    .unwrap_or(0);
                if got != want && !(s.rotted && self.undetectable(s)) {
                    return Err(if s.rotted {
                        Property::SilentDamage
                    } else {
                        Property::NotTheCommit
                    });
                }
            } else {
                let acked = mine.iter().filter(|&&op| s.acked >> op & 1 == 1).map(seq);
                if got < acked.max().unwrap_or(0) && !(s.rotted && self.undetectable(s)) {
                    return Err(if s.rotted {
                        Property::SilentDamage
                    } else {
                        Property::AckedLost
                    });
                }
            }
        }
        Ok(())
    }

    /// Follows a lane from its head. Returns whether what ended the walk is damage.
    fn walk(&self, s: &State, lane: usize, found: &mut Vec<usize>) -> bool {
        let head = s.m.load(HEAD + lane) as u8;
        for pos in head..head + self.0.ring as u8 {
            let cell = self.cell(lane, pos);
            match (
                self.valid(s, REC_HEAD + cell, pos),
                self.valid(s, REC_BODY + cell, pos),
            ) {
                (Some(op), Some(_)) => found.push(op),
                (head, _) => {
                    // In `op` a record is durable before its lane takes the next one, so anything
                    // valid behind an invalid one proves damage.
                    let looks = self.keeps(match head {
                        Some(_) => Ordering::BodyChecksumApart,
                        None => Ordering::LookPastBadHeader,
                    });
                    return !self.0.commit && looks && self.successor(s, lane, pos);
                }
            }
        }
        false
    }

    fn valid(&self, s: &State, at: usize, pos: u8) -> Option<usize> {
        let value = s.m.load(at);
        let op = usize::from(value).checked_sub(1)?;
        (value != TORN && s.rec[op].pos == pos).then_some(op)
    }

    fn successor(&self, s: &State, lane: usize, pos: u8) -> bool {
        let head = s.m.load(HEAD + lane) as u8;
        (pos + 1..head + self.0.ring as u8).any(|later| {
            let cell = self.cell(lane, later);
            self.valid(s, REC_HEAD + cell, later).is_some()
                && self.valid(s, REC_BODY + cell, later).is_some()
        })
    }

    /// The last record of a lane has no successor to betray its loss (`op` only).
    fn undetectable(&self, s: &State) -> bool {
        !self.0.commit
            && (0..LANES).any(|lane| {
                let head = s.m.load(HEAD + lane) as u8;
                (head..head + self.0.ring as u8).any(|pos| {
                    let cell = self.cell(lane, pos);
                    let torn = |at| s.m.load(at) == TORN;
                    (torn(REC_HEAD + cell) || torn(REC_BODY + cell))
                        && !self.successor(s, lane, pos)
                })
            })
    }
}
