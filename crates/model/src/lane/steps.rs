//! What writers, the digest and committers do, one shared access at a time.

use super::*;

impl Lanes {
    /// The next step of writer `w`.
    pub(super) fn write(&self, s: &State, w: usize) -> Option<State> {
        let at = usize::from(s.writer[w].at);
        let op = w * EACH + at;
        let job = *self.0.jobs[w].get(at)?;
        let (lane, reg) = (usize::from(job.lane), usize::from(job.reg));
        let me = w as u8 + 1;
        let space = |s: &State| usize::from(s.tail[lane] - s.freed[lane]) < self.0.ring;
        let credit_first = self.keeps(Ordering::NothingBlocksAfterNumber);
        let mut s = s.clone();
        let pc = s.writer[w].pc;
        s.writer[w].pc = pc + 1;
        match pc {
            // Credit (the lane has room), the object's lock, the lane's lock.
            0 => {
                if s.reg_lock[reg] != 0 || s.lane_lock[lane] != 0 || (credit_first && !space(&s)) {
                    return None;
                }
                s.reg_lock[reg] = me;
                s.lane_lock[lane] = me;
                if !self.keeps(Ordering::BoundBeforeNumber) {
                    s.writer[w].pc = 3;
                }
            }
            1 => s.writer[w].seen = s.counter,
            2 => {
                s.bound[w] = s.writer[w].seen + 1;
                s.writer[w].seen = 0;
            }
            3 => {
                s.counter += 1;
                s.rec[op].seq = s.counter;
                if self.keeps(Ordering::BoundBeforeNumber) {
                    s.writer[w].pc = 5;
                }
            }
            4 => s.bound[w] = s.rec[op].seq,
            5 => {
                if !credit_first && !space(&s) {
                    return None;
                }
                s.rec[op].pos = s.tail[lane];
                s.tail[lane] += 1;
                let cell = self.cell(lane, s.rec[op].pos);
                s.m.store(REC_HEAD + cell, op as u16 + 1, me);
                s.m.store(REC_BODY + cell, op as u16 + 1, me);
                if !self.keeps(Ordering::FenceUnderLaneLock) {
                    s.lane_lock[lane] = 0;
                }
                if !self.keeps(Ordering::BoundClearedAfterFence) {
                    s.bound[w] = UNBOUNDED;
                }
                if self.0.commit {
                    s.writer[w].pc = 7;
                }
            }
            6 => s.m.fence(me),
            7 => s.bound[w] = UNBOUNDED,
            _ => {
                if s.lane_lock[lane] == me {
                    s.lane_lock[lane] = 0;
                }
                s.reg_lock[reg] = 0;
                if !self.0.commit {
                    s.acked |= 1 << op;
                }
                s.writer[w] = Writer {
                    at: at as u8 + 1,
                    ..Writer::default()
                };
            }
        }
        Some(s)
    }

    /// Writer `w` gives up although it has a number.
    pub(super) fn fail(&self, s: &State, w: usize) -> Option<State> {
        let after_number = s.writer[w].pc == 5;
        if !self.0.failures || !after_number || self.keeps(Ordering::NothingFailsAfterNumber) {
            return None;
        }
        let at = usize::from(s.writer[w].at);
        let job = self.0.jobs[w][at];
        let mut s = s.clone();
        s.failed |= 1 << (w * EACH + at);
        s.bound[w] = UNBOUNDED;
        s.lane_lock[usize::from(job.lane)] = 0;
        s.reg_lock[usize::from(job.reg)] = 0;
        s.writer[w] = Writer {
            at: at as u8 + 1,
            ..Writer::default()
        };
        Some(s)
    }

