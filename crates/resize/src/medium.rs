//! The file that holds the data.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use quayfs_blockdev::open_medium;
use quayfs_fs::volume::Place;
use quayfs_pmem::take_space;
use rustix::fs::{FallocateFlags, fallocate};

use crate::{B, ResizeError};

fn failed(place: &Place) -> impl FnOnce(io::Error) -> ResizeError + '_ {
    move |source| ResizeError::Medium {
        path: place.data.clone(),
        source,
    }
}

/// Whether the data lie in a file, whose length can be chosen.
pub(super) fn is_file(place: &Place) -> Result<bool, ResizeError> {
    let meta = std::fs::metadata(&place.data).map_err(failed(place))?;
    Ok(meta.is_file())
}

/// What holds the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks of data that it has room for.
    pub blocks: u64,
    /// It is a file, which can be made longer.
    pub is_file: bool,
}

/// What holds the data of a volume, and how long that is.
///
/// # Errors
/// It cannot be looked at.
pub fn room(place: &Place) -> Result<Room, ResizeError> {
    let is_file = is_file(place)?;
    let len = match is_file {
        true => std::fs::metadata(&place.data).map(|meta| meta.len()),
        false => open_medium(&place.data, OpenOptions::new().read(true)).and_then(|device| {
            let device = device.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
            device?.seek(SeekFrom::End(0))
        }),
    };
    let data = len
        .map_err(failed(place))?
        .saturating_sub(place.region_len.unwrap_or(0));
    Ok(Room {
        blocks: data / B,
        is_file,
    })
}

/// Gives the file room for so many bytes of data, and no more. Durable when it returns; if it fails, the file is as long
/// as it was.
pub(super) fn set_len(place: &Place, data: u64) -> Result<(), ResizeError> {
    let len = place.region_len.unwrap_or(0) + data;
    let opened = OpenOptions::new().write(true).open(&place.data);
    opened
        .and_then(|file| change(&file, len))
        .map_err(failed(place))
}

fn change(file: &File, len: u64) -> io::Result<()> {
    let meta = file.metadata()?;
    // What was allocated in full stays so: a write must not find the file system below full.
    let is_sparse = meta.blocks() * 512 < meta.len();
    let more = len.saturating_sub(meta.len());
    let changed = match more > 0 && !is_sparse {
        true => take_space(file, more, || {
            Ok(fallocate(file, FallocateFlags::empty(), meta.len(), more)?)
        }),
        false => file.set_len(len),
    };
    if let Err(e) = changed.and_then(|()| file.sync_all()) {
        // The first error is the one to report.
        let _ = file.set_len(meta.len());
        return Err(e);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_gets_longer_only_where_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        let why = change(&file, 1 << 60).unwrap_err().to_string();
        assert!(why.starts_with("no space left: "), "{why}");
        assert!(why.contains(" are free on its file system"), "{why}");
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }
}
