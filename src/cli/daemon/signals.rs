//! Signals to the daemon, and the end that two of them ask for.

use crate::cli::{confine, log};
use crate::mount::superblock::Superblock;
use crate::mount::{Mount, UnmountMode, utab};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

use super::Event;
use crate::cli::handover::{self, Holder};

/// How long users of the tree may delay a SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);
/// Signals that come so soon one after the other are one: a service manager signals the daemon and its supervisor,
/// which passes it on.
const TOGETHER: Duration = Duration::from_secs(1);
/// Signals that ask for the end.
const SIGNALS: [i32; 2] = [SIGTERM, SIGINT];
const RETRY: Duration = Duration::from_millis(50);

/// From now on the signals come that ask for the end.
pub(super) fn expect_end(signals: &Signals) -> Result<(), String> {
    (SIGNALS.iter()).try_for_each(|signal| signals.add_signal(*signal).map_err(|e| e.to_string()))
}

/// SIGHUP opens the log anew. The first SIGTERM or SIGINT unmounts as soon as the tree is not in use; after
/// [`PATIENCE`], or at the second such signal, the tree is taken away from its users. With a `holder`, SIGUSR2 leaves
/// the mount to another daemon. `source`: what the mount table shows as that of the mount. What is returned is locked while
/// this unmounts.
pub(super) fn watch(
    mut signals: Signals,
    source: PathBuf,
    mounted: Receiver<Mount>,
    (events, holder): (Sender<Event>, Option<Holder>),
) -> io::Result<Arc<Mutex<()>>> {
    if holder.is_some() {
        signals.add_signal(SIGUSR2)?;
    }
    let leaving = Arc::new(Mutex::new(()));
    let unmounting = Arc::clone(&leaving);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            confine::to_unmount();
            let hand_over = |signal: &i32| {
                if *signal == SIGUSR2 {
                    // The receiver only goes away when the process ends.
                    let _ = events.send(Event::HandOver);
                }
            };
            let mut all = signals.forever().inspect(hand_over);
            let Some(signal) = all.find(asks_for_end) else {
                return;
            };
            drop(all);
            if let Some(holder) = &holder {
                holder.tell(&format!("{}\n{}", handover::STOPPING, handover::ENDING));
            }
            let Ok(mount) = mounted.recv() else {
                return;
            };
            info!(
                "signal {signal}: unmounting {}",
                quayfs_shown::path(mount.target())
            );
            let asked = Instant::now();
            let mut enough = || {
                let again = signals.pending().filter(asks_for_end).count() > 0;
                asked.elapsed() > PATIENCE || again && asked.elapsed() > TOGETHER
            };
            // Taken while it is mounted: afterwards the number may be that of another one.
            let superblock = mount.superblock();
            let alone = unmounting.lock();
            let is_over = unmount(&mount, superblock.as_ref(), &mut enough);
            // Only root may, and a line without a mount means nothing.
            let _ = utab::remove(&source, mount.target());
            drop(alone);
            if !is_over {
                thread::sleep(Duration::from_secs(1));
                let _ = events.send(Event::GiveUp);
            }
        })?;
    Ok(leaving)
}

/// Unmounts, and waits until the file system is no longer in use, here or in other places. Waits no longer than until
/// it is `enough`: then the users are cut off. Returns whether the kernel is done with it.
fn unmount(
    mount: &Mount,
    superblock: Option<&Superblock>,
    enough: &mut dyn FnMut() -> bool,
) -> bool {
    let mut detached = false;
    loop {
        let lives = superblock.is_some_and(Superblock::lives);
        if superblock.is_some() && !lives {
            // It has ended, by this or by others: what is mounted there now may have its number, and is none of this daemon's.
            return true;
        }
        let end = enough();
        if !detached {
            match mount.detach(UnmountMode::Normal) {
                Ok(()) => detached = true,
                Err(e) if end => {
                    warn!("{e}; taking it away from its users");
                    if let Err(e) = mount.detach(UnmountMode::Force) {
                        warn!("{e}");
                    }
                }
                Err(_) => {}
            }
        }
        let lives = superblock.is_some_and(Superblock::lives);
        if detached && !lives {
            return true;
        }
        if end {
            break;
        }
        thread::sleep(RETRY);
    }
    if let Some(superblock) = superblock.filter(|s| s.lives()) {
        warn!("the file system is mounted elsewhere too, or still used: its users are cut off");
        if let Err(e) = superblock.abort() {
            warn!("they cannot be cut off: {e}");
        }
    }
    false
}

/// Obeys a signal that asks for less than the end; whether it asks for that.
fn asks_for_end(signal: &i32) -> bool {
    match *signal {
        SIGUSR2 => false,
        SIGHUP => {
            log::reopen();
            info!("signal {signal}: the log is opened anew");
            false
        }
        _ => true,
    }
}