    /// The digest: a cut over counter and bounds, homes, digested_seq.
    pub(super) fn digest(&self, s: &State) -> Option<State> {
        let mut s = s.clone();
        let Reader { pc, next, upto } = s.digest;
        let counter_first = self.keeps(Ordering::CounterBeforeBounds);
        match pc {
            0 => {
                // A look is worth taking only if something has been appended.
                if s.counter == s.digested {
                    return None;
                }
                let upto = if !self.keeps(Ordering::DigestedWaitsForAppends) {
                    self.newest_readable(&s)
                } else if counter_first {
                    s.counter
                } else {
                    UNBOUNDED
                };
                s.digest = Reader {
                    pc: 1,
                    next: 0,
                    upto,
                };
            }
            1 => {
                let next = usize::from(next);
                let skip = !self.keeps(Ordering::DigestedWaitsForAppends);
                if next < WRITERS && !skip {
                    s.digest.upto = upto.min(s.bound[next].saturating_sub(1));
                    s.digest.next += 1;
                } else {
                    if !counter_first {
                        s.digest.upto = upto.min(s.counter);
                    }
                    if self.0.commit && self.keeps(Ordering::DigestedBelowCommitTs) {
                        s.digest.upto = s.digest.upto.min(s.commit_ts);
                    }
                    s.digest.next = 0;
                    s.digest.pc = 2;
                    if s.digest.upto <= s.digested {
                        s.digest = Reader::default();
                    }
                }
            }
            2 => {
                for op in self.readable(&s, s.digested, upto) {
                    let reg = usize::from(self.job(op).reg);
                    s.m.store(HOME + reg, op as u16 + 1, BY_DIGEST);
                    s.m.fence(BY_DIGEST);
                }
                s.digest.pc = 3;
            }
            3 => {
                s.m.store(DIGESTED, u16::from(upto), BY_DIGEST);
                s.digest.pc = 4;
            }
            _ => {
                s.m.fence(BY_DIGEST);
                s.digested = upto;
                s.digest = Reader::default();
            }
        }
        Some(s)
    }

    /// Operations with a readable record in (after, upto], in the order of their numbers.
    fn readable(&self, s: &State, after: u8, upto: u8) -> Vec<usize> {
        let mut ops: Vec<usize> = (0..OPS)
            .filter(|&op| {
                let rec = s.rec[op];
                if rec.seq <= after || rec.seq > upto || op % EACH >= self.0.jobs[op / EACH].len() {
                    return false;
                }
                let cell = self.cell(usize::from(self.job(op).lane), rec.pos);
                s.m.load(REC_BODY + cell) == op as u16 + 1
            })
            .collect();
        ops.sort_by_key(|&op| s.rec[op].seq);
        ops
    }

    fn newest_readable(&self, s: &State) -> u8 {
        let ops = self.readable(s, s.digested, UNBOUNDED);
        ops.last().map_or(s.digested, |&op| s.rec[op].seq)
    }

    /// A lane's head passes what digested_seq has passed: persisted, then the space is free.
    pub(super) fn advance(&self, s: &State, lane: usize) -> Option<State> {
        let mut head = s.freed[lane];
        while head < s.tail[lane] {
            let op = (0..OPS).find(|&op| {
                op % EACH < self.0.jobs[op / EACH].len()
                    && usize::from(self.job(op).lane) == lane
                    && s.rec[op].seq != 0
                    && s.rec[op].pos == head
                    && s.m.load(REC_BODY + self.cell(lane, head)) == op as u16 + 1
            })?;
            if s.rec[op].seq > s.digested {
                break;
            }
            head += 1;
        }
        if head == s.freed[lane] {
            return None;
        }
        let mut s = s.clone();
        s.m.format(HEAD + lane, u16::from(head));
        s.freed[lane] = head;
        Some(s)
    }

    /// A commit: cut, wait for appends, drain, `commit_ts`, drain, answer.
    pub(super) fn commit(&self, s: &State, c: usize) -> Option<State> {
        let mut s = s.clone();
        let exclusive = self.keeps(Ordering::OneCommitAtATime);
        let Reader { pc, next, upto } = s.committer[c];
        match pc {
            0 => {
                if s.commits >= self.0.commits
                    || s.counter <= s.commit_ts
                    || (exclusive && s.committing)
                {
                    return None;
                }
                s.commits += 1;
                s.committing = true;
                s.committer[c] = Reader {
                    pc: 1,
                    next: 0,
                    upto: s.counter,
                };
            }
            1 => {
                let next = usize::from(next);
                if next == WRITERS || !self.keeps(Ordering::CommitWaitsForAppends) {
                    s.committer[c] = Reader {
                        pc: 2,
                        next: 0,
                        upto,
                    };
                } else if s.bound[next] > upto {
                    s.committer[c].next += 1;
                } else {
                    return None;
                }
            }
            2 => {
                if self.keeps(Ordering::DrainBeforeCommitTs) {
                    s.m.drain(0..CELLS);
                }
                s.committer[c].pc = 3;
            }
            3 => {
                s.m.store(COMMIT_TS, u16::from(upto), BY_COMMIT + c as u8);
                s.committer[c].pc = 4;
            }
            _ => {
                s.m.drain(0..CELLS);
                s.commit_ts = upto;
                s.acked_cut = s.acked_cut.max(upto);
                s.committing = false;
                s.committer[c] = Reader::default();
            }
        }
        Some(s)
    }

