//! A thread that is watched until it waits.

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::thread::{Pid, gettid};

/// A thread of this process that others wait for to wait: for a lock, or for something to happen. What it would
/// do if it did not wait, it has done by then.
#[derive(Debug, Default)]
pub struct Watched(OnceLock<Pid>);

impl Watched {
    /// The calling thread is about to do what it may have to wait in.
    ///
    /// # Panics
    /// If another one has been here.
    pub fn begin(&self) {
        self.0.set(gettid()).expect("one thread is watched");
    }

    /// Waits until the thread sleeps, or `over` says that it need not be waited for any more; whether it sleeps.
    pub fn until_asleep(&self, over: impl Fn() -> bool) -> bool {
        while !over() {
            if self.0.get().is_some_and(|tid| sleeps(*tid)) {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// Whether a thread of this process sleeps in the kernel and is not merely without a CPU (proc_pid_stat(5)).
fn sleeps(tid: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", tid.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    // The name is in parentheses and may have some of its own.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state == Some('S')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn who_waits_sleeps_and_who_works_does_not() {
        let (watched, (wake, woken)) = (Watched::default(), channel::<()>());
        let (working, stop) = (Watched::default(), AtomicBool::new(false));
        thread::scope(|s| {
            let sleeper = &watched;
            let waits = s.spawn(move || {
                sleeper.begin();
                woken.recv()
            });
            assert!(watched.until_asleep(|| false));
            wake.send(()).expect("it waits");
            waits.join().expect("no panic").expect("a message");
            // Whether or not it has a CPU.
            let works = s.spawn(|| {
                working.begin();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let looks = std::cell::Cell::new(0);
            assert!(!working.until_asleep(|| looks.replace(looks.get() + 1) == 100));
            stop.store(true, Ordering::Relaxed);
            works.join().expect("no panic");
        });
    }
}
