//! The same complaint again and again: one line of it, then how many more there were.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;

/// How long a complaint is not repeated.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Different lines of one place in the program in that time: a program that reads a damaged file to its end is
/// told of each block, the log of some.
pub(super) const BURST: usize = 20;

/// What one place in the program has to say.
#[derive(Debug)]
struct Place {
    since: Instant,
    /// Hashes of the lines that were written since then.
    said: Vec<u64>,
    left_out: u64,
    /// The last that was left out.
    last: String,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is written.
    Write,
    /// It is counted; as the first since the last count.
    Count { first: bool },
}

/// Decides which lines are written.
#[derive(Debug, Default)]
pub(super) struct Limit {
    hash: RandomState,
    places: HashMap<Identifier, Place>,
}

impl Limit {
    /// Whether a line is written, or counted.
    pub(super) fn admits(&mut self, place: Identifier, line: &str, now: Instant) -> Verdict {
        let place = self.places.entry(place).or_insert_with(|| Place {
            since: now,
            said: Vec::new(),
            left_out: 0,
            last: String::new(),
        });
        if place.left_out == 0 && now.duration_since(place.since) >= WINDOW {
            place.said.clear();
        }
        if place.said.is_empty() {
            place.since = now;
        }
        let hash = self.hash.hash_one(line);
        if place.said.len() < BURST && !place.said.contains(&hash) {
            place.said.push(hash);
            return Verdict::Write;
        }
        place.left_out += 1;
        line.clone_into(&mut place.last);
        Verdict::Count {
            first: place.left_out == 1,
        }
    }

    /// When the next count is due, if lines were left out.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.places.values().filter(|p| p.left_out > 0);
        waiting.map(|p| p.since + WINDOW).min()
    }

    /// The counts that are due at a time, in words; all with `None`. Their complaints may be made again.
    pub(super) fn take(&mut self, by: Option<Instant>) -> Vec<String> {
        let is_due = |p: &Place| by.is_none_or(|now| p.since + WINDOW <= now);
        let due = (self.places.values_mut()).filter(|p| p.left_out > 0 && is_due(p));
        due.map(|p| {
            p.said.clear();
            let n = std::mem::take(&mut p.left_out);
            format!("{n} more lines like this were left out: {}", p.last)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::callsite::Callsite;

    struct Site;

    impl Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &tracing::Metadata<'_> {
            unreachable!("nobody asks a test")
        }
    }

    static HERE: [Site; 1] = [Site];

    fn here() -> Identifier {
        Identifier(&HERE[0])
    }

    #[test]
    fn a_complaint_is_made_once_and_counted() {
        let mut limit = Limit::default();
        let begun = Instant::now();
        let says = |limit: &mut Limit, line, at| limit.admits(here(), line, at);
        let (write, again) = (Verdict::Write, Verdict::Count { first: false });
        assert_eq!(says(&mut limit, "bad", begun), write);
        assert_eq!(limit.due(), None);
        for n in 0..1000 {
            let counted = Verdict::Count { first: n == 0 };
            assert_eq!(says(&mut limit, "bad", begun + WINDOW / 2), counted);
        }
        assert_eq!(says(&mut limit, "another", begun + WINDOW / 2), write);
        assert_eq!(limit.due(), Some(begun + WINDOW));
        assert!(limit.take(Some(begun + WINDOW / 2)).is_empty());
        // Late, before the count was fetched, it is counted all the same.
        assert_eq!(says(&mut limit, "bad", begun + WINDOW * 2), again);
        let said = limit.take(Some(begun + WINDOW));
        assert_eq!(said, ["1001 more lines like this were left out: bad"]);
        assert_eq!(limit.due(), None);
        assert!(limit.take(None).is_empty());
        assert_eq!(says(&mut limit, "bad", begun + WINDOW * 2), write);
        assert_eq!(says(&mut limit, "bad", begun + WINDOW * 3), write);
    }

    #[test]
    fn a_place_says_so_much_at_a_time() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let said =
            (0..1000).filter(|n| limit.admits(here(), &n.to_string(), now) == Verdict::Write);
        assert_eq!(said.count(), BURST);
        let counted = format!("{} more lines like this were left out: 999", 1000 - BURST);
        assert_eq!(limit.take(None), [counted]);
    }
}
