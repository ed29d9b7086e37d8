//! Byte strings in chains of node pages: link targets and extended attributes.

use quayfs_layout::acl::{self, Acl};
use quayfs_layout::inode::{INLINE_MAX, Inode};
use quayfs_layout::node::{self, HEADER, NodeKind, PAYLOAD, used};
use quayfs_layout::xattr::{self, SET_MAX, Set};
use quayfs_layout::{Ino, flaw};

use super::Area;
use super::inodes::Inodes;
use super::owners::Claim;

/// Reads a chain: its bytes and its pages. `None` if not all of it can be read.
fn chain(x: &mut Inodes<'_, '_>, who: Claim<'_>, first: u32) -> Option<(Vec<u8>, u64)> {
    let (mut id, mut bytes, mut pages) = (first, Vec::new(), 0);
    while id != 0 {
        let page = x.owners.claim(x.pages, who, id, x.check)?;
        let n = used(&page[..]) as usize;
        if n == 0 || n > PAYLOAD {
            let what = format_args!("inode {}: {} {id} holds {n} bytes", who.ino, who.what);
            x.error(who.area, what);
            x.owners.gaps.nodes = true;
            return None;
        }
        bytes.extend_from_slice(&page[HEADER..HEADER + n]);
        pages += 1;
        id = node::next(&page[..]);
    }
    Some((bytes, pages))
}

/// Checks a symbolic link's target; returns its pages.
pub(super) fn symlink(x: &mut Inodes<'_, '_>, ino: Ino, i: &Inode) -> Option<u64> {
    let is_inline = i.size <= INLINE_MAX as u64;
    if is_inline != (i.root == 0) {
        x.owners.gaps.nodes |= is_inline;
        return None;
    }
    let who = Claim {
        area: Area::Symlink,
        ino,
        what: "target page",
        kind: NodeKind::Blob,
    };
    let (target, pages) = chain(x, who, i.root)?;
    if !is_inline && target.len() as u64 != i.size {
        let what = format_args!(
            "inode {ino}: the target has {} bytes, its image says {}",
            target.len(),
            i.size
        );
        x.error(Area::Symlink, what);
    }
    Some(pages)
}

/// Checks the extended attributes of an inode; returns their pages.
pub(super) fn xattrs(x: &mut Inodes<'_, '_>, ino: Ino, i: &Inode) -> Option<u64> {
    let who = Claim {
        area: Area::Xattr,
        ino,
        what: "attribute page",
        kind: NodeKind::Blob,
    };
    let (bytes, pages) = chain(x, who, i.xattr)?;
    let wrong = if bytes.len() != i.xattr_len as usize {
        Some(format!(
            "{} bytes, its image says {}",
            bytes.len(),
            i.xattr_len
        ))
    } else if bytes.len() > SET_MAX {
        Some(format!("{} bytes, which is too much", bytes.len()))
    } else {
        match xattr::decode(&bytes) {
            None => Some("bytes that are not attributes".to_string()),
            Some(set) => wrong_set(i, &set),
        }
    };
    if let Some(wrong) = wrong {
        x.error(
            Area::Xattr,
            format_args!("inode {ino}: extended attributes have {wrong}"),
        );
    }
    Some(pages)
}

/// What is wrong with a set of attributes. Lists and permission bits have to agree.
pub(super) fn wrong_set(i: &Inode, set: &Set) -> Option<String> {
    if let Err(flaw) = flaw::attributes(i.mode, set) {
        return Some(flaw.to_string());
    }
    let (name, value) = set.iter().find(|(name, _)| name == acl::ACCESS)?;
    let (says, bits) = (Acl::decode(value).ok()?.mode(), i.mode & 0o777);
    (says != bits).then(|| {
        let shown = String::from_utf8_lossy(name);
        format!("{shown:?} that stands for {says:03o}, with permissions {bits:03o}")
    })
}
