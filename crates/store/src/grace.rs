//! Grace periods: waiting until no reader can still be looking at what was unpublished.

use std::sync::Arc;
use std::time::Duration;

use quayfs_sync::atomic::{AtomicBool, Ordering};
use quayfs_sync::{epoch, thread};

/// Returns when every thread that was pinned at the time of the call has unpinned. The caller
/// must not be pinned itself.
pub fn wait() {
    Grace::begin().wait();
}

/// A grace period that has begun. It passes while something else is done, if it is looked after from time to
/// time.
#[must_use = "nothing is known until its end has been waited for"]
pub struct Grace {
    over: Arc<AtomicBool>,
}

impl Grace {
    /// Begins one: it ends when every thread that is pinned now has unpinned.
    pub fn begin() -> Self {
        let none = quayfs_sync::planted("no grace");
        let over = Arc::new(AtomicBool::new(none));
        if !none {
            let flag = Arc::clone(&over);
            let pin = epoch::pin();
            pin.defer(move || flag.store(true, Ordering::Release));
            pin.flush();
        }
        Self { over }
    }

    /// Brings its end nearer, if readers have gone, and does not wait for any. The caller must not be pinned.
    pub fn look_after(&self) {
        if !self.over.load(Ordering::Acquire) {
            epoch::pin().flush();
        }
    }

    /// Waits for its end. The caller must not be pinned.
    pub fn wait(self) {
        let mut tries = 0u32;
        while !self.over.load(Ordering::Acquire) {
            epoch::pin().flush();
            tries += 1;
            // Readers hold their pin for one request; most rounds need no sleep at all.
            if tries > 16 {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn waits_for_a_pinned_reader() {
        let (pinned, is_pinned) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let seen = Arc::new(AtomicBool::new(false));
        let reader_done = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let pin = epoch::pin();
            pinned.send(()).ok();
            released.recv().ok();
            reader_done.store(true, Ordering::SeqCst);
            drop(pin);
        });
        is_pinned.recv().ok();
        let waiter = std::thread::spawn(move || {
            wait();
            seen.load(Ordering::SeqCst)
        });
        release.send(()).ok();
        assert!(waiter.join().is_ok_and(|after_reader| after_reader));
        assert!(reader.join().is_ok());
    }
}
