//! Choosing which images to make.

use crate::budget::Budget;
use crate::event::Medium;
use crate::pages::mix;
use crate::state::Granule;
use std::fmt;

/// Which part of what is in flight a crash leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// One of all possible ways, by number.
    Way(u64),
    /// The events of this sorted list, as far as the order in granules allows.
    Events(Vec<usize>),
    Nothing,
    Everything,
    /// Everything of this medium and nothing of the other.
    Medium(Medium),
    Only(usize),
    AllBut(usize),
    UpTo(usize),
    /// Some part of one granule, and all or nothing of the others.
    Torn {
        medium: Medium,
        index: u64,
        seed: u64,
        others: bool,
    },
    Random(u64),
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Way(number) => write!(f, "way {number} of all"),
            Self::Events(kept) => write!(f, "events {kept:?} of those in flight"),
            Self::Nothing => f.write_str("nothing in flight"),
            Self::Everything => f.write_str("everything in flight"),
            Self::Medium(medium) => write!(f, "everything in flight to {medium} only"),
            Self::Only(event) => write!(f, "only event {event} of those in flight"),
            Self::AllBut(event) => write!(f, "all in flight but event {event}"),
            Self::UpTo(event) => write!(f, "all in flight up to event {event}"),
            Self::Torn {
                medium,
                index,
                seed,
                others,
            } => {
                let rest = if *others { "all" } else { "none" };
                write!(
                    f,
                    "granule {index} of {medium} torn ({seed:#x}), {rest} of the others"
                )
            }
            Self::Random(seed) => write!(f, "at random ({seed:#x})"),
        }
    }
}

/// The selections to make of these granules.
pub(crate) fn selections(
    granules: &[Granule],
    budget: &Budget,
    point: usize,
) -> Box<dyn Iterator<Item = Selection>> {
    let ways = granules
        .iter()
        .try_fold(1_u64, |n, granule| n.checked_mul(granule.ways()?));
    if let Some(ways) = ways.filter(|ways| *ways <= budget.exhaustive.max(1)) {
        return Box::new((0..ways).map(Selection::Way));
    }
    let mut events: Vec<usize> = granules.iter().flat_map(Granule::events).collect();
    events.sort_unstable();
    events.dedup();
    let seed = mix(budget.seed ^ mix(point as u64));
    let torn = spread(granules.len(), budget.picks)
        .into_iter()
        .flat_map(|i| {
            let (medium, index) = (granules[i].medium, granules[i].index);
            [false, true].map(|others| Selection::Torn {
                medium,
                index,
                seed: mix(seed ^ (2 * i as u64 + u64::from(others))),
                others,
            })
        });
    let torn: Vec<Selection> = torn.collect();
    let random =
        (0..budget.random as u64).map(move |i| Selection::Random(mix(seed.wrapping_add(i))));
    Box::new(whole(events, budget).chain(torn).chain(random))
}

/// Selections in which each store has arrived or not.
fn whole(events: Vec<usize>, budget: &Budget) -> Box<dyn Iterator<Item = Selection>> {
    let subsets = u32::try_from(events.len())
        .ok()
        .and_then(|n| 1_u64.checked_shl(n));
    if let Some(subsets) = subsets.filter(|subsets| *subsets <= budget.exhaustive) {
        return Box::new((0..subsets).map(move |subset| {
            let kept = events
                .iter()
                .enumerate()
                .filter(|(i, _)| subset >> i & 1 == 1);
            Selection::Events(kept.map(|(_, event)| *event).collect())
        }));
    }
    let always = [
        Selection::Nothing,
        Selection::Everything,
        Selection::Medium(Medium::Pmem),
        Selection::Medium(Medium::Device),
    ];
    let picked = spread(events.len(), budget.picks)
        .into_iter()
        .flat_map(move |i| {
            let event = events[i];
            [
                Selection::Only(event),
                Selection::AllBut(event),
                Selection::UpTo(event),
            ]
        });
    Box::new(always.into_iter().chain(picked))
}

/// At most `picks` of the numbers below `count`, evenly spread, the first and the last among them.
fn spread(count: usize, picks: usize) -> Vec<usize> {
    if count <= picks {
        return (0..count).collect();
    }
    match picks {
        0 => Vec::new(),
        1 => vec![count - 1],
        _ => (0..picks).map(|i| i * (count - 1) / (picks - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_spread_from_first_to_last() {
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(101, 5), [0, 25, 50, 75, 100]);
        assert_eq!(spread(7, 1), [6]);
        assert!(spread(7, 0).is_empty() && spread(0, 3).is_empty());
    }

    #[test]
    fn few_events_are_selected_in_all_subsets() {
        let budget = Budget {
            exhaustive: 8,
            picks: 1,
            random: 0,
            seed: 0,
        };
        let subsets: Vec<Selection> = whole(vec![3, 5, 9], &budget).collect();
        assert_eq!(subsets.len(), 8);
        assert_eq!(subsets[5], Selection::Events(vec![3, 9]));
        assert!(whole(vec![1, 2, 3, 4], &budget).any(|s| s == Selection::AllBut(4)));
    }
}
