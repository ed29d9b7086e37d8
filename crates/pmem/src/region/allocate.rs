//! Space for what will be stored: a store has no way to say that there is none.

use super::open::io_error;
use super::{Region, Source};
use crate::{Backend, PmemError};
use quayfs_layout::size::format_size;
use rustix::fs::{FallocateFlags, SeekFrom, StatVfs, fallocate, fstatvfs, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Zeros written at a time.
const PIECE: usize = 1 << 20;

impl Region {
    /// Makes sure that there is space for every page of `len` bytes at `off`; content does not change. Nothing to do
    /// for devices and simulated regions. Others must not use the region meanwhile.
    ///
    /// Where the file system below puts what is overwritten somewhere else (snapshots, copy on write), it needs more
    /// space later all the same.
    ///
    /// # Errors
    /// [`PmemError::NoRoom`], [`PmemError::Io`].
    pub fn allocate(&self, off: u64, len: u64) -> Result<(), PmemError> {
        let Source::File { file, path } = &self.source else {
            return Ok(());
        };
        if len == 0 {
            return Ok(());
        }
        let meta = file.metadata().map_err(io_error("stat", path))?;
        let missing = meta.len().saturating_sub(meta.blocks() * 512);
        // What lies in memory has no blocks but those of its pages, which would be looked up one by one.
        if !meta.is_file() || missing == 0 && self.backend == Backend::Volatile {
            return Ok(());
        }
        let room = fstatvfs(file).map_err(|e| io_error("stat", path)(e.into()))?;
        let no_room = || PmemError::NoRoom {
            path: path.clone(),
            missing,
            free: free(&room),
        };
        // Before anything is taken away from others in vain.
        if len >= meta.len() && !can_have(&room, missing) {
            return Err(no_room());
        }
        match reserve(file, off, len) {
            Ok(()) => Ok(()),
            Err(e) if is_shortage(&e) => Err(no_room()),
            Err(e) => Err(io_error("allocate", path)(e)),
        }
    }

    /// Writes zeros to all of a file on a disk that has just been made. What is only allocated is noted by the file
    /// system below as written the first time it is, which a drain would wait for. Nothing to do for anything else.
    /// Durable after a drain. Each time that more is written it is `told` how many bytes.
    ///
    /// # Errors
    /// [`PmemError::NoRoom`], [`PmemError::Io`].
    pub fn write_zeros(&self, told: &mut dyn FnMut(u64)) -> Result<(), PmemError> {
        let (Source::File { file, path }, Some(disk)) = (&self.source, &self.disk) else {
            return Ok(());
        };
        let meta = file.metadata().map_err(io_error("stat", path))?;
        if !meta.is_file() {
            return Ok(());
        }
        match disk.write_zeros(self.len(), told) {
            Ok(()) => Ok(()),
            Err(e) if is_shortage(&e) => Err(PmemError::NoRoom {
                path: path.clone(),
                missing: meta.len().saturating_sub(meta.blocks() * 512),
                free: fstatvfs(file).map_or(0, |room| free(&room)),
            }),
            Err(e) => Err(io_error("write", path)(e)),
        }
    }
}

fn is_shortage(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Bytes that this process can have of a file system.
fn free(room: &StatVfs) -> u64 {
    let blocks = match rustix::process::geteuid().is_root() {
        true => room.f_bfree,
        false => room.f_bavail,
    };
    blocks.saturating_mul(room.f_frsize)
}

/// Whether a file system can have so much left, with what is kept for root. One without an end says that it has nothing at all.
fn can_have(room: &StatVfs, bytes: u64) -> bool {
    room.f_blocks == 0 || bytes <= room.f_bfree.saturating_mul(room.f_frsize)
}

/// Takes so many bytes of the file system of a file, by `take`.
///
/// # Errors
/// Those of the system. There is not so much: how much is free.
pub fn take_space(
    file: &File,
    bytes: u64,
    take: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let room = fstatvfs(file)?;
    let shortage = || {
        let (needed, free) = (format_size(bytes), format_size(free(&room)));
        let why =
            format!("no space left: {needed} are needed, and {free} are free on its file system");
        io::Error::new(io::ErrorKind::StorageFull, why)
    };
    // Before anything is taken away from others in vain.
    if !can_have(&room, bytes) {
        return Err(shortage());
    }
    take().map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC) => shortage(),
        _ => e,
    })
}

/// Allocates what is not.
fn reserve(file: &File, off: u64, len: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), off, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // The file system cannot allocate ahead: writing does it.
            Err(Errno::OPNOTSUPP) => return fill_holes(file, off, off + len),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Writes zeros where there are holes.
fn fill_holes(file: &File, mut at: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE];
    while at < end {
        let hole = match seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole < end => hole,
            Ok(_) | Err(Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let data = match seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end,
            Err(e) => return Err(e.into()),
        };
        at = hole;
        while at < data {
            let piece = (data - at).min(PIECE as u64);
            file.write_all_at(&zeros[..piece as usize], at)?;
            at += piece;
        }
    }
    Ok(())
}

/// Gives a new, empty file its length and makes it durable with its name. All of it is allocated unless `sparse`.
///
/// # Errors
/// Those of the system; the file then is as far as it came.
pub fn fill_new(file: &File, path: &Path, len: u64, sparse: bool) -> io::Result<()> {
    match sparse || len == 0 {
        true => file.set_len(len)?,
        false => take_space(file, len, || match reserve_new(file, len) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(file, len),
            other => other,
        })?,
    }
    file.sync_all()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn reserve_new(file: &File, len: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn write_zeros(mut file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE];
    let mut left = len;
    while left > 0 {
        let piece = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        let len = 3 * PIECE as u64;
        file.set_len(len).unwrap();
        file.write_all_at(&[7; 4096], PIECE as u64).unwrap();
        let before = file.metadata().unwrap().blocks();
        fill_holes(&file, 4096, len).unwrap();
        let after = file.metadata().unwrap().blocks();
        assert!(
            before < after && after * 512 >= len - 4096,
            "{before}, {after}"
        );
        let mut bytes = vec![1; len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let (head, rest) = bytes.split_at(PIECE);
        assert!(head.iter().all(|b| *b == 0) && rest[..4096].iter().all(|b| *b == 7));
        assert!(rest[4096..].iter().all(|b| *b == 0));
        fill_holes(&file, 0, len).unwrap();
        fill_holes(&file, 0, len).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= len);
    }

    #[test]
    fn what_there_is_no_room_for_is_told_with_what_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let file = File::create_new(&path).unwrap();
        let e = fill_new(&file, &path, 1 << 60, false).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::StorageFull);
        let said = e.to_string();
        let (_, free) = said
            .split_once("no space left: 1 EiB are needed, and ")
            .unwrap();
        assert!(free.ends_with("iB are free on its file system"), "{said}");
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        // Found out only by taking it.
        let full = || Err(io::Error::from_raw_os_error(libc::ENOSPC));
        let said = take_space(&file, 5 << 20, full).unwrap_err().to_string();
        assert!(said.contains("no space left: 5 MiB are needed"), "{said}");
        let other = || Err(io::Error::from_raw_os_error(libc::EDQUOT));
        let e = take_space(&file, 5 << 20, other).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EDQUOT));
    }
}
