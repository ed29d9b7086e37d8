//! What the kernel counts of the disk below a volume's data.

use crate::cli::media::hindrance;
use quayfs_fs::volume::DATA;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes since the machine started, and how long it was at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
    /// With at least one request under way.
    pub busy: Duration,
}

/// Where the numbers of a volume's data are. `None` if they are on no disk of this machine, or it does not answer.
pub fn find_in_time(volume: &Path) -> Option<PathBuf> {
    hindrance(volume).ok()?;
    find(volume)
}

fn find(volume: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(volume).ok()?;
    let meta = match meta.is_dir() {
        true => fs::metadata(volume.join(DATA)).ok()?,
        false => meta,
    };
    let device = match meta.file_type().is_block_device() {
        true => meta.rdev(),
        false => meta.dev(),
    };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    stat.exists().then_some(stat)
}

/// Reads them.
pub fn read(stat: &Path) -> Option<Disk> {
    parse(&fs::read_to_string(stat).ok()?)
}

/// Fields of `Documentation/block/stat.rst`. A sector there is always 512 bytes.
fn parse(text: &str) -> Option<Disk> {
    let fields: Vec<u64> = text
        .split_ascii_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    Some(Disk {
        read: fields.get(2)? * 512,
        written: fields.get(6)? * 512,
        busy: Duration::from_millis(*fields.get(9)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        let disk = parse("   1  2  3  4  5  6  7  8  9  10  11 0 0 0 0 0 0\n").unwrap();
        assert_eq!((disk.read, disk.written), (3 * 512, 7 * 512));
        assert_eq!(disk.busy, Duration::from_millis(10));
        assert_eq!(parse("1 2 3"), None);
    }
}
