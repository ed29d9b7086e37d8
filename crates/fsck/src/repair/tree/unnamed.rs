//! What was in use, and what nothing names any more: the files that had it are lost.
//!
//! A crash leaves nothing of the kind, but blocks and nodes of files that were never committed are not told from these
//! where a bitmap is gone. So it counts only where pages of nodes are lost that may have named them.

use quayfs_layout::Lbn;
use quayfs_layout::l2p::BlockState;
use quayfs_layout::node::{self, BITS_PER_PAGE};
use quayfs_shown::count;

use super::Tree;
use crate::Area;
use crate::pages::Got;
use crate::repair::map::Contents;
use crate::repair::recognize::Crcs;
use crate::repair::report::Journal;

impl Tree<'_> {
    /// Counts inodes and blocks that nothing but what they had tells of. Before bitmaps and nodes are written again.
    pub(super) fn count_what_is_unnamed(&self, log: &mut Journal) {
        if !log.gave_up_nodes {
            return;
        }
        for id in self.unneeded() {
            if let Got::Page(page) = self.pages.read(id) {
                let owner = node::owner(&page[..]);
                if !self.inodes.contains_key(&owner) {
                    log.lose(owner);
                }
            }
        }
        let unnamed = self.unnamed_blocks();
        if unnamed > 0 {
            let what = format_args!(
                "{} in use that no file has any more: freed",
                count(unnamed, "block")
            );
            log.unnamed_blocks += unnamed;
            log.add(Area::Bitmap, what);
        }
    }

    /// How many blocks were in use, as their bitmap says, and belong to no file. Where that is lost too, those are counted
    /// whose content is whole.
    fn unnamed_blocks(&self) -> u64 {
        let g = &self.media.geo;
        let Some(contents) = Contents::load(self.media) else {
            return 0;
        };
        let (mut unnamed, mut unsure): (u64, Vec<(u64, Lbn)>) = (0, Vec::new());
        for n in 0..g.visible_blocks().div_ceil(BITS_PER_PAGE) {
            let first = n * BITS_PER_PAGE;
            let end = g.visible_blocks().min(first + BITS_PER_PAGE);
            let map = self.there((g.lbn_bitmap_base + n) as u32);
            for lbn in (first..end).filter(|lbn| !self.lbns.has(*lbn)) {
                let entry = self.media.entry(lbn);
                let is_staged = contents.is_staged(lbn);
                let is_zero = entry.is_some_and(|e| e.state == BlockState::Zero);
                match (&map, entry) {
                    _ if is_zero && !is_staged => {}
                    (Some(map), _) => unnamed += u64::from(node::bit(&map[..], lbn - first)),
                    (None, _) if is_staged => {
                        unnamed += u64::from(contents.sound(lbn).is_some());
                    }
                    (None, Some(entry)) => unsure.push((entry.pbn, lbn)),
                    (None, None) => {}
                }
            }
        }
        unsure.sort_unstable();
        let mut crcs = Crcs::default();
        let pbns: Vec<u64> = unsure.iter().map(|(pbn, _)| *pbn).collect();
        crcs.load(self.media, &pbns);
        let mut whole = |(pbn, lbn): &&(u64, Lbn)| crcs.hold(self.media, *pbn, *lbn);
        unnamed + unsure.iter().filter(|at| whole(at)).count() as u64
    }
}
