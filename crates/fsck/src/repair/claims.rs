//! Which LBN has which physical block, as far as the page table says so and can be believed.

use quayfs_layout::Lbn;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::l2p::{BlockState, Entry};
use rustc_hash::FxHashMap;

use super::doubt::Words;
use super::recognize::Crcs;
use super::tree::Tree;
use super::{Area, Failed, Repair};
use crate::bitset::BitSet;

impl Repair<'_> {
    /// Entries among garbage are believed if the block that they name has the content that it should have. Nothing vouches
    /// for one in state zero; its checksum says that it reads as zeros, in any block.
    pub(super) fn give_up_entries(&mut self) -> Result<(), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let decode = move |lbn, word| Entry::decode(word, lbn, salt).filter(|e| e.pbn < g.blocks);
        self.give_up_lucky(&Words {
            off: g.l2p_map_off,
            len: g.blocks,
            valid: |lbn, word| decode(lbn, word).is_some(),
            vouched: |repair: &Self, lbn, word| {
                let written = decode(lbn, word).filter(|e| e.state == BlockState::Written);
                let block = written.and_then(|e| repair.media.block(e.pbn));
                block.is_some_and(|block| crc32c(&block) == repair.media.crc(lbn))
            },
        })
    }

    /// The physical blocks that have an owner, and the LBNs that have none. Entries that can be healed are.
    pub(super) fn homes(
        &mut self,
        crcs: &mut Crcs,
        tree: &Tree<'_>,
    ) -> Result<(BitSet, Vec<Lbn>), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut owned = BitSet::new(g.blocks);
        let mut doubled: Vec<(Lbn, Entry)> = Vec::new();
        let mut bad: Vec<Lbn> = Vec::new();
        for lbn in 0..g.blocks {
            match self.media.entry(lbn) {
                None => bad.push(lbn),
                Some(e) if owned.add(e.pbn) => {}
                Some(e) => doubled.push((lbn, e)),
            }
        }
        let mut homeless = self.contested(&doubled, crcs, tree);
        for lbn in bad {
            let free =
                |w| Entry::decode(w, lbn, salt).filter(|e| e.pbn < g.blocks && !owned.has(e.pbn));
            if self.heal_word(self.media.entry_off(lbn), |w| free(w).is_some())? {
                if let Some(e) = self.media.entry(lbn) {
                    owned.add(e.pbn);
                }
                let what = format_args!("the entry of LBN {lbn} is healed");
                self.log.add(Area::PageTable, what);
            } else {
                homeless.push(lbn);
            }
        }
        Ok((owned, homeless))
    }

    /// Of several LBNs with one physical block all but one, in order. The one keeps it whose content the block holds, else
    /// one that a file has, else one that has written it, and the first of several.
    fn contested(&self, doubled: &[(Lbn, Entry)], crcs: &mut Crcs, tree: &Tree<'_>) -> Vec<Lbn> {
        if doubled.is_empty() {
            return Vec::new();
        }
        let mut owner: FxHashMap<u64, (Lbn, Entry)> =
            doubled.iter().map(|(lbn, e)| (e.pbn, (*lbn, *e))).collect();
        // From the last one to the first.
        for lbn in (0..self.media.geo.blocks).rev() {
            if let Some(e) = self.media.entry(lbn)
                && let Some(first) = owner.get_mut(&e.pbn)
            {
                *first = (lbn, e);
            }
        }
        let mut claim = |(lbn, e): (Lbn, Entry)| {
            let is_written = e.state == BlockState::Written;
            let holds = is_written && crcs.hold(&self.media, e.pbn, lbn);
            (holds, tree.lbns.has(lbn), is_written)
        };
        let mut homeless = Vec::with_capacity(doubled.len());
        for (lbn, e) in doubled {
            let before = owner[&e.pbn];
            let wins = claim((*lbn, *e)) > claim(before);
            if wins {
                owner.insert(e.pbn, (*lbn, *e));
            }
            homeless.push(if wins { before.0 } else { *lbn });
        }
        homeless
    }
}
