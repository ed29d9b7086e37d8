//! The behind model: large writes that are answered before the device has them, and a daemon that dies meanwhile
//! (`docs/internals/crash-consistency.md`, "When the mount goes on").
//!
//! One block of the device, which one file has after the other. Each file's content is posted in memory that outlives the
//! daemon, its record names the block, and the device gets the content some time later. The machine goes on: what is on its
//! way to the device when the daemon dies arrives there all the same, at some time.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

/// Postings and transfers at a time.
const ROOM: usize = 2;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Files that have the block one after the other.
    pub files: u8,
    pub deaths: u8,
    pub kept: Kept,
}

/// A write of the file that has the block, or is about to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// The block is free.
    Free,
    Begun,
    /// So many of posting and record are done.
    Half,
    Written,
    Submitted,
    Arrived,
    Retired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Down,
    /// This posting is on the device again, and has not been taken out.
    WritesAgain(usize),
    Serves,
}

/// A state of the behind model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    at: At,
    /// The last file that has had the block, and the one that has it by the log; 0 for none.
    last: u8,
    owner: u8,
    /// What is posted, and what is on its way, which is a dead daemon's or not.
    postings: [u8; ROOM],
    transfers: [(u8, bool); ROOM],
    device: u8,
    phase: Phase,
    /// Postings of a dead daemon that this one has not written again.
    owes: bool,
    deaths: u8,
}

/// A transition of the behind model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Begin,
    Post,
    Record,
    Submit,
    Arrive(usize),
    Retire,
    Free,
    WriteAgain,
    TakeOut,
    Serve,
    Death,
}

/// The behind model under one configuration.
pub struct Behind(pub Config);

impl Behind {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    /// What the daemon does for the file at hand.
    fn next(&self, s: &State) -> Option<(Step, State)> {
        let mut next = *s;
        let posts_first = self.keeps(Ordering::PostedBeforeRecord);
        let step = match s.at {
            At::Free => {
                let waits =
                    self.keeps(Ordering::FreeOfPostingsBeforeReuse) && s.postings != [0; ROOM];
                if s.last == self.0.files || waits || !s.postings.contains(&0) {
                    return None;
                }
                next.last += 1;
                next.at = At::Begun;
                Step::Begin
            }
            At::Begun | At::Half if (s.at == At::Begun) == posts_first => {
                let free = s.postings.iter().position(|p| *p == 0)?;
                next.postings[free] = s.last;
                next.at = if posts_first { At::Half } else { At::Written };
                Step::Post
            }
            At::Begun | At::Half => {
                next.owner = s.last;
                next.at = if posts_first { At::Written } else { At::Half };
                Step::Record
            }
            At::Written => {
                let free = s.transfers.iter().position(|(p, _)| *p == 0)?;
                next.transfers[free] = (s.last, false);
                next.at = At::Submitted;
                Step::Submit
            }
            At::Submitted if self.keeps(Ordering::RetiredAfterDevice) => return None,
            At::Submitted | At::Arrived => {
                retire(&mut next, s.last);
                next.at = At::Retired;
                Step::Retire
            }
            At::Retired => return None,
        };
        Some((step, next))
    }

    fn arrive(s: &State, n: usize) -> Option<State> {
        let (content, is_dead) = s.transfers[n];
        if content == 0 {
            return None;
        }
        let mut next = *s;
        next.device = content;
        next.transfers[n] = (0, false);
        if !is_dead && content == s.last && s.at == At::Submitted {
            next.at = At::Arrived;
        }
        Some(next)
    }

    /// The file is removed: its block is free, also while its content is on its way.
    fn free(&self, s: &State) -> Option<State> {
        let is_whole = matches!(
            s.at,
            At::Written | At::Submitted | At::Arrived | At::Retired
        );
        // What is still to be posted is taken out when it has arrived, which is waited for before the block changes hands.
        let waits = self.keeps(Ordering::FreeOfPostingsBeforeReuse) && s.at != At::Retired;
        if !is_whole || waits {
            return None;
        }
        let mut next = *s;
        next.owner = 0;
        next.at = At::Free;
        Some(next)
    }

