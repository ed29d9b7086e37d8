//! Damage: metadata on the media that cannot have been written there, or a block of the log that has rotted.
//!
//! Code that reads something off the media that cannot be true has a [`Fault`], a mere description. It becomes an
//! error of an operation, [`Damage`], in one way only: through the [`Watch`] of the mount, which counts it, logs it
//! and does what `errors=` says. So an operation cannot pass on damage that was not noticed. A damaged block of a
//! file is not metadata: [`FsError::Content`] is an error for its reader and has no other consequence.
//!
//! Code that looks at damage for its own sake, a scrub or a checker, has a watch of its own ([`Watch::bystander`]).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

use quayfs_options::{MountOptions, OnError};
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use serde::Serialize;

use crate::error::FsError;

/// What is wrong with something that was read, as one line. No error yet: see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(String);

impl Fault {
    /// A fault in words.
    pub fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// Damaged metadata that an operation has met, and that its mount knows of. Only a [`Watch`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(String);

/// Something that has gone wrong on a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Noted {
    /// When it was met last, in seconds since 1970.
    pub time: u64,
    /// How often in a row.
    pub count: u64,
    /// What it is, as in the log.
    pub what: String,
}

/// How many of them a mount remembers: the log has them all.
const NOTED: usize = 8;

/// What wakes threads that wait for something that will not come any more.
type Alarm = Box<dyn Fn() + Send + Sync>;

/// Whether a mount may still change anything, and what it does about damage. There is one of each mount.
pub struct Watch {
    on_error: OnError,
    /// Nothing is reported.
    silent: bool,
    read_only: AtomicBool,
    /// What has made the mount read-only, if a failure has.
    failure: OnceLock<String>,
    found: AtomicU64,
    /// The last ones. It is held for a moment only, and the scheduler of tests need not know of it.
    noted: Mutex<VecDeque<Noted>>,
    alarm: OnceLock<Alarm>,
    told: OnceLock<Alarm>,
    /// Why the volume cannot be mounted to be written to, where it is only looked at.
    obstacle: OnceLock<String>,
}

impl Watch {
    /// That of a mount with these options.
    pub fn new(options: &MountOptions) -> Self {
        Self {
            on_error: options.on_error,
            silent: false,
            read_only: AtomicBool::new(options.read_only),
            failure: OnceLock::new(),
            found: AtomicU64::new(0),
            noted: Mutex::default(),
            alarm: OnceLock::new(),
            told: OnceLock::new(),
            obstacle: OnceLock::new(),
        }
    }

    /// One that counts and has no consequence: what is found is the business of the caller.
    pub fn bystander() -> Self {
        Self {
            on_error: OnError::Continue,
            silent: true,
            read_only: AtomicBool::new(true),
            failure: OnceLock::new(),
            found: AtomicU64::new(0),
            noted: Mutex::default(),
            alarm: OnceLock::new(),
            told: OnceLock::new(),
            obstacle: OnceLock::new(),
        }
    }

    /// `alarm` is called whenever something has failed. Set once, when the mount begins.
    pub fn on_failure(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Box::new(alarm));
    }

    /// `tell` is called when a failure makes the mount read-only, once, by the thread that met it; it must not wait.
    /// Set once; what happened before is not told.
    pub fn on_read_only(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.told.set(Box::new(tell));
    }

    /// An operation has met damaged metadata: it is counted and logged, `errors=` decides what follows, and the
    /// operation fails with what is returned.
    #[must_use]
    pub fn damaged(&self, fault: impl fmt::Display) -> FsError {
        let damage = Damage(fault.to_string());
        self.found.fetch_add(1, Ordering::Relaxed);
        match self.on_error {
            _ if self.silent => {}
            OnError::RemountRo if !self.is_read_only() => {
                self.fail(&format_args!("damaged metadata: {damage}"));
            }
            OnError::RemountRo | OnError::Continue => {
                tracing::error!("damaged metadata: {damage}");
                self.note(&format_args!("damaged metadata: {damage}"));
            }
        }
        FsError::Damaged(damage)
    }

    /// A device, or a structure that everything depends on, has failed: what can be read stays readable, nothing is
    /// changed any more.
    pub fn fail(&self, cause: &dyn fmt::Display) {
        if !self.read_only.swap(true, Ordering::AcqRel) {
            // Set once, by the first thread to get here.
            let _ = self.failure.set(cause.to_string());
            tracing::error!("{cause}; the mount is read-only from here on");
            self.note(cause);
            if let Some(tell) = self.told.get() {
                tell();
            }
        }
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
    }

    /// Remembers what has gone wrong, for those who ask how the mount is. It has no other consequence.
    pub fn note(&self, what: &dyn fmt::Display) {
        let since = quayfs_sync::time::now().duration_since(UNIX_EPOCH);
        let (time, what) = (since.unwrap_or_default().as_secs(), what.to_string());
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        match noted.back_mut() {
            Some(last) if last.what == what => {
                last.time = time;
                last.count += 1;
            }
            _ => {
                if noted.len() == NOTED {
                    noted.pop_front();
                }
                let count = 1;
                noted.push_back(Noted { time, count, what });
            }
        }
    }

    /// The last things that have gone wrong, the latest one last.
    pub fn noted(&self) -> Vec<Noted> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.iter().cloned().collect()
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// What has made the mount read-only, if a failure has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Recovery has passed over damage, since nothing can be changed: why a mount that may write is refused.
    pub fn passed_over(&self, why: String) {
        let _ = self.obstacle.set(why);
    }

    /// Why a mount that may write is refused, of a volume that was recovered to be looked at.
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.get().map(String::as_str)
    }

    /// How often damage was met.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("read_only", &self.is_read_only())
            .field("found", &self.found())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64 as Count;

    #[test]
    fn damage_has_the_consequence_that_errors_says() {
        for (text, read_only) in [("errors=remount-ro", true), ("errors=continue", false)] {
            let watch = Watch::new(&MountOptions::parse(&[text]).unwrap());
            let alarms = Arc::new(Count::new(0));
            let rung = Arc::clone(&alarms);
            watch.on_failure(move || {
                rung.fetch_add(1, Ordering::Relaxed);
            });
            let err = watch.damaged(Fault::new("node 7 is odd"));
            assert!(matches!(&err, FsError::Damaged(d) if d.to_string() == "node 7 is odd"));
            assert_eq!(
                (watch.is_read_only(), watch.found()),
                (read_only, 1),
                "{text}"
            );
            assert_eq!(alarms.load(Ordering::Relaxed), u64::from(read_only));
        }
        let watch = Watch::new(&MountOptions::parse(&["errors=continue"]).unwrap());
        let _ = (watch.damaged("a"), watch.damaged("a"));
        (0..NOTED - 1).for_each(|n| watch.note(&n));
        let noted = watch.noted();
        let first = (noted[0].what.as_str(), noted[0].count);
        assert_eq!(first, ("damaged metadata: a", 2));
        watch.note(&"one more");
        assert_eq!(watch.noted().len(), NOTED);
        assert_eq!(watch.noted()[0], noted[1], "the oldest one is forgotten");
        let aside = Watch::bystander();
        let _ = aside.damaged("x");
        assert_eq!((aside.found(), aside.noted()), (1, Vec::new()));
    }
}
