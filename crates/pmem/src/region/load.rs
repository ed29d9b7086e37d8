//! Reading a region by system calls, which fail where a load would end the process.

use super::{Region, Source};
use crate::memory::Memory;
use crate::{PAGE, PmemError};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Read at a time.
const PIECE: usize = 1 << 20;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

impl Region {
    /// Heap memory with what the file of this region holds, which behaves as the same backend. Holes are not read,
    /// and what is zero takes no memory. In a file system in memory a load would fill the hole that it meets, and end
    /// the process if there is no room. A devdax device can only be mapped; of it, and of a simulated region, this is
    /// [`Region::private_copy`].
    ///
    /// # Errors
    /// [`PmemError::Cut`], [`PmemError::Io`].
    pub fn load(&self) -> Result<Self, PmemError> {
        let Some((file, path)) = self.readable() else {
            return Ok(self.private_copy());
        };
        let mut memory = Memory::heap(self.memory.len());
        let mut buf = vec![0; PIECE];
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at, self.len()) {
            at = start;
            while at < end {
                let piece = &mut buf[..PIECE.min((end - at) as usize)];
                read_exact(file, path, at, piece, self.len())?;
                for page in piece.chunks(ZEROS.len()) {
                    if *page != ZEROS[..page.len()] {
                        memory.init(at, page);
                    }
                    at += page.len() as u64;
                }
            }
        }
        Ok(Self::assemble(
            memory,
            self.backend,
            Source::Simulated(None),
        ))
    }

    /// `len` bytes at `off` as the file has them.
    ///
    /// # Errors
    /// As of [`Region::load`].
    pub fn peek(&self, off: u64, len: u64) -> Result<Vec<u8>, PmemError> {
        let Some((file, path)) = self.readable() else {
            return Ok(self.read_vec(off, len));
        };
        self.memory.check(off, len);
        let mut buf = vec![0; len as usize];
        read_exact(file, path, off, &mut buf, self.len())?;
        Ok(buf)
    }

    /// The file, if it can be read by system calls.
    fn readable(&self) -> Option<(&File, &Path)> {
        match &self.source {
            Source::File { file, path } => {
                let kind = file.metadata().ok()?.file_type();
                (!kind.is_char_device()).then_some((&**file, &**path))
            }
            Source::Simulated(_) => None,
        }
    }
}

/// The next range below `len` that is no hole. Where the file system does not tell, all of it is none.
fn next_data(file: &File, at: u64, len: u64) -> Option<(u64, u64)> {
    if at >= len {
        return None;
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // A file that was cut is read to find that out.
        Err(Errno::NXIO)
            if file
                .metadata()
                .is_ok_and(|m| !m.is_file() || m.len() >= len) =>
        {
            return None;
        }
        Err(_) => return Some((at, len)),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(len).min(len);
    (start < end).then_some((start, end))
}

fn read_exact(
    file: &File,
    path: &Path,
    off: u64,
    buf: &mut [u8],
    len: u64,
) -> Result<(), PmemError> {
    file.read_exact_at(buf, off).map_err(|source| match source {
        e if e.kind() == io::ErrorKind::UnexpectedEof => PmemError::Cut {
            path: path.to_path_buf(),
            have: file.metadata().map_or(off, |m| m.len()),
            len,
        },
        source => PmemError::Io {
            what: "read",
            path: path.to_path_buf(),
            source,
        },
    })
}