    pub(super) fn describe(&self, before: &State, step: Step, after: &State) -> String {
        let op = |w: usize| w * EACH + usize::from(before.writer[w].at);
        match step {
            Step::Write(w, pc) => {
                let job = self.job(op(w));
                let what = match pc {
                    0 => format!("locks register {} and lane {}", job.reg, job.lane),
                    1 => "loads the counter".into(),
                    2 | 4 => format!("publishes the bound {}", after.bound[w]),
                    3 => format!("takes number {}", after.counter),
                    5 => format!(
                        "copies record {} into lane {}",
                        after.rec[op(w)].seq,
                        job.lane
                    ),
                    6 => format!("fences record {}", after.rec[op(w)].seq),
                    7 => "clears its bound".into(),
                    _ => "unlocks, answers".into(),
                };
                format!("writer {w} {what}")
            }
            Step::Fail(w) => format!("writer {w} fails with number {}", before.rec[op(w)].seq),
            Step::Digest(0) => match after.digest.upto {
                UNBOUNDED => "digest starts with the bounds".into(),
                upto => format!("digest loads the counter: {upto}"),
            },
            Step::Digest(1) if after.digest.pc == 1 => {
                format!(
                    "digest loads bound {}: may go to {}",
                    before.digest.next, after.digest.upto
                )
            }
            Step::Digest(1) => "digest has its cut".into(),
            Step::Digest(2) => format!("digest stores homes up to {}, fence", after.digest.upto),
            Step::Digest(3) => format!("digested_seq = {} stored", after.digest.upto),
            Step::Digest(_) => "digested_seq fenced".into(),
            Step::Advance(lane) => format!("head of lane {lane} persisted: {}", after.freed[lane]),
            Step::Commit(c, 0) => format!("commit {c}: cut at {}", after.committer[c].upto),
            Step::Commit(c, 1) if after.committer[c].pc == 1 => {
                format!("commit {c}: writer {} is past it", before.committer[c].next)
            }
            Step::Commit(c, 1) => format!("commit {c}: has waited for appends, if it has"),
            Step::Commit(c, 2) => format!("commit {c}: drain, if any"),
            Step::Commit(c, 3) => {
                format!(
                    "commit {c}: commit_ts = {} stored",
                    before.committer[c].upto
                )
            }
            Step::Commit(c, _) => format!("commit {c}: drained, answered"),
            Step::PowerLoss => {
                let cells = before.m.in_flight().map(|at| match after.m.load(at) {
                    TORN => format!("{} torn", name(at)),
                    value if value == before.m.load(at) => format!("{} new", name(at)),
                    _ => format!("{} old", name(at)),
                });
                format!("POWER LOSS [{}]", cells.collect::<Vec<_>>().join(", "))
            }
            Step::Rot(at) => format!("ROT: {} no longer validates", name(at)),
        }
    }
}

fn name(at: usize) -> String {
    match at {
        DIGESTED => "digested_seq".into(),
        COMMIT_TS => "commit_ts".into(),
        HEAD..HOME => format!("head of lane {}", at - HEAD),
        HOME..REC_HEAD => format!("home {}", at - HOME),
        _ => {
            let (what, at) = if at < REC_BODY {
                ("header", at - REC_HEAD)
            } else {
                ("body", at - REC_BODY)
            };
            format!("{what} {} of lane {}", at % RING, at / RING)
        }
    }
}
