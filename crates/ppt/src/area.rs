//! Raw access to map and checksums: words in, words out, no meaning.

use std::sync::Arc;

use quayfs_layout::{LINE, Lbn};
use quayfs_pmem::Region;

use crate::PptGeometry;

/// What one LBN has on the medium: the entry's word and the content checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) entry: u64,
    pub(crate) crc: u32,
}

/// The region together with where the page table lies in it.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) region: Arc<Region>,
    pub(crate) geo: PptGeometry,
}

impl Area {
    /// Entry and checksum of `lbn`, which is in range. The two belong together unless the checksum
    /// alone is being replaced at this moment.
    pub(crate) fn load(&self, lbn: Lbn) -> Raw {
        let mut entry = self.region.load_u64(self.geo.entry_off(lbn));
        loop {
            let crc = self.region.load_u32(self.geo.crc_off(lbn));
            let again = self.region.load_u64(self.geo.entry_off(lbn));
            if again == entry {
                return Raw { entry, crc };
            }
            entry = again;
        }
    }

    /// A store of many entries and checksums that flushes each line once, if they come in order.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch {
            area: self,
            entries: Lines {
                region: &self.region,
                line: None,
            },
            crcs: Lines {
                region: &self.region,
                line: None,
            },
        }
    }
}

/// Stores in place, flushed when [`flush`](Self::flush) returns. Nothing is fenced. Where both are
/// stored for a written block the checksum comes first: a reader that sees the new entry then finds its
/// checksum.
pub(crate) struct Batch<'a> {
    area: &'a Area,
    entries: Lines<'a>,
    crcs: Lines<'a>,
}

impl Batch<'_> {
    #[track_caller]
    pub(crate) fn store_entry(&mut self, lbn: Lbn, word: u64) {
        let off = self.area.geo.entry_off(lbn);
        self.entries.before_store(off);
        self.area.region.store_u64(off, word);
    }

    #[track_caller]
    pub(crate) fn store_crc(&mut self, lbn: Lbn, crc: u32) {
        let off = self.area.geo.crc_off(lbn);
        self.crcs.before_store(off);
        self.area.region.store_u32(off, crc);
    }

    #[track_caller]
    pub(crate) fn flush(mut self) {
        self.entries.flush();
        self.crcs.flush();
    }
}

/// The line that was stored to last and still has to be flushed.
struct Lines<'a> {
    region: &'a Region,
    line: Option<u64>,
}

impl Lines<'_> {
    #[track_caller]
    fn before_store(&mut self, off: u64) {
        let line = off - off % LINE as u64;
        if self.line != Some(line) {
            self.flush();
            self.line = Some(line);
        }
    }

    #[track_caller]
    fn flush(&mut self) {
        if let Some(line) = self.line.take() {
            self.region.flush(line, LINE as u64);
        }
    }
}
