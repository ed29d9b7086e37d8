//! NAT entries and node pages, each for itself. Afterwards every entry is sound, and every page that
//! the NAT names is a page of its node; what could not be saved does not exist.

use std::collections::{BTreeMap, BTreeSet};

use quayfs_layout::node::{self, BITS_PER_PAGE, INODES_PER_PAGE, NodeKind, OFF_SEQ};
use quayfs_layout::{BLOCK, bytes};
use quayfs_store::ns::node::zero_page;
use rustc_hash::FxHashMap;

use super::doubt::Words;
use super::odds::{BLOCK_BITS, Odds};
use super::{Area, Failed, Repair, heal};
use crate::pages::judge;

/// Where a page says which node it is.
const OFF_ID: usize = 4;

/// NAT entries and what they say.
struct Nat {
    /// Owner of each page, by page.
    owners: FxHashMap<u64, u32>,
    /// Nodes whose entry says nothing that can be true.
    unknown: BTreeSet<u32>,
    /// Nodes whose pages are lost: what these said is not known any more.
    lost: BTreeSet<u32>,
}

impl Nat {
    /// Whether the page of the bitmap at node `base` that has bit `n` is lost.
    fn has_lost_bit(&self, base: u64, n: u64) -> bool {
        self.lost.contains(&((base + n / BITS_PER_PAGE) as u32))
    }
}

