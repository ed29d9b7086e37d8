//! Room in the file system that the files of a volume lie on: their holes need some there.

use quayfs_fs::volume::{Place, locate};
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// With so much free below, no volume comes to a stop at once.
const LITTLE: u64 = 64 << 20;

/// What a file of a volume can still need, and what there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    /// The file.
    pub part: PathBuf,
    /// Free in the file system that it lies on.
    pub free_bytes: u64,
    /// Free there for root alone.
    pub reserve_bytes: u64,
    /// Holes in all files of the volume there.
    pub hole_bytes: u64,
}

impl Below {
    /// [`Self::seen`] for a daemon that runs as the user of this process.
    pub fn of(volume: &Path) -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        Some(Self::seen(volume)?.used_by(is_root))
    }

    /// What root has for itself counts for a daemon of root.
    pub fn used_by(mut self, is_root: bool) -> Self {
        match is_root {
            true => self.free_bytes += self.reserve_bytes,
            false => self.reserve_bytes = 0,
        }
        self
    }

    /// Of the parts of a volume, the one that has the least room; `None` if none is a file with holes, or nothing can be told.
    /// It may wait for ever.
    pub fn seen(volume: &Path) -> Option<Self> {
        let Place { pmem, data, .. } = locate(volume).ok()?;
        let mut parts = vec![pmem, data];
        parts.dedup();
        let files: Vec<(PathBuf, Metadata)> = parts
            .into_iter()
            .filter_map(|part| Some((part.clone(), part.metadata().ok()?)))
            .filter(|(_, meta)| meta.is_file())
            .collect();
        let of = |(part, meta): &(PathBuf, Metadata)| {
            let beside = files.iter().filter(|(_, m)| m.dev() == meta.dev());
            // A file system without an end says that it has nothing at all.
            let system = statvfs(part).ok().filter(|system| system.f_blocks > 0)?;
            Some(Self {
                part: part.clone(),
                free_bytes: system.f_bavail * system.f_frsize,
                reserve_bytes: system.f_bfree.saturating_sub(system.f_bavail) * system.f_frsize,
                hole_bytes: beside.map(|(_, m)| holes(m)).sum(),
            })
        };
        let with_holes = files.iter().filter(|(_, meta)| holes(meta) > 0);
        with_holes
            .filter_map(of)
            .min_by_key(|below| (!below.is_short(), below.free_bytes))
    }

    /// Whether what it needs next may not be there.
    pub fn is_short(&self) -> bool {
        self.free_bytes < self.hole_bytes && self.free_bytes < LITTLE
    }
}

/// How much of a file has no blocks.
fn holes(file: &Metadata) -> u64 {
    file.len().saturating_sub(file.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_needed_and_is_not_there_is_short() {
        let short = |free_bytes, hole_bytes| {
            let part = PathBuf::new();
            Below {
                part,
                free_bytes,
                reserve_bytes: 0,
                hole_bytes,
            }
            .is_short()
        };
        assert!(short(0, 1) && short(LITTLE - 1, LITTLE));
        assert!(!short(0, 0) && !short(LITTLE, 1 << 40) && !short(9, 9));
    }

    #[test]
    fn what_is_kept_for_root_is_free_for_root_alone() {
        let below = Below {
            part: PathBuf::new(),
            free_bytes: 0,
            reserve_bytes: 4,
            hole_bytes: 9,
        };
        assert_eq!(below.clone().used_by(true).free_bytes, 4);
        let of_user = below.used_by(false);
        assert_eq!((of_user.free_bytes, of_user.reserve_bytes), (0, 0));
    }

    #[test]
    fn holes_are_what_has_no_blocks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(holes(&file.as_file().metadata().unwrap()), 1 << 20);
    }
}
