//! Writing what differs. Each page goes to a place that the NAT does not name; then the NAT is
//! switched, in three steps that are durable one after the other.
//!
//! | step | after a crash in it or before the next |
//! |---|---|
//! | dynamic pages | new ones belong to nothing yet; changed ones say what they would say again |
//! | page of the root directory | an entry for a `lost+found` that does not exist yet is removed again |
//! | other static pages, and nodes that are freed | counts, bits, intents and quotas are derived again, and nodes that are left are freed again |
//!
//! In the last step a node may go before the page that refers to it no more. Only nodes of which an
//! owner has lost another part are freed: to the next repair that owner has lost a part as before, and
//! the new leaves of a directory are there since the first step.

use quayfs_layout::bytes::{get_u64, put_u64};
use quayfs_layout::inode::ROOT;
use quayfs_layout::node::{self, OFF_SEQ};

use super::Tree;
use super::derived::Pages;
use crate::bitset::BitSet;
use crate::pages::Got;
use crate::repair::report::Journal;
use crate::repair::{Failed, Repair};
use crate::{Area, bitset};

impl Tree<'_> {
    /// What is to be written, step by step, and the places for it.
    pub(super) fn steps(&mut self, log: &mut Journal) -> Result<([Pages; 3], Vec<u64>), Failed> {
        let free = self.free_pages();
        if !self.write_directories() {
            let needed = self.changed.len() + 1;
            return Err(Failed::Pages {
                needed,
                free: free.len(),
            });
        }
        let mut inodes = self.inode_pages();
        let (bitmaps, intents, quotas) = (self.bitmaps(), self.intents(), self.quotas());
        for (pages, area, what) in [
            (
                &inodes,
                Area::Inode,
                "pages of the inode table are written again",
            ),
            (&bitmaps, Area::Bitmap, "bitmap pages are made anew"),
            (
                &intents,
                Area::Intents,
                "pages of the intent table are written again",
            ),
            (
                &quotas,
                Area::Quota,
                "pages of the quota table are written again",
            ),
        ] {
            if !pages.is_empty() {
                log.add(area, format_args!("{} {what}", pages.len()));
            }
        }
        let (root_id, _) = self.media.geo.inode_place(ROOT);
        let root: Pages = inodes
            .remove(&root_id)
            .map(|p| (root_id, p))
            .into_iter()
            .collect();
        let mut rest = inodes;
        rest.extend(bitmaps);
        rest.extend(intents);
        rest.extend(quotas);
        let mut dynamic = std::mem::take(&mut self.changed);
        let newer = self.too_new(&dynamic, &root, &rest);
        if !newer.is_empty() {
            let what = format_args!(
                "{} node pages said they were newer than the log",
                newer.len()
            );
            log.add(Area::Node, what);
        }
        dynamic.extend(newer);
        let needed = dynamic.len() + root.len() + rest.len();
        if needed > free.len() {
            return Err(Failed::Pages {
                needed,
                free: free.len(),
            });
        }
        Ok(([dynamic, root, rest], free))
    }

    /// Places that the NAT does not name.
    fn free_pages(&self) -> Vec<u64> {
        let g = &self.media.geo;
        let mut used: BitSet = bitset::BitSet::new(g.node_pages);
        for id in 0..g.nat_entries as u32 {
            let word = self.media.region.load_u64(g.nat_entry(id));
            if let Some(Some(page)) = node::nat_decode(id, word, self.media.salt)
                && page < g.node_pages
            {
                used.add(page);
            }
        }
        (0..g.node_pages).filter(|p| !used.has(*p)).collect()
    }

    /// Pages that stay, but say that a record made them which has not been yet.
    fn too_new(&self, dynamic: &Pages, root: &Pages, rest: &Pages) -> Pages {
        let mut out = Pages::new();
        for id in self.pages.exists.iter().map(|id| id as u32) {
            let is_static = u64::from(id) < self.media.geo.dyn_base;
            let stays = is_static || self.reached.contains(&id);
            let known = [dynamic, root, rest]
                .into_iter()
                .any(|p| p.contains_key(&id));
            if stays
                && !known
                && let Got::Page(page) = self.pages.read(id)
                && get_u64(&page[..], OFF_SEQ) > self.digested
            {
                out.insert(id, page);
            }
        }
        out
    }

    /// Nodes that nothing needs.
    pub(super) fn unneeded(&self) -> Vec<u32> {
        let dynamic = self.pages.exists.iter();
        let dynamic = dynamic.filter(|id| *id >= self.media.geo.dyn_base);
        let dynamic = dynamic.map(|id| id as u32);
        dynamic.filter(|id| !self.reached.contains(id)).collect()
    }
}

impl Repair<'_> {
    pub(super) fn write(&mut self, tree: &mut Tree<'_>) -> Result<(), Failed> {
        let ([dynamic, root, rest], free) = tree.steps(&mut self.log)?;
        let freed = tree.unneeded();
        if !freed.is_empty() {
            let what = format_args!("{} nodes that nothing refers to are freed", freed.len());
            self.log.add(Area::Node, what);
        }
        let (d, mut free) = (tree.digested, free.into_iter());
        self.switch(dynamic, &[], d, &mut free)?;
        self.switch(root, &[], d, &mut free)?;
        self.switch(rest, &freed, d, &mut free)
    }

    /// Gives nodes new pages, and takes others' away. Durable with the next drain.
    fn switch(
        &mut self,
        pages: Pages,
        freed: &[u32],
        digested: u64,
        free: &mut impl Iterator<Item = u64>,
    ) -> Result<(), Failed> {
        if pages.is_empty() && freed.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut words = Vec::with_capacity(pages.len());
        for ((id, mut page), at) in pages.into_iter().zip(free) {
            put_u64(&mut page[..], OFF_SEQ, digested);
            node::seal(&mut page[..], salt);
            self.media.region.write_nt(g.node_page(at), &page[..]);
            words.push((id, node::nat_encode(id, at, salt)));
        }
        // The pages before what names them; and the step before as a whole.
        self.drain()?;
        words.extend(freed.iter().map(|id| (*id, node::nat_absent(*id, salt))));
        for (id, word) in words {
            self.put(g.nat_entry(id), word)?;
        }
        Ok(())
    }
}
