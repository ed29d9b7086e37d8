//! Cutting runs into pieces of a size that devices like, and copying what direct I/O cannot take.

use crate::transfer::Transfer;
use crate::{AlignedBuf, BLOCK, ReadRun, Scratch, WriteRun};
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

impl<'a> WritePiece<'a> {
    /// Cuts runs into pieces.
    pub(crate) fn cut(runs: &[WriteRun<'a>]) -> Vec<Self> {
        let mut pieces = Vec::new();
        for run in runs {
            let mut off = run.block * BLOCK as u64;
            let (mut parts, mut len) = (Vec::new(), 0);
            for buf in run.bufs {
                let mut rest = *buf;
                while !rest.is_empty() {
                    let (part, after) = rest.split_at(rest.len().min(PIECE - len));
                    parts.push(part);
                    len += part.len();
                    rest = after;
                    if len == PIECE || parts.len() == PARTS {
                        pieces.push(Self {
                            off,
                            parts: mem::take(&mut parts),
                            bounce: None,
                        });
                        off += mem::take(&mut len) as u64;
                    }
                }
            }
            if !parts.is_empty() {
                pieces.push(Self {
                    off,
                    parts,
                    bounce: None,
                });
            }
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
    /// Cuts runs into pieces.
    pub(crate) fn cut(runs: &'a mut [ReadRun<'_>]) -> Vec<Self> {
        let mut pieces = Vec::new();
        for run in runs {
            let mut off = run.block * BLOCK as u64;
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
