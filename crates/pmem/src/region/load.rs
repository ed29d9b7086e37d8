//! Reading a region by system calls, which fail where a load would end the process.

use super::{Region, Source};
use crate::held::Touched;
use crate::memory::Memory;
use crate::{PAGE, PmemError};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Read at a time.
const PIECE: usize = 1 << 20;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

impl Region {
    /// A private copy in memory, which behaves as the same backend. Takes time and memory for what the region holds, not
    /// for what it could: holes are not read, and what is zero takes no memory. Of a file it is read, since in a file
    /// system in memory a load would fill the hole that it meets, and end the process if there is no room. A devdax
    /// device can only be mapped.
    ///
    /// # Errors
    /// [`PmemError::Cut`], [`PmemError::Io`].
    pub fn load(&self) -> Result<Self, PmemError> {
        let file = self.readable();
        self.written_out()?;
        let mut memory = match file {
            // It may be longer than the machine has memory.
            Some((_, path)) => {
                Memory::reserve(self.memory.len()).map_err(|source| PmemError::Io {
                    what: "copy",
                    path: path.to_path_buf(),
                    source,
                })?
            }
            // Tests make many small ones: memory that the allocator has at hand.
            None => Memory::heap(self.memory.len()),
        };
        let touched = Touched::nothing(self.len());
        let mut buf = vec![0; PIECE.min(self.memory.len())];
        for part in self.held(0..self.len()) {
            let mut at = part.start;
            while at < part.end {
                let piece = &mut buf[..PIECE.min((part.end - at) as usize)];
                match file {
                    Some((file, path)) => read_exact(file, path, at, piece, self.len())?,
                    None => self.memory.read(at, piece),
                }
                for page in piece.chunks(ZEROS.len()) {
                    if *page != ZEROS[..page.len()] {
                        memory.init(at, page);
                        touched.note(at, page.len() as u64);
                    }
                    at += page.len() as u64;
                }
            }
        }
        Ok(Self::assemble(memory, self.backend, Source::Copy(touched)))
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
        self.written_out()?;
        let mut buf = vec![0; len as usize];
        read_exact(file, path, off, &mut buf, self.len())?;
        Ok(buf)
    }

    /// The file has what was stored.
    fn written_out(&self) -> Result<(), PmemError> {
        self.write_out()
            .map_err(|source| PmemError::Drain { source })
    }

    /// The file, if it can be read by system calls.
    fn readable(&self) -> Option<(&File, &Path)> {
        match &self.source {
            Source::File { file, path } => {
                let kind = file.metadata().ok()?.file_type();
                (!kind.is_char_device()).then_some((&**file, &**path))
            }
            Source::Simulated(_) | Source::Copy(_) => None,
        }
    }
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
