//! For how long a device has not answered.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tracing::warn;

/// What is silent for so long is worth a line of the log when it answers again. A flush of a slow disk takes a while.
const LONG: Duration = Duration::from_secs(30);

/// Requests under way, and when one of them was answered last. A device on a network may answer none for minutes, and
/// then all of them: nothing fails meanwhile, so nothing else tells.
#[derive(Debug)]
pub struct Silence {
    began: Instant,
    under_way: AtomicUsize,
    /// When a request was answered last, or the first one began, in milliseconds since `began`.
    last: AtomicU64,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            under_way: AtomicUsize::new(0),
            last: AtomicU64::new(0),
        }
    }
}

impl Silence {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Carries out a request of the device, which `name` is to be called by in the log.
    pub fn during<T>(&self, name: impl FnOnce() -> String, request: impl FnOnce() -> T) -> T {
        if self.under_way.load(Ordering::Relaxed) == 0 {
            self.last.fetch_max(self.now(), Ordering::Relaxed);
        }
        // Released after `last`: a request that is seen to be under way has a beginning.
        self.under_way.fetch_add(1, Ordering::Release);
        let answered = Answered(self);
        let result = request();
        let before = answered.note();
        if before >= LONG {
            warn!(
                "{} had not answered for {before:.0?}: it does again",
                name()
            );
        }
        result
    }

    /// For how long no request has been answered, though some are under way; zero if none is.
    pub fn length(&self) -> Duration {
        if self.under_way.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now().saturating_sub(self.last.load(Ordering::Relaxed)))
    }
}

/// Ends a request, also one that panics.
struct Answered<'a>(&'a Silence);

impl Answered<'_> {
    /// For how long there had been no answer.
    fn note(&self) -> Duration {
        let now = self.0.now();
        let before = self.0.last.fetch_max(now, Ordering::Relaxed);
        Duration::from_millis(now.saturating_sub(before))
    }
}

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn it_is_silent_while_requests_wait_and_none_is_answered() {
        let silence = Silence::default();
        let tick = || thread::sleep(Duration::from_millis(2));
        let name = String::new;
        tick();
        assert_eq!(silence.length(), Duration::ZERO, "nothing was asked");
        silence.during(name, || {
            assert!(
                silence.length() < silence.began.elapsed(),
                "from before it was asked"
            );
            tick();
            let long = silence.length();
            assert!(long >= Duration::from_millis(1));
            // Another answer is one.
            let at = silence.now();
            silence.during(name, || assert!(silence.length() >= long));
            assert!(silence.last.load(Ordering::Relaxed) >= at);
        });
        tick();
        assert_eq!(silence.length(), Duration::ZERO, "all is answered");
    }
}
