//! What is in flight at one point, and how much of it a crash leaves.

use crate::event::Medium;
use crate::medium::{Content, Piece};
use crate::pages::{Writer, mix};
use crate::select::Selection;

/// A granule with something in flight.
pub(crate) struct Granule {
    pub(crate) medium: Medium,
    pub(crate) index: u64,
    pieces: Vec<Piece>,
    /// Atoms that arrive in order.
    ordered: usize,
    /// Atoms that arrive as they like.
    loose: usize,
}

/// How much of a granule has arrived.
pub(crate) struct Arrived<'a> {
    /// So many of the ordered atoms.
    pub(crate) ordered: usize,
    /// Which of the loose ones, by event and ordinal.
    pub(crate) loose: Box<dyn Fn(usize, usize) -> bool + 'a>,
}

impl Granule {
    pub(crate) fn all(content: &Content, medium: Medium) -> impl Iterator<Item = Self> {
        content.pending.iter().map(move |(index, pieces)| {
            let count = |loose| {
                let of_kind = pieces.iter().filter(|p| !p.settled && p.loose == loose);
                of_kind.map(Piece::atom_count).sum()
            };
            let (ordered, loose) = (count(false), count(true));
            Self {
                medium,
                index: *index,
                pieces: pieces.clone(),
                ordered,
                loose,
            }
        })
    }

    /// In how many ways a crash can leave it; `None` if they are too many to count.
    pub(crate) fn ways(&self) -> Option<u64> {
        let subsets = 1_u64.checked_shl(u32::try_from(self.loose).ok()?)?;
        subsets.checked_mul(self.ordered as u64 + 1)
    }

    /// The way with this number, out of [`Granule::ways`].
    pub(crate) fn way(&self, number: u64) -> Arrived<'static> {
        let ordered = self.ordered as u64 + 1;
        let subset = number / ordered;
        Arrived {
            ordered: (number % ordered) as usize,
            loose: Box::new(move |_, ordinal| subset >> ordinal & 1 == 1),
        }
    }

    /// The events that have something unsettled here.
    pub(crate) fn events(&self) -> impl Iterator<Item = usize> {
        self.pieces
            .iter()
            .filter(|piece| !piece.settled)
            .map(|piece| piece.event)
    }

    /// As much as the order allows of exactly the events that `keep` says.
    pub(crate) fn keeping<'a>(&self, keep: impl Fn(usize) -> bool + 'a) -> Arrived<'a> {
        let kept = self.ordered_pieces().take_while(|piece| keep(piece.event));
        let ordered = kept.map(Piece::atom_count).sum();
        Arrived {
            ordered,
            loose: Box::new(move |event, _| keep(event)),
        }
    }

    /// All of one event, and nothing that need not come with it.
    pub(crate) fn with_only(&self, event: usize) -> Arrived<'static> {
        let last = self.ordered_pieces().filter(|piece| piece.event <= event);
        let present = self.ordered_pieces().any(|piece| piece.event == event);
        let ordered = if present {
            last.map(Piece::atom_count).sum()
        } else {
            0
        };
        Arrived {
            ordered,
            loose: Box::new(move |other, _| other == event),
        }
    }

    /// Some part of it, chosen by `seed`: often nothing or everything, unless it shall be `torn`.
    pub(crate) fn random(&self, seed: u64, torn: bool) -> Arrived<'static> {
        let seed =
            if torn { 0x202 } else { 0 } | mix(seed ^ mix(self.index ^ (self.medium as u64) << 63));
        let ordered = match seed % 4 {
            0 => 0,
            1 => self.ordered,
            _ => (mix(seed ^ 1) % (self.ordered as u64 + 1)) as usize,
        };
        let loose: Box<dyn Fn(usize, usize) -> bool> = match seed >> 8 & 3 {
            0 => Box::new(|_, _| false),
            1 => Box::new(|_, _| true),
            _ => Box::new(move |_, ordinal| mix(seed ^ (ordinal as u64 + 2)) & 1 == 1),
        };
        Arrived { ordered, loose }
    }

    fn ordered_pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces
            .iter()
            .filter(|piece| !piece.settled && !piece.loose)
    }

    /// Writes what has arrived, and tells of each event of which something has not.
    pub(crate) fn write(
        &self,
        arrived: &Arrived<'_>,
        writer: &mut Writer<'_>,
        mut lost: impl FnMut(usize),
    ) {
        let (mut ordered, mut loose) = (0, 0);
        for piece in &self.pieces {
            let mut complete = true;
            for (off, bytes) in piece.atoms() {
                let here = if piece.settled {
                    true
                } else if piece.loose {
                    loose += 1;
                    (arrived.loose)(piece.event, loose - 1)
                } else {
                    ordered += 1;
                    ordered <= arrived.ordered
                };
                if here {
                    writer.write(off, bytes);
                }
                complete &= here;
            }
            if !complete {
                lost(piece.event);
            }
        }
    }

    /// How much of this granule arrives in a selection. `first` is the number of ways of all granules
    /// before this one.
    pub(crate) fn select<'a>(&self, selection: &'a Selection, first: u64) -> Arrived<'a> {
        let tear = |medium, index, seed, else_keep: bool| {
            if (self.medium, self.index) == (medium, index) {
                return self.random(seed, true);
            }
            self.keeping(move |_| else_keep)
        };
        match selection {
            Selection::Way(number) => self.way(number / first % self.ways().unwrap_or(u64::MAX)),
            Selection::Events(kept) => self.keeping(|event| kept.binary_search(&event).is_ok()),
            Selection::Nothing => self.keeping(|_| false),
            Selection::Everything => self.keeping(|_| true),
            Selection::Medium(medium) => {
                let keep = self.medium == *medium;
                self.keeping(move |_| keep)
            }
            Selection::Only(event) => self.with_only(*event),
            Selection::AllBut(event) => self.keeping(move |other| other != *event),
            Selection::UpTo(event) => self.keeping(move |other| other <= *event),
            Selection::Torn {
                medium,
                index,
                seed,
                others,
            } => tear(*medium, *index, *seed, *others),
            Selection::Random(seed) => self.random(*seed, false),
        }
    }
}

#[cfg(test)]
mod tests;
