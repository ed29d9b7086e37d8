//! Writing what differs. Each page goes to a place that the NAT does not name; then the NAT is
//! switched, in four steps that are durable one after the other.
//!
//! | step | after a crash in it or before the next |
//! |---|---|
//! | dynamic pages | new ones belong to nobody yet; changed ones say what they would say again |
//! | page of the root directory | an entry for a `lost+found` that does not exist yet is removed again |
//! | other static pages | counts, bits and intents are derived again |
//! | nodes that are freed | those that are left are freed again |

use quayfs_layout::bytes::{get_u64, put_u64};
use quayfs_layout::inode::ROOT;
use quayfs_layout::node::{self, OFF_SEQ};

use super::Tree;
use super::derived::Pages;
use crate::fsck::bitset::BitSet;
use crate::fsck::pages::Got;
use crate::fsck::repair::Failed;
use crate::fsck::repair::report::Journal;
use crate::fsck::{Area, bitset};

impl Tree<'_> {
    pub(super) fn write(&mut self, log: &mut Journal) -> Result<(), Failed> {
        let free = self.free_pages();
        if !self.write_directories() {
            let needed = self.changed.len() + 1;
            return Err(Failed::Pages {
                needed,
                free: free.len(),
            });
        }
        let mut inodes = self.inode_pages();
        let (bitmaps, intents) = (self.bitmaps(), self.intents());
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
        let mut free = free.into_iter();
        for step in [dynamic, root, rest] {
            self.switch(step, &mut free)?;
        }
        self.release(log)
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

    fn switch(&self, pages: Pages, free: &mut impl Iterator<Item = u64>) -> Result<(), Failed> {
        let (g, salt) = (&self.media.geo, self.media.salt);
        let region = &self.media.region;
        let mut words = Vec::with_capacity(pages.len());
        for ((id, mut page), at) in pages.into_iter().zip(free) {
            put_u64(&mut page[..], OFF_SEQ, self.digested);
            node::seal(&mut page[..], salt);
            region.write_nt(g.node_page(at), &page[..]);
            words.push((id, node::nat_encode(id, at, salt)));
        }
        region.drain()?;
        for (id, word) in words {
            region.store_u64(g.nat_entry(id), word);
            region.flush(g.nat_entry(id), 8);
        }
        Ok(region.drain()?)
    }

    /// Frees nodes that nobody needs.
    fn release(&self, log: &mut Journal) -> Result<(), Failed> {
        let (g, salt) = (&self.media.geo, self.media.salt);
        let region = &self.media.region;
        let mut n = 0;
        for id in self.pages.exists.iter().filter(|id| *id >= g.dyn_base) {
            let id = id as u32;
            if !self.reached.contains(&id) {
                region.store_u64(g.nat_entry(id), node::nat_absent(id, salt));
                region.flush(g.nat_entry(id), 8);
                n += 1;
            }
        }
        if n > 0 {
            region.drain()?;
            log.add(
                Area::Node,
                format_args!("{n} nodes that nothing refers to are freed"),
            );
        }
        Ok(())
    }
}
