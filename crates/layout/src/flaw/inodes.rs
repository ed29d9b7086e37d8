//! What cannot be true of an inode and of its attributes.

use super::Flaw;
use super::pages::is_kind;
use crate::acl::{self, Acl};
use crate::bytes::get_u32;
use crate::dirent::DEPTH_MAX;
use crate::inode::{
    self, Inline, Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
    flags_of,
};
use crate::xattr;
use std::fmt;

/// What a flaw of an inode is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The inode itself.
    Inode,
    /// Its directory.
    Directory,
    /// Its target.
    Symlink,
}

/// Checks the image of an inode that is in use, or free.
///
/// # Errors
/// The first [`Flaw`].
pub fn image(ino: u64, bytes: &[u8]) -> Result<(), Flaw> {
    if get_u32(bytes, 0) == 0 {
        return match bytes.iter().all(|b| *b == 0) {
            true => Ok(()),
            false => Err(Flaw::Inode(format!(
                "inode {ino} is free, but its image is not empty"
            ))),
        };
    }
    let mut first = None;
    inode(&Inode::decode(bytes), &mut |_, why| {
        first.get_or_insert_with(|| Flaw::Inode(format!("inode {ino}: {why}")));
    });
    first.map_or(Ok(()), Err)
}

/// Calls `each` with everything that cannot be of an inode in use, as far as that can be said without looking at
/// anything else.
pub fn inode(i: &Inode, each: &mut dyn FnMut(Part, fmt::Arguments<'_>)) {
    let times = [
        ("a", i.atime),
        ("m", i.mtime),
        ("c", i.ctime),
        ("b", i.btime),
    ];
    for (name, t) in times.iter().filter(|(_, t)| t.nsec >= 1_000_000_000) {
        let nsec = t.nsec;
        each(
            Part::Inode,
            format_args!("{name}time has {nsec} nanoseconds"),
        );
    }
    if !i.is_dir() && (i.depth != 0 || i.entries != 0 || i.parent != 0) {
        let what = format_args!("not a directory, but has fields of one");
        each(Part::Inode, what);
    }
    if !is_kind((i.kind() >> 12) as u8) {
        let what = i.mode & S_IFMT;
        each(Part::Inode, format_args!("there is no file type {what:o}"));
    }
    if i.mode & !(S_IFMT | 0o7777) != 0 {
        each(Part::Inode, format_args!("there is no mode {:o}", i.mode));
    }
    let flags = i.flags & !flags_of(i.mode);
    if flags != 0 {
        let what = format_args!("has flags that it cannot have, {flags:#x}");
        each(Part::Inode, what);
    }
    content_of(i, each);
}

/// What an inode of its type holds.
fn content_of(i: &Inode, each: &mut dyn FnMut(Part, fmt::Arguments<'_>)) {
    let (kind, size) = (i.kind(), i.size);
    if !matches!(kind, S_IFREG | S_IFLNK)
        && is_kind((kind >> 12) as u8)
        && i.inline != Inline::default()
    {
        let what = format_args!("neither file nor link, but has inline content");
        each(Part::Inode, what);
    }
    match kind {
        S_IFREG if size > inode::SIZE_MAX => {
            each(Part::Inode, format_args!("size {size} is impossible"));
        }
        S_IFDIR if i.depth > DEPTH_MAX || (i.root == 0 && i.depth > 0) => {
            let what = format_args!("{} index levels are impossible", i.depth);
            each(Part::Directory, what);
        }
        S_IFLNK => {
            if size == 0 || size > inode::TARGET_MAX as u64 {
                let what = format_args!("a target of {size} bytes is impossible");
                each(Part::Symlink, what);
            }
            let has = match (size <= inode::INLINE_MAX as u64, i.root == 0) {
                (true, false) => "pages",
                (false, true) => "no pages",
                _ => return,
            };
            let what = format_args!("a target of {size} bytes has {has}");
            each(Part::Symlink, what);
        }
        S_IFCHR | S_IFBLK | S_IFIFO | S_IFSOCK if i.root != 0 || size != 0 => {
            each(Part::Inode, format_args!("a special file with content"));
        }
        _ => {}
    }
}

/// Checks a set of extended attributes of an inode of this mode. Whether lists agree with its permissions is not
/// checked: code that changes one changes the other next.
///
/// # Errors
/// [`Flaw::Attributes`].
pub fn attributes(mode: u32, set: &xattr::Set) -> Result<(), Flaw> {
    let mut names: Vec<&[u8]> = set.iter().map(|(name, _)| &name[..]).collect();
    names.sort_unstable();
    let wrong = |name: &[u8], why: &str| {
        let shown = String::from_utf8_lossy(name);
        Err(Flaw::Attributes(format!("{shown:?} {why}")))
    };
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return wrong(twice[0], "twice");
    }
    let kind = mode & S_IFMT;
    for (name, value) in set {
        let is_access = name == acl::ACCESS;
        if !is_access && name != acl::DEFAULT {
            continue;
        }
        if Acl::decode(value).is_err() {
            return wrong(name, "that is no list");
        }
        if kind == S_IFLNK || !is_access && kind != S_IFDIR {
            return wrong(name, "where there can be none");
        }
    }
    Ok(())
}
