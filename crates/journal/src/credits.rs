//! Credits of one staging buffer: slots, log lines and record count in one word, so that a need is
//! met entirely or not at all by one compare-and-swap (ordering 6).

use quayfs_layout::Guard;

use crate::sync::{AtomicU64, Ordering, Site, ord};

const SLOT_BITS: u32 = 24;
const LINE_BITS: u32 = 24;
const RECORD_SHIFT: u32 = SLOT_BITS + LINE_BITS;

/// Most slots of one buffer.
pub(crate) const MAX_SLOTS: u64 = (1 << SLOT_BITS) - 1;
/// Most 64-byte lines of log in one lane.
pub(crate) const MAX_LINES: u64 = (1 << LINE_BITS) - 1;
/// Most records in one lane.
pub(crate) const MAX_RECORDS: u64 = u16::MAX as u64;

/// An amount of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) slots: u64,
    pub(crate) lines: u64,
    pub(crate) records: u64,
}

impl Amount {
    pub(crate) fn pack(self) -> u64 {
        debug_assert!(self.slots <= MAX_SLOTS && self.lines <= MAX_LINES);
        debug_assert!(self.records <= MAX_RECORDS);
        self.slots | self.lines << SLOT_BITS | self.records << RECORD_SHIFT
    }

    pub(crate) fn unpack(word: u64) -> Self {
        Self {
            slots: word & MAX_SLOTS,
            lines: word >> SLOT_BITS & MAX_LINES,
            records: word >> RECORD_SHIFT,
        }
    }

    /// Whether `self` is enough for `need`.
    pub(crate) fn covers(self, need: Self) -> bool {
        need.slots <= self.slots && need.lines <= self.lines && need.records <= self.records
    }

    /// Both together.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            slots: self.slots + other.slots,
            lines: self.lines + other.lines,
            records: self.records + other.records,
        }
    }
}

/// What one buffer has left to give.
pub(crate) struct Credits {
    word: AtomicU64,
    /// Failed exchanges. A caller whose first exchange succeeds neither reads nor changes this.
    retries: std::sync::atomic::AtomicU64,
}

impl Credits {
    pub(crate) fn new(amount: Amount) -> Self {
        Self {
            word: AtomicU64::new(amount.pack()),
            retries: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Takes all of `need` if that leaves `rest`, or tells what there is.
    pub(crate) fn try_take(&self, need: Amount, rest: Amount) -> Result<(), Amount> {
        if !Guard::Credits.stands() {
            return Ok(());
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let have = Amount::unpack(word);
            if !have.covers(need.with(rest)) {
                return Err(have);
            }
            // Acquire pairs with the Release in `give`: what the previous owner did with a slot (and
            // its readers, through the grace period) happened before this one uses it.
            let order = ord(Site::CreditTake, Ordering::Acquire);
            match self.word.compare_exchange_weak(
                word,
                word - need.pack(),
                order,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    word = now;
                }
            }
        }
    }

    /// Returns credits. The sum of what is out and what is here never exceeds the initial amount, so
    /// no field can overflow into its neighbour.
    pub(crate) fn give(&self, amount: Amount) {
        if !Guard::Credits.stands() {
            return;
        }
        self.word
            .fetch_add(amount.pack(), ord(Site::CreditGive, Ordering::Release));
    }

    /// How often [`Credits::try_take`] had to look again.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// What is left at the moment.
    pub(crate) fn left(&self) -> Amount {
        Amount::unpack(self.word.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amount() -> impl Strategy<Value = Amount> {
        (0..=MAX_SLOTS / 8, 0..=MAX_LINES / 8, 0..=MAX_RECORDS / 8).prop_map(
            |(slots, lines, records)| Amount {
                slots,
                lines,
                records,
            },
        )
    }

    #[test]
    fn the_extremes_fit() {
        let all = Amount {
            slots: MAX_SLOTS,
            lines: MAX_LINES,
            records: MAX_RECORDS,
        };
        let c = Credits::new(all);
        assert_eq!(c.left(), all);
        assert_eq!(c.try_take(all, Amount::default()), Ok(()));
        assert_eq!(c.left(), Amount::default());
        c.give(all);
        assert_eq!(c.left(), all);
    }

    #[test]
    fn what_is_to_be_left_is_left() {
        let slots = |slots| Amount {
            slots,
            lines: 5,
            records: 5,
        };
        let c = Credits::new(slots(3));
        let one = Amount {
            slots: 1,
            ..Amount::default()
        };
        assert_eq!(c.try_take(one, slots(3)), Err(slots(3)));
        assert_eq!(c.try_take(one, slots(2)), Ok(()));
        assert_eq!(c.left(), slots(2));
    }

    proptest! {
        #[test]
        fn all_or_nothing(start in amount(), needs in prop::collection::vec(amount(), 1..20)) {
            let c = Credits::new(start);
            let mut model = start;
            let mut out = Vec::new();
            for need in needs {
                let fits = model.covers(need);
                match c.try_take(need, Amount::default()) {
                    Ok(()) => {
                        prop_assert!(fits);
                        model.slots -= need.slots;
                        model.lines -= need.lines;
                        model.records -= need.records;
                        out.push(need);
                    }
                    Err(have) => {
                        prop_assert!(!fits);
                        prop_assert_eq!(have, model);
                    }
                }
                prop_assert_eq!(c.left(), model);
            }
            for o in out {
                c.give(o);
            }
            prop_assert_eq!(c.left(), start);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "credits_loom.rs"]
mod loom_tests;
