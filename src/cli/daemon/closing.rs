//! Closing the volume takes as long as what is staged takes to the data device: meanwhile all who want to know hear how
//! far that is, the log, the service manager, and processes that come to the desk.

use quayfs_fs::{Fs, uuid_text};
use quayfs_options::format_size;
use quayfs_shown::progress::Meter;
use quayfs_store::error::Result;

use crate::cli::handover::{self, Holder};
use crate::cli::units::left_text;
use crate::mount::server::{Callers, Desk, Left};
use quayfs_layout::BLOCK;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How often to look how far it is.
const LOOK: Duration = Duration::from_millis(250);
/// How often the log has a line.
const LOG: Duration = Duration::from_secs(10);
/// How often the service manager is told, and how long it is to wait from then on at least.
const TELL: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(60);
/// What has moved nothing for so long gets no more time of it; a flush of a slow disk may take a minute.
const STUCK: Duration = Duration::from_secs(120);

/// What becomes of a volume.
pub(super) struct Closed {
    /// Whether what was staged has been left in the region, or why the volume is not closed.
    pub(super) left_staged: Result<bool>,
    /// Those who want to know.
    pub(super) callers: Callers,
}

/// Closes the volume. Those who have come to the desk while it was mounted, and may decide that what is staged stays so,
/// are `callers`.
pub(super) fn close(fs: &Arc<Fs>, mut callers: Callers, manager: Option<&Holder>) -> Closed {
    let leave = callers.want_no_drain() && fs.leaves_staged();
    let bytes = fs.e.left_to_drain() * BLOCK as u64;
    match (leave, bytes) {
        (_, 0) => {}
        (true, _) => info!("closing the volume; {} stay staged", format_size(bytes)),
        (false, _) => info!("closing the volume: {} to drain", format_size(bytes)),
    }
    let callers = Arc::new(Mutex::new(callers));
    let teller = Teller {
        volume: fs.volume_path().to_path_buf(),
        left: {
            let fs = Arc::clone(fs);
            Box::new(move || fs.e.left_to_drain() * BLOCK as u64)
        },
        desk: Desk::closing(&uuid_text(fs.e.config.uuid))
            .inspect_err(|e| warn!("`quayfs status` does not see the volume being closed: {e}"))
            .ok(),
        callers: Arc::clone(&callers),
        manager: manager.cloned(),
        purpose: Purpose::Closing,
        pace: Pace::default(),
    };
    let left_staged = teller.beside(|| match leave {
        true => fs.shutdown_leaving_staged(),
        false => fs.shutdown().map(|()| false),
    });
    let callers = std::mem::take(&mut *lock(&callers));
    Closed {
        left_staged,
        callers,
    }
}

/// Does something to the volume at this path that its mount waits for, and tells how far that is, as the meter says. `uuid`:
/// of the volume, if it is known.
pub(super) fn telling<T>(
    meter: &Arc<Meter>,
    (volume, uuid, manager): (&Path, Option<&str>, &Holder),
    work: impl FnOnce() -> T,
) -> T {
    let meter = Arc::clone(meter);
    let left = move || meter.look().and_then(|look| look.left()).unwrap_or(0);
    let teller = Teller {
        volume: volume.to_path_buf(),
        left: Box::new(left),
        desk: uuid.and_then(|uuid| Desk::resizing(uuid).ok()),
        callers: Arc::default(),
        manager: Some(manager.clone()),
        purpose: Purpose::Resizing,
        pace: Pace::default(),
    };
    teller.beside(work)
}

/// What takes its time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The mount has ended.
    Closing,
    /// The mount goes on.
    Resizing,
}

fn lock(callers: &Mutex<Callers>) -> MutexGuard<'_, Callers> {
    // No list of them is half done.
    callers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How fast it goes.
#[derive(Default)]
struct Pace {
    /// What there was to do at first, and when.
    first: Option<(u64, Instant)>,
    /// What is left, and since when.
    last: Option<(u64, Instant)>,
}

impl Pace {
    fn look(&mut self, bytes: u64, now: Instant) -> Left {
        let (all, began) = *self.first.get_or_insert((bytes, now));
        if self.last.is_none_or(|(last, _)| last != bytes) {
            self.last = Some((bytes, now));
        }
        let seconds = (now - began).as_secs_f64().max(1e-3);
        let rate = all.saturating_sub(bytes) as f64 / seconds;
        Left {
            bytes,
            rate: rate as u64,
        }
    }

