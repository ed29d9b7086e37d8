//! Directory listings with attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{INodeNo, ReplyDirectoryPlus};
use quayfs_layout::inode::Inode;

use crate::edge::convert::{file_attr, generation};
use crate::edge::session::FOREVER;
use crate::error::Result;
use crate::fs::attr::mode_of_kind;
use crate::fs::{Attr, DirEntry, Fs};

/// Most entries of one answer; a page of the kernel's holds fewer.
const BATCH: usize = 128;

/// Fills an answer with the entries of a directory from the cookie `offset` on. The kernel takes a
/// reference to every inode in it, except through `.` and `..`.
pub fn with_attributes(
    fs: &Fs,
    ino: u64,
    offset: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Result<()> {
    let mut seen = Vec::new();
    // Attributes are looked up after the directory's lock is released.
    fs.readdir(ino, offset, |e| {
        seen.push(e);
        seen.len() < BATCH
    })?;
    for e in &seen {
        let dot = e.name == b"." || e.name == b"..";
        let attr = if dot {
            Some(kind_only(e))
        } else {
            fs.entry_attr(e)
        };
        let Some(attr) = attr else { continue };
        let ttl = if dot { &Duration::ZERO } else { &FOREVER };
        let full = reply.add(
            INodeNo(e.ino),
            e.cookie,
            OsStr::from_bytes(&e.name),
            ttl,
            &file_attr(attr.ino, &attr.inode),
            generation(&attr),
        );
        if full {
            if !dot {
                fs.forget(e.ino, 1);
            }
            break;
        }
    }
    Ok(())
}

fn kind_only(e: &DirEntry) -> Attr {
    Attr {
        ino: e.ino,
        inode: Inode {
            mode: mode_of_kind(e.kind),
            ..Inode::default()
        },
    }
}
