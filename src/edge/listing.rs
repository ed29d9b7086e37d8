//! Directory listings, with and without attributes.

use quayfs_fuse::wire::{EntryOut, ReadIn};
use quayfs_fuse::{Answer, Listing, Out};
use quayfs_layout::inode::Inode;

use crate::edge::convert::{attr_of, entry_of};
use crate::edge::service::Edge;
use crate::fs::DirEntry;
use crate::fs::attr::mode_of_kind;

/// Most entries of one answer with attributes; a page of the kernel's holds fewer.
const BATCH: usize = 128;

impl Edge {
    pub(super) fn readdir(&self, ino: u64, args: &ReadIn, out: &mut Out<'_>) -> Answer {
        let mut listing = Listing::new(out, args.size);
        self.fs.readdir(ino, args.offset, |e| {
            listing.name(e.ino, e.cookie, e.kind, &e.name)
        })?;
        Ok(())
    }

    /// The entries of a directory from a cookie on. The kernel takes a reference to every inode in the
    /// answer, except through `.` and `..`.
    pub(super) fn readdirplus(&self, ino: u64, args: &ReadIn, out: &mut Out<'_>) -> Answer {
        let mut seen = Vec::new();
        // Attributes are looked up after the directory's lock is released.
        self.fs.readdir(ino, args.offset, |e| {
            seen.push(e);
            seen.len() < BATCH
        })?;
        let mut listing = Listing::new(out, args.size);
        for e in &seen {
            let dot = e.name == b"." || e.name == b"..";
            let entry = if dot {
                kind_only(e)
            } else {
                match self.fs.entry_attr(e) {
                    Some(attr) => entry_of(&attr),
                    None => continue,
                }
            };
            if !listing.entry(&entry, e.ino, e.cookie, e.kind, &e.name) {
                if !dot {
                    self.fs.forget(e.ino, 1);
                }
                break;
            }
        }
        Ok(())
    }
}

/// An entry that the kernel lists and does not remember.
fn kind_only(e: &DirEntry) -> EntryOut {
    let inode = Inode {
        mode: mode_of_kind(e.kind),
        ..Inode::default()
    };
    EntryOut {
        attr: attr_of(e.ino, &inode),
        ..EntryOut::default()
    }
}
