//! What becomes of requests between two daemons.

use super::{Asked, At, Phase, REQUESTS, Restarts, State, THREADS};
use crate::ordering::Ordering;

impl Restarts {
    pub(super) fn judge(&self, s: &State) -> Option<State> {
        let Phase::Judges { slot, held } = s.phase else {
            return None;
        };
        let first_remembered = self.keeps(Ordering::RememberedBeforeForgotten);
        let mut s = s.clone();
        let at = usize::from(slot);
        if at == THREADS {
            s.phase = if s.raised {
                Phase::Serves
            } else {
                Phase::Raises
            };
            if s.raised {
                s.next = s.digested + 1;
            }
            return Some(s);
        }
        let next = Phase::Judges {
            slot: slot + 1,
            held: None,
        };
        if let Some((request, far)) = held {
            if first_remembered {
                s.slots[at].request = 0;
            } else {
                remember(&mut s, request, far);
            }
            s.phase = next;
            return Some(s);
        }
        let notes = s.slots[at].notes;
        let there = notes.iter().filter(|note| self.happened(&s, note.number));
        let far = there.map(|note| note.far).max();
        let request = s.slots[at].request;
        s.phase = match (request.checked_sub(1), far) {
            (Some(request), Some(far)) => {
                if first_remembered {
                    remember(&mut s, request, far);
                } else {
                    s.slots[at].request = 0;
                }
                Phase::Judges {
                    slot,
                    held: Some((request, far)),
                }
            }
            _ => {
                s.slots[at].request = 0;
                next
            }
        };
        Some(s)
    }

    /// digested_seq goes to the highest number seen, and numbers go on above it.
    pub(super) fn raise(&self, s: &State) -> Option<State> {
        let early = matches!(
            s.phase,
            Phase::Judges {
                slot: 0,
                held: None
            }
        ) && !self.keeps(Ordering::JudgedBeforeDigestedRaised);
        if s.raised || s.phase != Phase::Raises && !early {
            return None;
        }
        let mut s = s.clone();
        s.digested = highest(&s);
        s.log = 0;
        s.next = s.digested + 1;
        if early {
            s.raised = true;
        } else {
            s.phase = Phase::Serves;
        }
        Some(s)
    }

    pub(super) fn death(&self, s: &State) -> Option<State> {
        if s.left[1] == 0 {
            return None;
        }
        let mut s = s.clone();
        s.left[1] -= 1;
        for asked in &mut s.asked {
            if *asked == Asked::Taken {
                *asked = Asked::Waits { sent_before: true };
            }
        }
        s.at = [At::Free; THREADS];
        s.newer = [1; THREADS];
        s.late = [None; THREADS];
        s.next = 0;
        s.raised = false;
        s.phase = Phase::Judges {
            slot: 0,
            held: None,
        };
        if !self.keeps(Ordering::RememberedOverDeaths) {
            s.known = [None; REQUESTS];
        }
        Some(s)
    }
}

/// The highest number that there is anything of.
pub(super) fn highest(s: &State) -> u8 {
    let last = (u32::BITS - s.log.leading_zeros()).saturating_sub(1) as u8;
    s.digested.max(last)
}

fn remember(s: &mut State, request: u8, far: u8) {
    let known = &mut s.known[usize::from(request)];
    *known = Some(known.map_or(far, |known| known.max(far)));
}
