//! What is settled on a medium, and what is in flight to it.

use crate::pages::Pages;
use quayfs_pmem::atoms;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How a medium takes stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Bytes that keep their order among themselves and are independent of all others.
    pub(crate) granule: u64,
    /// A granule's part of one write arrives as a whole.
    pub(crate) whole: bool,
    /// Which stores are not bound to the order.
    pub(crate) loose: Loose,
}

impl Rules {
    pub(crate) const MEMORY: Self = Self {
        granule: quayfs_pmem::LINE,
        whole: false,
        loose: Loose::NonTemporal,
    };
    pub(crate) const FILE: Self = Self {
        granule: quayfs_pmem::LINE,
        whole: false,
        loose: Loose::All,
    };
    pub(crate) const DEVICE: Self = Self {
        granule: quayfs_pmem::SECTOR,
        whole: true,
        loose: Loose::None,
    };
}

/// Which stores keep no order within their granule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loose {
    None,
    NonTemporal,
    All,
}

/// The part of a store in one granule.
#[derive(Clone)]
pub(crate) struct Piece {
    /// The number of the event that made it.
    pub(crate) event: usize,
    /// In bytes, on the medium.
    pub(crate) off: u64,
    data: Arc<[u8]>,
    from: usize,
    len: usize,
    /// Not bound to the order in its granule.
    pub(crate) loose: bool,
    /// Durable, though something before it in the granule is not.
    pub(crate) settled: bool,
    /// Arrives as a whole.
    whole: bool,
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.from..self.from + self.len]
    }

    /// What arrives as a whole: offset on the medium and bytes, in order.
    pub(crate) fn atoms(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let whole = self.whole.then(|| (self.off, self.bytes()));
        let cut = if self.whole { 0 } else { self.len as u64 };
        let parts = atoms(self.off, cut).map(|(off, len)| {
            let start = (off - self.off) as usize;
            (off, &self.bytes()[start..start + len as usize])
        });
        whole.into_iter().chain(parts)
    }

    pub(crate) fn atom_count(&self) -> usize {
        self.atoms().count()
    }
}

/// Settled content, and by granule what is in flight in program order.
#[derive(Clone)]
pub(crate) struct Content {
    rules: Rules,
    pub(crate) base: Pages,
    pub(crate) pending: BTreeMap<u64, Vec<Piece>>,
}

impl Content {
    pub(crate) fn new(base: Pages, rules: Rules) -> Self {
        Self {
            rules,
            base,
            pending: BTreeMap::new(),
        }
    }

    /// A store comes in. Returns the granules it went to.
    pub(crate) fn store(&mut self, event: usize, off: u64, data: &Arc<[u8]>, nt: bool) -> Vec<u64> {
        let Rules {
            granule,
            whole,
            loose,
        } = self.rules;
        let mut touched = Vec::new();
        let mut from = 0;
        while from < data.len() {
            let at = off + from as u64;
            let len = (data.len() - from).min((granule - at % granule) as usize);
            let piece = Piece {
                event,
                off: at,
                data: data.clone(),
                from,
                len,
                loose: loose == Loose::All || loose == Loose::NonTemporal && nt,
                settled: false,
                whole,
            };
            self.pending.entry(at / granule).or_default().push(piece);
            touched.push(at / granule);
            from += len;
        }
        touched
    }

    /// Settles those pieces of a granule that `which` says.
    pub(crate) fn make_durable(&mut self, granule: u64, which: impl Fn(&Piece) -> bool) {
        let Some(pieces) = self.pending.get_mut(&granule) else {
            return;
        };
        for piece in pieces.iter_mut().filter(|piece| which(piece)) {
            piece.settled = true;
        }
        // A settled piece behind one that is not must wait: the earlier one may still arrive or not,
        // below it.
        let done = pieces.iter().take_while(|piece| piece.settled).count();
        let mut writer = self.base.writer();
        for piece in pieces.drain(..done) {
            writer.write(piece.off, piece.bytes());
        }
        writer.finish();
        if pieces.is_empty() {
            self.pending.remove(&granule);
        }
    }

    /// Settles what was stored before an event in a range of whole granules.
    pub(crate) fn settle_range(&mut self, range: Range<u64>, before: usize) {
        let size = self.rules.granule;
        let granules = range.start / size..range.end.div_ceil(size);
        let pending: Vec<u64> = self
            .pending
            .range(granules)
            .map(|(granule, _)| *granule)
            .collect();
        for granule in pending {
            self.make_durable(granule, |piece| piece.event < before);
        }
    }

    /// Settles everything.
    pub(crate) fn settle_all(&mut self) {
        let mut writer = self.base.writer();
        for piece in self.pending.values().flatten() {
            writer.write(piece.off, piece.bytes());
        }
        writer.finish();
        self.pending.clear();
    }
}
