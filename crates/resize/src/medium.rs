//! The file that holds the data.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;

use quayfs_fs::volume::Place;
use rustix::fs::{FallocateFlags, fallocate};

use crate::ResizeError;

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
    let changed = match len > meta.len() && !is_sparse {
        true => fallocate(file, FallocateFlags::empty(), meta.len(), len - meta.len())
            .map_err(io::Error::from),
        false => file.set_len(len),
    };
    if let Err(e) = changed.and_then(|()| file.sync_all()) {
        // The first error is the one to report.
        let _ = file.set_len(meta.len());
        return Err(e);
    }
    Ok(())
}
