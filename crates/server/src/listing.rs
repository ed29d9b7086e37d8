//! Directory listings, with and without attributes.

use quayfs_fs::DirEntry;
use quayfs_fs::attr::mode_of_kind;
use quayfs_fuse::wire::{EntryOut, ReadIn};
use quayfs_fuse::{Answer, Listing, Out};
use quayfs_layout::inode::Inode;
use quayfs_store::error::Result;

use crate::convert::{access, attr_of};
use crate::errno::ToErrno;
use crate::service::Server;

impl Server {
    pub(super) fn readdir(&self, ino: u64, args: &ReadIn, out: &mut Out<'_>) -> Answer {
        let mut listing = Listing::new(out, args.size);
        self.fs
            .readdir_as(access(args.flags), ino, args.offset, |e| {
                listing.name(e.ino, e.cookie, e.kind, &e.name)
            })
            .errno()?;
        Ok(())
    }

    /// The entries of a directory from a cookie on, as many as fit. The kernel takes a reference to every
    /// inode in the answer, except through `.` and `..`.
    pub(super) fn readdirplus(&self, ino: u64, args: &ReadIn, out: &mut Out<'_>) -> Answer {
        let mut after = args.offset;
        loop {
            // Attributes are looked up after the directory's lock is released.
            let seen = self.entries_after(ino, after, args).errno()?;
            let mut listing = Listing::new(out, args.size);
            for e in &seen {
                let dot = e.name == b"." || e.name == b"..";
                let found = if dot { Ok(None) } else { self.fs.entry_attr(e) };
                let (entry, is_remembered) = match found {
                    Ok(Some(attr)) => (self.entry_of(&attr), true),
                    Ok(None) if !dot => continue,
                    // What cannot be read is listed: a lookup says why, and a backup does not take it for removed.
                    Ok(None) | Err(_) => (kind_only(e), false),
                };
                if !listing.entry(&entry, e.ino, e.cookie, e.kind, &e.name) {
                    if is_remembered {
                        self.fs.forget(e.ino, 1);
                    }
                    break;
                }
            }
            // An empty answer means that there are no more, not that all of these are gone by now.
            match seen.last() {
                Some(last) if out.is_empty() => after = last.cookie,
                _ => return Ok(()),
            }
        }
    }

    /// Entries that fit into an answer.
    fn entries_after(&self, ino: u64, after: u64, args: &ReadIn) -> Result<Vec<DirEntry>> {
        let (mut seen, mut room) = (Vec::new(), args.size as usize);
        self.fs.readdir_as(access(args.flags), ino, after, |e| {
            let size = Listing::entry_size(e.name.len());
            let fits = size <= room;
            if fits {
                room -= size;
                seen.push(e);
            }
            fits
        })?;
        Ok(seen)
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
