//! Why a volume does not have another size.

use std::path::PathBuf;

use quayfs_fs::closing::CloseError;
use quayfs_fs::volume::VolumeError;
use quayfs_journal::JournalError;
use quayfs_options::{exact_size, format_size};
use quayfs_pmem::PmemError;

/// A size as the command line takes it, and nothing else.
fn to_type(bytes: u64) -> String {
    let mut exact = exact_size(bytes);
    exact.truncate(exact.find(' ').unwrap_or(exact.len()));
    exact
}

/// Why a volume does not have another size. Prints as one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It cannot be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It cannot be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Journal(#[from] JournalError),
    /// The region fails.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// The data device fails.
    #[error("data device: {0}")]
    Device(std::io::Error),
    /// The file that holds the data cannot be made longer or shorter.
    #[error("{}: {source}", path.display())]
    Medium {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The new region is a file beside the old one, for which there is no room.
    #[error(
        "there is no room beside {} for a region of {}, which is there as well until it takes the place of the old one: {} are free",
        path.display(), exact_size(*len), format_size(*free)
    )]
    NoRoom {
        /// The region.
        path: PathBuf,
        /// How long the new one is to be, in bytes.
        len: u64,
        /// How many bytes are free there.
        free: u64,
    },
    /// The page table of a new region cannot be made.
    #[error("page table: {0}")]
    Table(String),
    /// The region is a device.
    #[error(
        "{} is a device, and a region of another size is a new file that takes the place of the old one: make a volume with a \
         larger or smaller region (`quayfs mkfs --pmem`) and copy the files",
        .0.display()
    )]
    RegionDevice(PathBuf),
    /// Region and data are one device.
    #[error(
        "{} is one device, on which the data begin right behind the region: a region of another size needs a new volume \
         (`quayfs mkfs --pmem-size`), to which the files are copied",
        .0.display()
    )]
    OneDevice(PathBuf),
    /// The file has another name as well.
    #[error(
        "{} has another name (a hard link), under which the old region would stay: remove that one first",
        .0.display()
    )]
    Linked(PathBuf),
    /// Less than is in use.
    #[error(
        "a region of {} is too small: metadata, page table and the least staging take {}",
        exact_size(*want), exact_size(*least)
    )]
    RegionTooSmall {
        /// What was asked for.
        want: u64,
        /// What can be had.
        least: u64,
    },
    /// Staging would get too small for requests that a mount may get.
    #[error(
        "staging would get so small that a request could have {} at most, and the kernel has been told {}: unmount the volume, \
         resize it, and mount it again",
        exact_size(*then), exact_size(*now)
    )]
    Requests {
        /// Most bytes of a request now.
        now: u64,
        /// And then.
        then: u64,
    },
    /// A thread cannot be started.
    #[error("{0}")]
    Thread(std::io::Error),
    /// Something of it is damaged.
    #[error("{0} is damaged: `quayfs fsck --repair` first")]
    Damaged(String),
    /// The volume has changed meanwhile.
    #[error("another process has used the volume meanwhile: try again")]
    Changed,
    /// The device is not long enough.
    #[error(
        "the device has room for {} of data, {} were asked for: make the device larger first, as with lvextend",
        exact_size(*have), exact_size(*want)
    )]
    Short {
        /// What it has.
        have: u64,
        /// What was asked for.
        want: u64,
    },
    /// Less than is in use.
    #[error(
        "too little for data: the least is {}, where the last block in use ends; for less, make a smaller volume and copy the files",
        exact_size(*least)
    )]
    TooSmall {
        /// What was asked for.
        want: u64,
        /// What can be had.
        least: u64,
    },
    /// More than the region has room for.
    #[error(
        "the data cannot get {}: the region has room for the page table of {} at most ({}); for more, make the region larger first (`quayfs resize --pmem`), or, where it is on a device, a volume with a larger one (`quayfs mkfs --pmem-size`)",
        format_size(*want), format_size(*most), to_type(*most)
    )]
    TooLarge {
        /// What was asked for.
        want: u64,
        /// What can be had.
        most: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_told_in_one_unit_and_as_it_is_typed() {
        let (want, most) = (30 << 30, 8382 << 20);
        let why = ResizeError::TooLarge { want, most }.to_string();
        let said = "the data cannot get 30 GiB: the region has room for the page table of 8.1 GiB at most (8382M); ";
        assert!(why.starts_with(said), "{why}");
    }
}
