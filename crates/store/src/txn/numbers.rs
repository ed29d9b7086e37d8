//! Numbers of nodes, inodes and blocks: taken out of the reservation, and freed.

use std::ops::Range;

use quayfs_layout::item::Item;
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{Ino, Lbn, inode};

use super::{Draft, Freed, Part, Txn};
use crate::error::{FsError, Resource, Result};
use crate::ns::alloc::{Allocator, Kind, NoScreen};
use crate::ns::node::zero_page;

impl<'e> Txn<'e> {
    pub(super) fn allocator(&self, kind: Kind) -> &'e Allocator {
        self.engine.allocator(kind)
    }

    fn bits(&mut self, kind: Kind, range: Range<u64>, set: bool) {
        for (id, start, count) in self.allocator(kind).bits(range) {
            self.cover_static(id);
            self.item(&Item::Bits {
                id,
                start,
                count,
                set,
            });
        }
    }

    /// Creates a node out of the reservation.
    pub fn new_node(&mut self, kind: NodeKind, owner: Ino) -> Result<u32> {
        if self.nodes == 0 || self.node_ids == 0 {
            return Err(FsError::OutOf(Resource::Nodes));
        }
        let range = self.take(Kind::Node, 1, None)?;
        self.nodes -= 1;
        self.node_ids -= 1;
        let id = (self.engine.nodes.geometry().dyn_base + range.start) as u32;
        self.bits(Kind::Node, range, true);
        self.item(&Item::NodeNew { id, kind, owner });
        let mut page = zero_page();
        node::init(&mut page[..], id, kind, owner);
        self.pages.push((id, Draft::New(page)));
        Ok(id)
    }

    /// Frees a node.
    pub fn free_node(&mut self, id: u32) -> Result<()> {
        let Some(n) = u64::from(id).checked_sub(self.engine.nodes.geometry().dyn_base) else {
            // The caller got this number from a page.
            let what = format_args!("node {id} is static and cannot be freed");
            return Err(self.engine.watch().damaged(what));
        };
        let range = n..n + 1;
        self.engine
            .node_ids
            .prepare_free(range.clone(), &self.engine.nodes, &NoScreen)?;
        self.item(&Item::NodeFree { id });
        self.bits(Kind::Node, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Node,
            range,
        });
        self.pages.retain(|(p, _)| *p != id);
        self.dropped.push(id);
        Ok(())
    }

    fn take(&mut self, kind: Kind, want: u64, goal: Option<u64>) -> Result<Range<u64>> {
        let screen = self.engine.screen(kind);
        let short = match kind {
            Kind::Lbn => Resource::Blocks,
            Kind::Inode | Kind::Node => Resource::Nodes,
        };
        let got = self
            .allocator(kind)
            .take(want, goal, &self.engine.nodes, screen)?;
        let range = got.ok_or(FsError::OutOf(short))?;
        self.taken.push((kind, range.clone()));
        Ok(range)
    }

    /// Allocates an inode number out of the reservation.
    pub fn take_ino(&mut self) -> Result<Ino> {
        if self.inodes == 0 {
            return Err(FsError::OutOf(Resource::Nodes));
        }
        let range = self.take(Kind::Inode, 1, None)?;
        self.inodes -= 1;
        quayfs_restart::inode(range.start);
        self.bits(Kind::Inode, range.clone(), true);
        Ok(range.start)
    }

    /// Frees an inode of which `before` was counted: its image becomes zeros.
    pub(super) fn free_ino(&mut self, ino: Ino, before: Option<Part>) -> Result<()> {
        self.account_for(ino, before, None)?;
        let range = ino..ino + 1;
        self.engine
            .inos
            .prepare_free(range.clone(), &self.engine.nodes, &NoScreen)?;
        let (id, slot) = self.engine.nodes.geometry().inode_place(ino);
        self.write_static(id, inode::offset(slot), &[0; inode::SIZE]);
        self.bits(Kind::Inode, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Inode,
            range,
        });
        Ok(())
    }

    /// Allocates one run of at most `want` LBNs out of the reservation.
    pub fn take_blocks(&mut self, want: u64, goal: Option<Lbn>) -> Result<Range<Lbn>> {
        if self.blocks < want {
            return Err(FsError::OutOf(Resource::Blocks));
        }
        let range = self.take(Kind::Lbn, want, goal)?;
        self.blocks -= range.end - range.start;
        self.bits(Kind::Lbn, range.clone(), true);
        Ok(range)
    }

    /// Logs LBNs that the caller had taken before (an append window) as allocated. Their reservation
    /// is spent.
    pub fn use_blocks(&mut self, range: Range<Lbn>) {
        self.bits(Kind::Lbn, range, true);
    }

    /// Takes LBNs ahead of use: nothing is logged, and the reservation goes to the caller. They are
    /// returned like all others if the transaction fails.
    pub fn take_window(&mut self, want: u64, goal: Option<Lbn>) -> Result<Range<Lbn>> {
        if self.blocks < want {
            return Err(FsError::OutOf(Resource::Blocks));
        }
        let range = self.take(Kind::Lbn, want, goal)?;
        self.blocks -= range.end - range.start;
        Ok(range)
    }

    /// Frees LBNs.
    pub fn free_blocks(&mut self, range: Range<Lbn>) -> Result<()> {
        let screen = self.engine.screen(Kind::Lbn);
        self.engine
            .lbns
            .prepare_free(range.clone(), &self.engine.nodes, screen)?;
        self.bits(Kind::Lbn, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Lbn,
            range,
        });
        Ok(())
    }
}
