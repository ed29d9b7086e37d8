//! Replay, and whether what it yields is right.

use super::*;

impl Images {
    /// Records are applied in order; `None` where one does not apply.
    pub(super) fn apply(&self, mut home: Home, recs: &[Rec]) -> Option<Home> {
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

    /// Every number up to here has a durable record.
    pub(super) fn complete(&self, s: &State) -> u8 {
        let unfinished = s.rec.iter().filter(|rec| rec.seq != 0 && !rec.durable);
        unfinished.map(|rec| rec.seq - 1).min().unwrap_or(s.counter)
    }

    /// How far a digest may go.
    pub(super) fn digestable(&self, s: &State) -> u8 {
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

    /// What mkfs leaves.
    pub(super) fn formatted(&self) -> Home {
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

    /// Compares what recovery would show with what the survivors would have done.
    pub(super) fn judge(&self, s: &State) -> Result<(), Property> {
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
