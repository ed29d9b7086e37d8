//! Access control lists in the model: on the bytes of attributes, without the decoder that is tested.

use quayfs_store::error::FsError;

use super::{Node, Result};

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Tag, permissions, id.
pub type Entry = (u16, u16, u32);

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OF_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The value of an attribute.
pub fn bytes(entries: &[Entry]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, may, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(may.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// The entries of a value, if Linux accepts it (`posix_acl_valid`).
fn parse(value: &[u8]) -> Result<Vec<Entry>> {
    if value.len() > 4096 {
        return Err(FsError::TooLarge);
    }
    if value.len() < 4 {
        return Err(FsError::Invalid);
    }
    if value[..4] != [2, 0, 0, 0] {
        return Err(FsError::NotSupported);
    }
    if value.len() % 8 != 4 {
        return Err(FsError::Invalid);
    }
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let entries: Vec<Entry> = value[4..]
        .chunks(8)
        .map(|b| {
            let id = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            (half(b), half(&b[2..]), id)
        })
        .collect();
    let mut wanted = OWNER;
    let mut needs_mask = false;
    for (tag, may, id) in &entries {
        let named = matches!(*tag, USER | GROUP);
        wanted = match (*tag, wanted) {
            _ if *may > 7 || named && *id == u32::MAX => return Err(FsError::Invalid),
            (OWNER, OWNER) | (USER, USER) => USER,
            (GROUP_OF_OWNER, USER) | (GROUP, GROUP) => GROUP,
            (MASK, GROUP) => OTHER,
            (OTHER, OTHER) => 0,
            (OTHER, GROUP) if !needs_mask => 0,
            _ => return Err(FsError::Invalid),
        };
        needs_mask |= named;
    }
    match wanted {
        0 => Ok(entries),
        _ => Err(FsError::Invalid),
    }
}

/// The three entries that permission bits stand for: owner, mask or group, all others.
fn classes(entries: &[Entry]) -> [usize; 3] {
    let at = |tag| entries.iter().position(|e| e.0 == tag);
    let group = at(MASK).or(at(GROUP_OF_OWNER));
    [at(OWNER), group, at(OTHER)].map(|i| i.expect("a valid list"))
}

fn bits(entries: &[Entry]) -> u32 {
    let classes = classes(entries).map(|i| u32::from(entries[i].1));
    classes[0] << 6 | classes[1] << 3 | classes[2]
}

impl Node {
    /// What an attribute of this name and value becomes; permission bits change at once.
    pub(super) fn accept(
        &mut self,
        name: &[u8],
        value: &[u8],
        stranger: bool,
    ) -> Result<Option<Vec<u8>>> {
        let is_default = name == DEFAULT;
        if name != ACCESS && !is_default {
            return Ok(Some(value.to_vec()));
        }
        if self.is_symlink() {
            return Err(FsError::NotSupported);
        }
        if is_default && !self.is_dir() {
            return Err(FsError::Access);
        }
        let mut entries = parse(value)?;
        for e in entries.iter_mut().filter(|e| !matches!(e.0, USER | GROUP)) {
            e.2 = u32::MAX;
        }
        if !is_default {
            self.mode = self.mode & !0o777 | bits(&entries);
            if stranger {
                self.mode &= !0o2000;
            }
            if entries.len() == 3 {
                return Ok(None);
            }
        }
        Ok(Some(bytes(&entries)))
    }

    /// Permission bits have changed: the access list follows.
    pub(super) fn follow_mode(&mut self) {
        let Some(value) = self.xattrs.get_mut(ACCESS) else {
            return;
        };
        let mut entries = parse(value).expect("a valid list");
        for (shift, i) in [6, 3, 0].into_iter().zip(classes(&entries)) {
            entries[i].1 = (self.mode >> shift & 7) as u16;
        }
        *value = bytes(&entries);
    }

    /// A new inode below a default list, or with a umask.
    pub(super) fn inherit(&mut self, default: Option<&Vec<u8>>, umask: u32) {
        if self.is_symlink() {
            return;
        }
        let Some(default) = default else {
            self.mode &= !(umask & 0o777);
            return;
        };
        let mut entries = parse(default).expect("a valid list");
        for (shift, i) in [6, 3, 0].into_iter().zip(classes(&entries)) {
            entries[i].1 &= (self.mode >> shift & 7) as u16;
        }
        self.mode = self.mode & !0o777 | bits(&entries);
        if entries.len() > 3 {
            self.xattrs.insert(ACCESS.to_vec(), bytes(&entries));
        }
        if self.is_dir() {
            self.xattrs.insert(DEFAULT.to_vec(), default.clone());
        }
    }
}