    /// What was posted by dead daemons goes to the device, and is taken out when it is there.
    fn again(&self, s: &State) -> Option<(Step, State)> {
        let mut next = *s;
        if let Phase::WritesAgain(n) = s.phase {
            next.postings[n] = 0;
            next.phase = Phase::Down;
            return Some((Step::TakeOut, next));
        }
        let is_late = s.phase == Phase::Serves && s.owes;
        let under_way = s
            .transfers
            .iter()
            .any(|(content, is_dead)| *content != 0 && *is_dead);
        if s.phase == Phase::Serves && !is_late
            || under_way && self.keeps(Ordering::DeadTransfersAwaited)
        {
            return None;
        }
        let posted = s
            .postings
            .iter()
            .position(|p| *p != 0 && (!is_late || *p != s.last || s.at == At::Retired))?;
        next.device = s.postings[posted];
        if is_late {
            next.postings[posted] = 0;
        } else {
            next.phase = Phase::WritesAgain(posted);
        }
        Some((Step::WriteAgain, next))
    }

    fn serve(&self, s: &State) -> Option<State> {
        let owes = s.postings != [0; ROOM];
        let under_way = s
            .transfers
            .iter()
            .any(|(content, is_dead)| *content != 0 && *is_dead);
        if s.phase != Phase::Down
            || owes && self.keeps(Ordering::WrittenAgainFirst)
            || under_way && self.keeps(Ordering::DeadTransfersAwaited)
        {
            return None;
        }
        let phase = Phase::Serves;
        Some(State { phase, owes, ..*s })
    }

    fn death(s: &State) -> Option<State> {
        if s.deaths == 0 {
            return None;
        }
        let mut next = *s;
        next.deaths -= 1;
        next.phase = Phase::Down;
        next.owes = false;
        for (_, is_dead) in &mut next.transfers {
            *is_dead = true;
        }
        // A record that is there counts, and the request is answered when it comes again.
        next.at = if s.owner == 0 { At::Free } else { At::Retired };
        Some(next)
    }
}

fn retire(s: &mut State, content: u8) {
    for posting in &mut s.postings {
        if *posting == content {
            *posting = 0;
        }
    }
}

impl Model for Behind {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            at: At::Free,
            last: 0,
            owner: 0,
            postings: [0; ROOM],
            transfers: [(0, false); ROOM],
            device: 0,
            phase: Phase::Serves,
            owes: false,
            deaths: self.0.deaths,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.phase == Phase::Serves {
            out.extend(self.next(s));
            out.extend(self.free(s).map(|next| (Step::Free, next)));
        }
        for n in 0..ROOM {
            out.extend(Self::arrive(s, n).map(|next| (Step::Arrive(n), next)));
        }
        out.extend(self.again(s));
        out.extend(self.serve(s).map(|next| (Step::Serve, next)));
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        out.extend(Self::death(s).map(|next| (Step::Death, next)));
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        // A read waits for what this daemon has posted.
        let is_read = s.phase == Phase::Serves && s.owner != 0 && s.at == At::Retired;
        match s.device {
            device if !is_read || device == s.owner => Ok(()),
            0 => Err(Property::AckedLost),
            _ => Err(Property::ForeignContent),
        }
    }

    fn finished(&self, s: &State) -> Option<bool> {
        let is_done = matches!(s.at, At::Free | At::Retired);
        Some(s.last == self.0.files && is_done && s.phase == Phase::Serves)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Begin => format!("file {} gets the block", after.last),
            Step::Post => format!("content of file {} is posted", after.last),
            Step::Record => format!("record of file {}", after.last),
            Step::Submit => format!("content of file {} is on its way", after.last),
            Step::Arrive(n) => format!("content of file {} has arrived", before.transfers[n].0),
            Step::Retire => format!("file {}: taken out", after.last),
            Step::Free => format!("file {} is removed", before.owner),
            Step::WriteAgain => format!("content of file {} is written again", after.device),
            Step::TakeOut => "and taken out".into(),
            Step::Serve => "the next daemon serves".into(),
            Step::Death => "DEATH".into(),
        }
    }
}