impl Repair<'_> {
    pub(super) fn nodes(&mut self) -> Result<(), Failed> {
        self.give_up_entries_of_nodes()?;
        let mut nat = self.nat()?;
        // Pages first: a damaged one may be the bitmap or the page that an entry is looked up by.
        let owners: BTreeMap<u64, u32> = nat.owners.iter().map(|(p, id)| (*p, *id)).collect();
        let (damaged, may_heal) = self.damaged_pages(owners);
        let mut lost = Vec::new();
        for (page, id) in damaged {
            if !self.page(id, page, may_heal)? {
                lost.push((id, page));
            }
        }
        // A page that has been found to be another node's, as a candidate for it.
        for (id, page) in &lost {
            nat.owners.remove(page);
            self.set(*id, None)?;
        }
        self.log.gave_up_nodes |= !lost.is_empty();
        nat.lost = lost.into_iter().map(|(id, _)| id).collect();
        if !nat.unknown.is_empty() {
            self.find_pages(&mut nat)?;
        }
        Ok(())
    }

    /// Entries among garbage are believed if the page that they name says that it is of this node. That a node does not
    /// exist the bitmaps must say as well.
    fn give_up_entries_of_nodes(&mut self) -> Result<(), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let decode = move |id: u64, word| match node::nat_decode(id as u32, word, salt) {
            Some(Some(page)) if id == 0 || page >= g.node_pages => None,
            other => other,
        };
        self.give_up_lucky(&Words {
            off: g.nat_off,
            len: g.nat_entries,
            valid: |id, word| decode(id, word).is_some(),
            vouched: |repair: &Self, id, word| {
                let page = decode(id, word).flatten().map(|page| repair.read(page));
                page.is_some_and(|page| u64::from(bytes::get_u32(&page[..], OFF_ID)) == id)
            },
        })
    }

    /// Reads the NAT and heals its entries. Of several nodes in one page the one stays that the page
    /// says it is.
    fn nat(&mut self) -> Result<Nat, Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut nat = Nat {
            owners: FxHashMap::default(),
            unknown: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        for id in 0..g.nat_entries as u32 {
            let off = g.nat_entry(id);
            let decode = |w| match node::nat_decode(id, w, salt) {
                Some(Some(_)) if id == 0 => None,
                Some(Some(page)) if page >= g.node_pages => None,
                other => other,
            };
            let mut page = decode(self.media.region.load_u64(off));
            if page.is_none() && self.heal_word(off, |w| decode(w).is_some())? {
                self.log
                    .add(Area::Nat, format_args!("the entry of node {id} is healed"));
                page = decode(self.media.region.load_u64(off));
            }
            match page {
                None => {
                    nat.unknown.insert(id);
                }
                Some(None) => {}
                Some(Some(page)) => match nat.owners.get(&page).copied() {
                    None => {
                        nat.owners.insert(page, id);
                    }
                    Some(before) if self.is_page_of(page, id) => {
                        nat.owners.insert(page, id);
                        nat.unknown.insert(before);
                    }
                    Some(_) => {
                        nat.unknown.insert(id);
                    }
                },
            }
        }
        Ok(nat)
    }

    fn is_page_of(&self, page: u64, id: u32) -> bool {
        let bytes = self.read(page);
        node::check(&bytes[..], id, self.media.salt).is_ok()
    }

    fn read(&self, page: u64) -> Box<[u8; BLOCK]> {
        let mut bytes = zero_page();
        let off = self.media.geo.node_page(page);
        self.media.region.read(off, &mut bytes[..]);
        bytes
    }

    /// Pages that are not sound, and whether those that one bit explains may be healed. Of the others only those count
    /// that say which node they are: the rest cannot be taken for healed.
    fn damaged_pages(&mut self, owners: BTreeMap<u64, u32>) -> (Vec<(u64, u32)>, bool) {
        let (g, salt) = (self.media.geo, self.media.salt);
        let (mut damaged, mut odds) = (Vec::new(), Odds::default());
        for (page, id) in owners {
            let bytes = self.read(page);
            if judge(&g, salt, id, &bytes, u64::MAX).is_ok() {
                continue;
            }
            damaged.push((page, id));
            let difference = node::mismatch(&bytes[..], salt);
            if healed(id, &bytes, salt).is_some() {
                odds.explained(difference, page as u32);
            } else if difference != 0 && bytes::get_u32(&bytes[..], OFF_ID) == id {
                odds.others += 1;
            }
        }
        let may_heal = odds.may_heal(BLOCK_BITS);
        if odds.explained > 0 && !may_heal {
            self.log.note(odds.note("node page", "checksum"));
        }
        (damaged, may_heal)
    }

    /// Whether the page of a node could be healed. What is lost with it is said.
    fn page(&mut self, id: u32, page: u64, may_heal: bool) -> Result<bool, Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let bytes = self.read(page);
        let Err(why) = judge(&g, salt, id, &bytes, u64::MAX) else {
            return Ok(true);
        };
        if may_heal && self.heal_page(id, page, &bytes)? {
            self.log.add(
                Area::Node,
                format_args!("node {id} in page {page} is healed"),
            );
            return Ok(judge(&g, salt, id, &self.read(page), u64::MAX).is_ok());
        }
        let what = match g.static_kind(id) {
            Some(NodeKind::Inodes) => {
                let first = (u64::from(id) - g.inode_base) * INODES_PER_PAGE;
                self.log.lose_page(first / INODES_PER_PAGE);
                format!(
                    "node {id}: {why}; inodes {first} to {} are lost",
                    first + INODES_PER_PAGE - 1
                )
            }
            Some(NodeKind::Bitmap) => format!("node {id}: {why}; the bitmap is made anew"),
            Some(NodeKind::Quota) => {
                self.log.lost_limits += 1;
                format!("node {id}: {why}; limits in it are lost")
            }
            Some(_) => format!("node {id}: {why}; intents are made anew"),
            // Whose page it was is said where its owner misses it.
            None => format!("node {id}: {why}; the page is given up"),
        };
        self.log.add(Area::Node, what);
        Ok(false)
    }

    /// Heals a page that is one bit away from its checksum; whether it was.
    fn heal_page(&mut self, id: u32, page: u64, bytes: &[u8; BLOCK]) -> Result<bool, Failed> {
        let Some(bit) = healed(id, bytes, self.media.salt) else {
            return Ok(false);
        };
        let (word, mask) = heal::mask(self.media.geo.node_page(page), bit);
        self.put(word, self.media.region.load_u64(word) ^ mask)?;
        Ok(true)
    }

    fn set(&mut self, id: u32, page: Option<u64>) -> Result<(), Failed> {
        let (g, salt) = (&self.media.geo, self.media.salt);
        let word = match page {
            Some(page) => node::nat_encode(id, page, salt),
            None => node::nat_absent(id, salt),
        };
        self.put(g.nat_entry(id), word)
    }

    /// Finds the pages of nodes whose entries are lost: the newest one that carries the node's id,
    /// unless the bitmaps say that the node does not exist.
    fn find_pages(&mut self, nat: &mut Nat) -> Result<(), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut best: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for page in (0..g.node_pages).filter(|p| !nat.owners.contains_key(p)) {
            let bytes = self.read(page);
            let id = bytes::get_u32(&bytes[..], OFF_ID);
            if !nat.unknown.contains(&id) || judge(&g, salt, id, &bytes, u64::MAX).is_err() {
                continue;
            }
            let seq = bytes::get_u64(&bytes[..], OFF_SEQ);
            if best.get(&id).is_none_or(|(newest, _)| *newest < seq) {
                best.insert(id, (seq, page));
            }
        }
        // Bitmaps first: they are asked about the others.
        for id in std::mem::take(&mut nat.unknown) {
            let page = best.get(&id).map(|(_, page)| *page);
            let page = page.filter(|_| id != 0 && self.may_exist(id));
            if page.is_none() && self.may_have_existed(id, nat) {
                nat.lost.insert(id);
                self.log.gave_up_nodes = true;
                if g.static_kind(id) == Some(NodeKind::Inodes) {
                    self.log.lose_page(u64::from(id) - g.inode_base);
                }
            }
            self.set(id, page)?;
            let what = match page {
                Some(page) => format!("the entry of node {id} names page {page} again"),
                None => format!("the entry of node {id} is cleared: it has no page"),
            };
            self.log.add(Area::Nat, what);
        }
        Ok(())
    }

    /// Whether a node of which nothing is left may have been one: a bitmap says so, or is lost as well.
    fn may_have_existed(&self, id: u32, nat: &Nat) -> bool {
        let g = &self.media.geo;
        let n = u64::from(id);
        let has_lost_bit = match g.static_kind(id) {
            None if n >= g.dyn_base => nat.has_lost_bit(g.dyn_bitmap_base, n - g.dyn_base),
            Some(NodeKind::Inodes) => {
                let first = (n - g.inode_base) * INODES_PER_PAGE;
                let mut all = first..first + INODES_PER_PAGE;
                all.any(|ino| nat.has_lost_bit(g.ino_bitmap_base, ino))
            }
            _ => false,
        };
        id != 0 && (has_lost_bit || self.may_exist(id))
    }

    /// What the bitmaps say. The ids of bitmaps are smaller than the ids that they describe.
    fn may_exist(&self, id: u32) -> bool {
        let g = &self.media.geo;
        let id = u64::from(id);
        if id >= g.dyn_base {
            let n = id - g.dyn_base;
            self.bit(g.dyn_bitmap_base, n)
        } else if (g.inode_base..g.inode_end()).contains(&id) {
            let first = (id - g.inode_base) * INODES_PER_PAGE;
            (first..first + INODES_PER_PAGE).any(|ino| self.bit(g.ino_bitmap_base, ino))
        } else {
            true
        }
    }

    /// Whether a bit is set; also if that cannot be read. A page that does not exist has none.
    fn bit(&self, base: u64, n: u64) -> bool {
        let (g, salt) = (&self.media.geo, self.media.salt);
        let id = (base + n / BITS_PER_PAGE) as u32;
        let word = self.media.region.load_u64(g.nat_entry(id));
        match node::nat_decode(id, word, salt) {
            Some(Some(page)) if page < g.node_pages => {
                let bytes = self.read(page);
                node::check(&bytes[..], id, salt).is_err()
                    || node::bit(&bytes[..], n % BITS_PER_PAGE)
            }
            Some(None) => false,
            _ => true,
        }
    }
}

/// The bit that keeps a page from being sound, and that of this node.
fn healed(id: u32, bytes: &[u8; BLOCK], salt: u64) -> Option<usize> {
    let bit = heal::bit_of_page(bytes, salt)?;
    let mut page = zero_page();
    page.copy_from_slice(bytes);
    page[bit / 8] ^= 1 << (bit % 8);
    node::check(&page[..], id, salt).is_ok().then_some(bit)
}
