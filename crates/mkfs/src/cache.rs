//! What the disk below says of its write cache.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// A disk's write cache, as the kernel knows it. Source: `Documentation/block/writeback_cache_control.rst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// A power failure loses what it holds, and a flush empties it.
    Volatile,
    /// There is none, or it survives a power failure: flushes do nothing.
    Safe,
}

/// That of the disk below a file or block device. `None` where the kernel does not say: a file system over a network, in
/// memory, or over several disks.
pub fn write_cache(meta: &Metadata) -> Option<WriteCache> {
    let device = match meta.file_type().is_block_device() {
        true => meta.rdev(),
        false => meta.dev(),
    };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has what its disk has.
    let text = ["queue/write_cache", "../queue/write_cache"]
        .into_iter()
        .find_map(|file| fs::read_to_string(disk.join(file)).ok())?;
    parse(&text)
}

fn parse(text: &str) -> Option<WriteCache> {
    match text.trim() {
        "write back" => Some(WriteCache::Volatile),
        "write through" => Some(WriteCache::Safe),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(parse("write back\n"), Some(WriteCache::Volatile));
        assert_eq!(parse("write through\n"), Some(WriteCache::Safe));
        assert_eq!(parse("something new\n"), None);
    }

    #[test]
    fn what_lies_in_memory_has_no_disk() {
        assert_eq!(write_cache(&fs::metadata("/proc").unwrap()), None);
    }
}
