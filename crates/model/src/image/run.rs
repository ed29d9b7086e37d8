//! What an operation does, one shared access at a time.

use super::*;

impl Images {
    /// The next step of operation `t`.
    pub(super) fn run(&self, s: &State, t: usize) -> Option<State> {
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
                                    || !self.keeps(Ordering::NumberReuseBelowDigested))
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
}
