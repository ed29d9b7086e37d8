//! Cutting runs into pieces of a size that devices like, and copying what direct I/O cannot take.

use crate::{AlignedBuf, BLOCK, ReadRun, RegionRun, Scratch, WriteRun, sys};
use quayfs_pmem::Bytes;
use quayfs_transfer::Transfer;
use std::mem;

/// The most bytes in one transfer. Large enough for full speed; a longer run is in flight as several.
pub(crate) const PIECE: usize = 1 << 20;

/// The most buffers in one transfer; the system takes 1024.
const PARTS: usize = 512;

/// A contiguous part of a run of writes.
pub(crate) struct WritePiece<'a> {
    off: u64,
    parts: Vec<&'a [u8]>,
    bounce: Option<Scratch>,
}

/// What a piece consists of.
trait Part: Copy {
    fn len(&self) -> usize;
    fn split_at(self, at: usize) -> (Self, Self);
}

impl Part for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        <[u8]>::split_at(self, at)
    }
}

impl Part for Bytes<'_> {
    fn len(&self) -> usize {
        Bytes::len(self)
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        Bytes::split_at(self, at)
    }
}

/// Cuts a run that begins at a block into pieces, each at a byte of the file.
fn cut<P: Part>(block: u64, bufs: &[P], mut piece: impl FnMut(u64, Vec<P>)) {
    let mut off = block * BLOCK as u64;
    let (mut parts, mut len) = (Vec::new(), 0);
    for buf in bufs {
        let mut rest = *buf;
        while rest.len() > 0 {
            let (part, after) = rest.split_at(rest.len().min(PIECE - len));
            parts.push(part);
            len += part.len();
            rest = after;
            if len == PIECE || parts.len() == PARTS {
                piece(off, mem::take(&mut parts));
                off += mem::take(&mut len) as u64;
            }
        }
    }
    if !parts.is_empty() {
        piece(off, parts);
    }
}

/// A contiguous part of a run of writes out of a region.
pub(crate) struct RegionPiece<'a> {
    off: u64,
    parts: Vec<Bytes<'a>>,
}

impl<'a> RegionPiece<'a> {
    /// Cuts runs, of a device that begins with a block of its file, into pieces. `None` if direct I/O does not take them
    /// all.
    pub(crate) fn cut(runs: &[RegionRun<'a>], start: u64) -> Option<Vec<Self>> {
        let mut pieces = Vec::new();
        for run in runs {
            cut(start + run.block, run.bytes, |off, parts| {
                pieces.push(Self { off, parts });
            });
        }
        let aligned = |part: &Bytes<'_>| part.as_ptr().addr().is_multiple_of(BLOCK);
        pieces
            .iter()
            .all(|piece| piece.parts.iter().all(aligned))
            .then_some(pieces)
    }

    pub(crate) fn transfer(&self) -> Transfer<'a> {
        Transfer::write_from(self.off, self.parts.iter().map(sys::in_place).collect())
    }
}

impl<'a> WritePiece<'a> {
    /// Cuts runs, of a device that begins with a block of its file, into pieces.
    pub(crate) fn cut(runs: &[WriteRun<'a>], start: u64) -> Vec<Self> {
        let mut pieces = Vec::new();
        for run in runs {
            cut(start + run.block, run.bufs, |off, parts| {
                pieces.push(Self {
                    off,
                    parts,
                    bounce: None,
                });
            });
        }
        pieces
    }

    /// Copies what is not aligned, if `direct`.
    pub(crate) fn transfer(&mut self, direct: bool) -> Transfer<'_> {
        if direct && !self.parts.iter().all(|part| AlignedBuf::is_aligned(part)) {
            let bounce = self.bounce.insert(Scratch::gather(&self.parts));
            return Transfer::write(self.off, &[&bounce[..]]);
        }
        Transfer::write(self.off, &self.parts)
    }

    /// Drops the copy: it is not needed any more.
    pub(crate) fn finish(&mut self) {
        self.bounce = None;
    }
}

/// A contiguous part of a run of reads.
pub(crate) struct ReadPiece<'a> {
    off: u64,
    buf: &'a mut [u8],
    bounce: Option<Scratch>,
}

impl<'a> ReadPiece<'a> {
    /// As [`WritePiece::cut`].
    pub(crate) fn cut(runs: &'a mut [ReadRun<'_>], start: u64) -> Vec<Self> {
        let mut pieces = Vec::new();
        for run in runs {
            let mut off = (start + run.block) * BLOCK as u64;
            for buf in run.buf.chunks_mut(PIECE) {
                let len = buf.len() as u64;
                pieces.push(Self {
                    off,
                    buf,
                    bounce: None,
                });
                off += len;
            }
        }
        pieces
    }

    /// Reads into a copy where the target is not aligned, if `direct`; [`ReadPiece::finish`] is then
    /// needed afterwards.
    pub(crate) fn transfer(&mut self, direct: bool) -> Transfer<'_> {
        if direct && !AlignedBuf::is_aligned(self.buf) {
            let bounce = self.bounce.insert(Scratch::new(self.buf.len()));
            return Transfer::read(self.off, bounce);
        }
        Transfer::read(self.off, self.buf)
    }

    /// Hands over what was read into a copy.
    pub(crate) fn finish(&mut self) {
        if let Some(bounce) = self.bounce.take() {
            self.buf.copy_from_slice(&bounce);
        }
    }
}
