//! How background writes keep out of the way of commits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Says how much of what can wait is handed to a disk at once.
///
/// A flush waits for all that its disk was given before. A megabyte on its way makes a commit several times as slow as
/// it is alone, so while commits flush the disk, background writes are made in short parts, one at a time. Nothing is
/// timed: a flush that has begun since the last part shows that there are commits.
#[derive(Debug, Default)]
pub struct WriteThrottle {
    /// Flushes that had begun when the last part was written.
    flushes: AtomicU64,
    /// Parts that are still short although no flush has begun since.
    short: AtomicU64,
}

impl WriteThrottle {
    /// The most bytes in a part that is short, and the most writes.
    pub const PART: (u64, usize) = (128 << 10, 32);
    /// Short parts after the last flush: a part ends sooner than a commit comes to its next flush.
    const AFTER: u64 = 8;

    /// Whether the next part is to be short, where `flushes` have begun until now ([`Region::flushes`]).
    ///
    /// [`Region::flushes`]: crate::Region::flushes
    pub fn is_short(&self, flushes: u64) -> bool {
        if self.flushes.swap(flushes, Ordering::Relaxed) != flushes {
            self.short.store(Self::AFTER, Ordering::Relaxed);
            return true;
        }
        let less = |short: u64| short.checked_sub(1);
        self.short
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_short_while_flushes_begin_and_some_time_after_the_last() {
        let throttle = WriteThrottle::default();
        assert!(!throttle.is_short(0), "none has ever begun");
        for flushes in 1..4 {
            assert!(throttle.is_short(flushes));
        }
        for _ in 0..WriteThrottle::AFTER {
            assert!(throttle.is_short(3));
        }
        assert!(!throttle.is_short(3));
        assert!(throttle.is_short(4), "there are commits again");
    }
}
