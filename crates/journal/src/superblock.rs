//! The words of the journal superblock in the region.

use crate::error::JournalError;
use crate::geometry::JournalGeometry;
use quayfs_layout::LINE;
use quayfs_layout::jsb::{EpochWord, PROPOSALS, SeqWord, WordKind};
use quayfs_pmem::Region;

/// Access to the words; stores are flushed, not drained.
#[derive(Clone, Copy)]
pub(crate) struct Superblock<'a> {
    pub(crate) region: &'a Region,
    pub(crate) geo: &'a JournalGeometry,
}

impl<'a> Superblock<'a> {
    pub(crate) fn of(region: &'a Region, geo: &'a JournalGeometry) -> Self {
        Self { region, geo }
    }

    pub(crate) fn offset(&self, kind: WordKind) -> u64 {
        self.geo.jsb_off + kind.offset()
    }

    pub(crate) fn encode(&self, kind: WordKind, number: u64) -> u64 {
        SeqWord::encode(number, kind.salt(self.geo.volume_salt))
    }

    pub(crate) fn load(&self, kind: WordKind) -> Result<u64, JournalError> {
        let raw = self.region.load_u64(self.offset(kind));
        SeqWord::decode(raw, kind.salt(self.geo.volume_salt)).ok_or(JournalError::Superblock(kind))
    }

    pub(crate) fn load_epoch(&self) -> Result<EpochWord, JournalError> {
        let raw = self.region.load_u64(self.offset(WordKind::Epoch));
        EpochWord::decode(raw, self.geo.volume_salt)
            .ok_or(JournalError::Superblock(WordKind::Epoch))
    }

    pub(crate) fn store(&self, kind: WordKind, number: u64) {
        self.store_raw(kind, self.encode(kind, number));
    }

    pub(crate) fn store_epoch(&self, word: EpochWord) {
        self.store_raw(WordKind::Epoch, word.encode(self.geo.volume_salt));
    }

    /// A commit that this epoch has proposed, 0 if there is none in this place.
    ///
    /// # Errors
    /// [`JournalError::Superblock`].
    pub(crate) fn load_proposal(&self, place: u8) -> Result<u64, JournalError> {
        let kind = WordKind::Proposal(place);
        match self.region.load_u64(self.offset(kind)) {
            0 => Ok(0),
            _ => self.load(kind),
        }
    }

    /// Clears those that are there, for a new epoch.
    pub(crate) fn clear_proposals(&self) {
        let kinds = (0..PROPOSALS as u8).map(WordKind::Proposal);
        kinds
            .filter(|kind| self.region.load_u64(self.offset(*kind)) != 0)
            .for_each(|kind| self.store_raw(kind, 0));
    }

    /// Clears those that are none: they fail their check.
    pub(crate) fn clear_bad_proposals(&self) {
        for place in 0..PROPOSALS as u8 {
            if self.load_proposal(place).is_err() {
                self.store_raw(WordKind::Proposal(place), 0);
            }
        }
    }

    /// Byte position in `lane` where the walk starts. Stored in lines, so that 48 bits last.
    pub(crate) fn load_head(&self, lane: u16) -> Result<u64, JournalError> {
        Ok(self.load(WordKind::Head(lane))? * LINE as u64)
    }

    pub(crate) fn store_head(&self, lane: usize, pos: u64) {
        debug_assert!(pos.is_multiple_of(LINE as u64));
        self.store(WordKind::Head(lane as u16), pos / LINE as u64);
    }

    fn store_raw(&self, kind: WordKind, raw: u64) {
        self.region.store_u64(self.offset(kind), raw);
        self.region.flush(self.offset(kind), 8);
    }
}