    fn is_stuck(&self, now: Instant) -> bool {
        self.last.is_some_and(|(_, since)| now - since >= STUCK)
    }
}

struct Teller {
    volume: PathBuf,
    left: Box<dyn Fn() -> u64 + Send>,
    desk: Option<Desk>,
    callers: Arc<Mutex<Callers>>,
    manager: Option<Holder>,
    purpose: Purpose,
    pace: Pace,
}

impl Teller {
    /// Tells while something is done.
    fn beside<T>(self, work: impl FnOnce() -> T) -> T {
        let (done, ended) = channel();
        let thread = thread::Builder::new()
            .name("closing".into())
            .spawn(move || self.work(&ended));
        let result = work();
        drop(done);
        match thread.map(thread::JoinHandle::join) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => warn!("the thread that tells how far it is panicked"),
            Err(e) => warn!("no thread tells how far it is: {e}"),
        }
        result
    }

    fn doing(&self) -> &'static str {
        match self.purpose {
            Purpose::Closing => "draining",
            Purpose::Resizing => "resizing",
        }
    }

    /// Tells until `ended`. A service manager is told at once, even where there is little to do: the time that it grants
    /// may be over.
    fn work(mut self, ended: &Receiver<()>) {
        let (mut logged, mut said) = (Instant::now(), None);
        let mut told: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let left = self.pace.look((self.left)(), now);
            {
                let mut callers = lock(&self.callers);
                if let Some(desk) = &self.desk {
                    desk.admit(&mut callers);
                }
                callers.tell_left(&self.volume, left);
            }
            if now - logged >= LOG && said != Some(left.bytes) {
                (logged, said) = (now, Some(left.bytes));
                info!("{}: {}", self.doing(), left_text(left));
            }
            if told.is_none_or(|then| now - then >= TELL) && !self.pace.is_stuck(now) {
                told = Some(now);
                self.tell_manager(left);
            }
            if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        // Those who have come meanwhile want to know how it ended, too.
        if let Some(desk) = self.desk {
            desk.admit(&mut lock(&self.callers));
        }
    }

    fn tell_manager(&self, left: Left) {
        if let Some(manager) = &self.manager {
            let (more, wait) = (handover::MORE_TIME, WAIT.as_micros());
            let said = match (left.bytes, self.purpose) {
                (0, Purpose::Closing) => "closing the volume".into(),
                _ => format!("{}: {}", self.doing(), left_text(left)),
            };
            let text = format!("{more}{wait}\nSTATUS={said}");
            manager.tell(&match self.purpose {
                Purpose::Closing => format!("{}\n{text}", handover::STOPPING),
                Purpose::Resizing => text,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::server::{PROGRESS, Server, VOLUME};

    #[test]
    fn the_rate_is_what_was_done_since_the_first_look() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(
            pace.look(100, at(0)),
            Left {
                bytes: 100,
                rate: 0
            }
        );
        assert_eq!(
            pace.look(60, at(4)),
            Left {
                bytes: 60,
                rate: 10
            }
        );
        assert_eq!(pace.look(0, at(10)), Left { bytes: 0, rate: 10 });
    }

    #[test]
    fn processes_that_come_hear_which_volume_it_is_and_how_far() {
        let uuid = format!("teller-{}", std::process::id());
        let (done, ended) = channel();
        let teller = Teller {
            volume: "/srv/vol".into(),
            purpose: Purpose::Closing,
            left: Box::new(|| 4096),
            desk: Some(Desk::closing(&uuid).unwrap()),
            callers: Arc::default(),
            manager: None,
            pace: Pace::default(),
        };
        let mut found = Server::all_closing();
        found.retain(|closer| closer.uuid == uuid);
        let server = &found[0].server;
        assert!(server.ask_for(VOLUME) && server.ask_for(PROGRESS));
        thread::scope(|scope| {
            scope.spawn(move || teller.work(&ended));
            while server.left().is_none() {
                assert!(server.speaks_within(Duration::from_secs(600)).unwrap());
            }
            drop(done);
        });
        assert_eq!(server.volume().unwrap(), PathBuf::from("/srv/vol"));
        assert_eq!(server.left().unwrap().bytes, 4096);
    }

    #[test]
    fn what_moves_nothing_is_stuck() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        assert!(!pace.is_stuck(began));
        pace.look(100, began);
        assert!(!pace.is_stuck(began + STUCK / 2));
        assert!(pace.is_stuck(began + STUCK));
        pace.look(99, began + STUCK);
        assert!(!pace.is_stuck(began + STUCK));
    }
}
