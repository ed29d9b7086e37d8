//! How the daemons of a mount have ended, and what comes after one.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use signal_hook::consts::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};

use super::{End, Supervisor};
use crate::cli::exit::{MOUNT_FAILED, NOT_NOW};
use crate::cli::handover::{CAUSE, DEATHS, DIED, ON_REQUEST, REPLACED};

/// So many daemons that die one after the other without an answer are enough,
pub(super) const ENOUGH: usize = 5;
/// if they die within this time, or before they serve.
const WITHIN: Duration = Duration::from_secs(10);
/// So long daemons may fail for reasons that may pass.
pub(super) const HINDERED_MAX: Duration = Duration::from_secs(120);
/// Signals that a daemon is ended by because of a fault of its own.
const FAULTS: [i32; 5] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV];

/// The daemons that have ended.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Those that have died.
    deaths: u64,
    /// Those that were replaced.
    replaced: u64,
    /// How the last of all of them ended.
    cause: String,
    /// When, or when that was asked for.
    pub(super) died: Duration,
    /// When the last daemons died, as far as they had answered nothing.
    in_vain: VecDeque<Duration>,
    /// Since when none could serve, for reasons that may pass.
    hindered: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Another daemon goes on.
    Again,
    /// Another daemon may be able to, but not at once.
    Later,
    /// The mount has ended.
    Over,
    /// There is no mount, or it is of no use any more.
    Failed(u8),
    /// There is no mount, since the daemon that was to make it was ended by this signal.
    NeverMounted(i32),
    /// Another daemon would die like the last one, by this signal.
    GiveUp(i32),
}

impl Past {
    /// What the next daemon is to know, as its environment.
    pub(super) fn told(&self) -> [(impl AsRef<OsStr> + use<>, String); 4] {
        [
            (DEATHS, self.deaths.to_string()),
            (REPLACED, self.replaced.to_string()),
            (CAUSE, self.cause.clone()),
            (DIED, self.died.as_nanos().to_string()),
        ]
    }

    /// What has died in vain does not count any more.
    pub(super) fn begin_anew(&mut self) {
        self.in_vain.clear();
    }

    fn died(&mut self, end: &End, signal: i32, now: Duration) -> Verdict {
        self.deaths += 1;
        self.cause = format!("ended by signal {signal}");
        self.died = now;
        // A fault of the program may be in a request that each daemon gets again, beside others that it answers.
        let is_fault = FAULTS.contains(&signal);
        if end.answered && !is_fault {
            self.in_vain.clear();
            return Verdict::Again;
        }
        self.in_vain.push_back(now);
        if end.was_ready {
            self.in_vain.retain(|then| now - *then < WITHIN);
        }
        if self.in_vain.len() < ENOUGH {
            Verdict::Again
        } else {
            Verdict::GiveUp(signal)
        }
    }

    fn was_hindered(&mut self, now: Duration) -> Verdict {
        let since = *self.hindered.get_or_insert(now);
        match now - since < HINDERED_MAX {
            true => Verdict::Later,
            false => Verdict::Failed(MOUNT_FAILED),
        }
    }
}

impl Supervisor {
    /// What comes after a daemon. One that ended by itself has had its reasons, and has said them.
    pub(super) fn judge(&mut self, end: &End, now: Duration) -> Verdict {
        if end.was_ready {
            self.past.hindered = None;
        }
        if self.mounted
            && let Some(why) = self.why_not(end)
        {
            self.go_back(why);
        }
        // It is no death of a daemon that had served.
        if self.was_given_up() {
            return Verdict::Again;
        }
        if end.handed_over {
            // It has served, so those before it were not the last ones in a row.
            if end.answered {
                self.past.begin_anew();
            }
            self.past.replaced += 1;
            self.past.cause = ON_REQUEST.into();
            self.past.died = now;
            self.take_new_program();
            return Verdict::Again;
        }
        match end.status.code() {
            Some(0) => return Verdict::Over,
            Some(code) if code == i32::from(NOT_NOW) && self.mounted => {
                self.tell_of_no_return();
                return self.past.was_hindered(now);
            }
            Some(code) => return Verdict::Failed(u8::try_from(code).unwrap_or(MOUNT_FAILED)),
            None => {}
        }
        let signal = end.status.signal().unwrap_or_default();
        if !self.mounted {
            return Verdict::NeverMounted(signal);
        }
        // The next one would not know what has failed, and serve what is not there.
        if self.failed {
            return Verdict::Failed(MOUNT_FAILED);
        }
        let verdict = self.past.died(end, signal, now);
        match self.take_new_program() {
            true => Verdict::Again,
            false => verdict,
        }
    }
}
