//! Link targets and extended attributes.

use quayfs_fs::TARGET_MAX;
use quayfs_layout::Ino;
use quayfs_layout::acl;
use quayfs_layout::inode::{INLINE_MAX, Inode};
use quayfs_layout::node::{self, HEADER, NodeKind, PAYLOAD, used};
use quayfs_layout::xattr::{self, SET_MAX};

use super::Tree;
use crate::Area;
use crate::blobs::wrong_set;
use crate::repair::report::Journal;

impl Tree<'_> {
    /// A chain of blobs: bytes and ids; `None` if not all of it is there.
    fn chain(&self, ino: Ino, first: u32, max: usize) -> Option<(Vec<u8>, Vec<u32>)> {
        let (mut id, mut bytes, mut ids) = (first, Vec::new(), Vec::new());
        while id != 0 {
            let page = self.mine(id, ino, NodeKind::Blob)?;
            let n = used(&page[..]) as usize;
            if n == 0 || n > PAYLOAD || bytes.len() + n > max || ids.contains(&id) {
                return None;
            }
            bytes.extend_from_slice(&page[HEADER..HEADER + n]);
            ids.push(id);
            id = node::next(&page[..]);
        }
        Some((bytes, ids))
    }

    /// Claims a link's target and returns how many pages it has; `None` if it is lost.
    pub(super) fn own_target(&mut self, ino: Ino, i: &Inode) -> Option<u64> {
        let is_inline = i.size <= INLINE_MAX as u64;
        if i.size == 0 || i.size > TARGET_MAX as u64 || is_inline != (i.root == 0) {
            return None;
        }
        let (target, ids) = self.chain(ino, i.root, TARGET_MAX)?;
        if !is_inline && target.len() as u64 != i.size {
            return None;
        }
        self.reached.extend(&ids);
        Some(ids.len() as u64)
    }

    /// Claims extended attributes and returns how many pages they have. All are lost if one page
    /// is: access control lists among them must not come back in part. Without its list the
    /// permissions of the group would be those of all users and groups that the list named, so they
    /// go with it.
    pub(super) fn own_xattrs(&mut self, ino: Ino, i: &mut Inode, log: &mut Journal) -> u64 {
        let whole = self.chain(ino, i.xattr, SET_MAX);
        let whole = whole.filter(|(bytes, _)| bytes.len() == i.xattr_len as usize);
        let set = whole.as_ref().and_then(|(bytes, _)| xattr::decode(bytes));
        match (whole, &set) {
            (Some((_, ids)), Some(set)) if wrong_set(i, set).is_none() => {
                self.reached.extend(&ids);
                ids.len() as u64
            }
            _ => {
                (i.xattr, i.xattr_len) = (0, 0);
                let had_list = set.is_none_or(|s| s.iter().any(|(name, _)| name == acl::ACCESS));
                let what = match had_list && !i.is_symlink() {
                    true => {
                        i.mode &= !0o070;
                        "its extended attributes are lost, and what its group was allowed"
                    }
                    false => "its extended attributes are lost",
                };
                log.lost_attributes += 1;
                log.of(Area::Xattr, ino, what);
                0
            }
        }
    }
}
