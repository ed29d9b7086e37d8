//! read, write, copy_file_range.

use std::cell::Cell;
use std::ops::Range;

use quayfs_layout::inode::{FLAG_SYNC, Inode, S_ISGID, S_ISUID};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::{FsError, Result};
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::quota;

use crate::data::atomic;
use crate::data::read::{self, Want};
use crate::data::write::{self, Request, SIZE_MAX};
use crate::{Access, Cause, Fs, extents};

pub use crate::data::write::WriteAt;
pub use crate::ops::space::{FallocMode, Whence};

const B: u64 = BLOCK as u64;

/// How a write is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Set-user-id and set-group-id bits are cleared.
    pub kill_privileges: bool,
    /// The writer opened the file with `O_APPEND`. Only such a writer may write to an append-only file.
    pub append: bool,
    /// Where it goes.
    pub at: WriteAt,
}

thread_local! {
    /// Bytes that the last append of this thread had written when it met a limit.
    static APPENDED: Cell<usize> = const { Cell::new(0) };
}

/// Whether the mode has bits that are lost by writing.
fn is_privileged(i: &Inode) -> bool {
    i.mode & (S_ISUID | S_ISGID) != 0
}

impl Fs {
    /// Reads up to `len` bytes; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let n = self.read_into(ino, offset, &mut out)?;
        out.truncate(n);
        Ok(out)
    }

    /// Reads as many bytes as `out` has room for, fewer at the end of the file, and says how many.
    /// What follows them in `out` is undefined.
    pub fn read_into(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_as(Access::Noted, ino, offset, out)
    }

    /// As [`Fs::read_into`].
    pub fn read_as(&self, access: Access, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize> {
        let handle = self.handle(ino)?;
        let n = self.read_handle(&handle, offset, out)?;
        Metrics::add(&self.e.metrics.bytes_read, n as u64);
        if access == Access::Noted {
            self.touch_atime(&handle);
        }
        Ok(n)
    }

    fn read_handle(&self, handle: &InodeHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        extents::ensure(&self.e, handle)?;
        let _op = handle.lock.read();
        let end = offset.saturating_add(out.len() as u64);
        let range = handle
            .range
            .read(offset / B * B..end.div_ceil(B).saturating_mul(B).max(1));
        if range.waited() {
            Metrics::add(&self.e.metrics.range_waits, 1);
        }
        let size = handle.with(|i| i.size);
        let end = end.min(size);
        if offset >= end {
            return Ok(0);
        }
        let len = (end - offset) as usize;
        let (first, last) = (offset / B, end.div_ceil(B));
        let whole = ((last - first) * B) as usize;
        // Blocks are verified whole; mostly they are asked for whole.
        if offset.is_multiple_of(B) && whole <= out.len() {
            self.read_blocks(handle, first..last, &mut out[..whole])?;
        } else {
            let mut blocks = vec![0; whole];
            self.read_blocks(handle, first..last, &mut blocks)?;
            let skip = (offset - first * B) as usize;
            out[..len].copy_from_slice(&blocks[skip..skip + len]);
        }
        Ok(len)
    }

    fn read_blocks(&self, handle: &InodeHandle, blocks: Range<u64>, out: &mut [u8]) -> Result<()> {
        let first = blocks.start;
        let at = |block: u64| ((block - first) * B) as usize;
        let mut wants = Vec::with_capacity(out.len() / BLOCK);
        for p in extents::with(handle, |x| x.pieces(blocks))? {
            let Some(lbn) = p.lbn else {
                out[at(p.blocks.start)..at(p.blocks.end)].fill(0);
                continue;
            };
            wants.extend(p.blocks.enumerate().map(|(k, block)| Want {
                lbn: lbn + k as u64,
                at: at(block),
            }));
        }
        read::blocks(&self.e, &wants, out).inspect_err(|err| self.could_not_read(handle.ino, err))
    }

    fn could_not_read(&self, ino: Ino, err: &FsError) {
        tracing::error!("inode {ino}: {err}");
        Metrics::add(&self.e.metrics.read_errors, 1);
        self.e.watch().note(&format_args!("inode {ino}: {err}"));
    }

    /// Most bytes that are written by one record.
    pub fn request_max(&self) -> usize {
        write::request_max(&self.e)
    }

    /// Writes all of `data`. Each piece of up to [`Fs::request_max`] bytes is atomic, and durable
    /// in mode `op` when this returns.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_privileges: bool) -> Result<()> {
        let manner = WriteOptions {
            kill_privileges,
            ..WriteOptions::default()
        };
        let handle = self.handle(ino)?;
        self.write_handle(&handle, offset, data, manner)
    }

    /// Whether a write could clear bits of the mode.
    pub fn has_privileges(&self, ino: Ino) -> Result<bool> {
        Ok(self.handle_and(ino, is_privileged)?.1)
    }

    /// As [`Fs::write`], by a writer that opened the file with `O_APPEND`. Only such a writer may write to an
    /// append-only file.
    pub fn append(&self, ino: Ino, offset: u64, data: &[u8], kill_privileges: bool) -> Result<()> {
        let manner = WriteOptions {
            kill_privileges,
            append: true,
            ..WriteOptions::default()
        };
        let handle = self.handle(ino)?;
        self.write_handle(&handle, offset, data, manner)
    }

    /// As [`Fs::write`], on behalf of another process and in its manner: the file loses its capabilities before the
    /// write. Returns whether the mode had bits to lose.
    pub fn write_for(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        manner: WriteOptions,
    ) -> Result<bool> {
        let look = |i: &Inode| {
            let privileged = manner.kill_privileges && is_privileged(i);
            (privileged, i.xattr != 0, i.size)
        };
        let (handle, (privileged, attributes, size)) = self.handle_and(ino, look)?;
        if attributes {
            let offset = match manner.at {
                WriteAt::End => size,
                WriteAt::Offset | WriteAt::Within => offset,
            };
            let append = manner.append;
            self.drop_capabilities(ino, Cause::Write { offset, append })?;
        }
        self.write_handle(&handle, offset, data, manner)?;
        Ok(privileged)
    }

    fn write_handle(
        &self,
        handle: &InodeHandle,
        offset: u64,
        data: &[u8],
        manner: WriteOptions,
    ) -> Result<()> {
        self.finish_left_truncate(handle.ino)?;
        let max = self.request_max();
        // What has been appended is not appended again: by a daemon that has died, or before a limit was met that does not
        // hold for the caller.
        let appended = APPENDED.take();
        let from = if quota::is_exempt() { appended } else { 0 };
        let mut at = usize::try_from(quayfs_restart::come_so_far())
            .unwrap_or(0)
            .max(from);
        while at < data.len() {
            let mut pos = offset.checked_add(at as u64).ok_or(FsError::FileTooBig)?;
            let mut end = data.len();
            match manner.at {
                WriteAt::Offset => (),
                WriteAt::End => pos = handle.with(|i| i.size),
                WriteAt::Within => {
                    let inside = handle.with(|i| i.size).saturating_sub(offset);
                    end = end.min(inside.min(data.len() as u64) as usize);
                    if at >= end {
                        break;
                    }
                }
            }
            // Pieces end at block boundaries, so that none but the last is completed by a read.
            let room = max - (pos % B) as usize;
            let piece = &data[at..(at + room).min(end)];
            let req = Request {
                offset: pos,
                data: piece,
                kill_privileges: manner.kill_privileges,
                append: manner.append,
                at: manner.at,
            };
            quayfs_restart::progress((at + piece.len()) as u64);
            let done = write::write(&self.e, handle, req).inspect_err(|err| {
                tracing::debug!("write to inode {}: {err}", handle.ino);
                if *err == FsError::Quota && manner.at == WriteAt::End {
                    APPENDED.set(at);
                }
            })?;
            if done {
                at += piece.len();
            }
        }
        self.sync_if_flagged(handle, FLAG_SYNC)
    }

    /// Most blocks that [`Fs::write_together`] writes.
    pub fn atomic_max(&self) -> usize {
        atomic::blocks_max(&self.e)
    }

    /// Writes several ranges, in order, as one record: after any crash all of them are there or none, durably in mode
    /// `op` when this returns. With `kill_privileges`, as for a write on behalf of another process.
    ///
    /// # Errors
    /// [`FsError::TooManyExtents`] if they touch more than [`Fs::atomic_max`] blocks. Nothing is written then,
    /// nor with any other error.
    pub fn write_together(
        &self,
        ino: Ino,
        pieces: &[(u64, &[u8])],
        kill_privileges: bool,
    ) -> Result<()> {
        let handle = self.handle(ino)?;
        if let Some((offset, _)) = pieces.first()
            && handle.with(|i| i.xattr != 0)
        {
            let (offset, append) = (*offset, false);
            self.drop_capabilities(ino, Cause::Write { offset, append })?;
        }
        self.finish_left_truncate(ino)?;
        atomic::write(&self.e, &handle, pieces, kill_privileges)?;
        self.sync_if_flagged(&handle, FLAG_SYNC)
    }

    /// A file was closed: LBNs taken ahead for its next append go back.
    pub fn release(&self, ino: Ino) {
        if let Ok(handle) = self.handle(ino)
            && let Some(w) = handle.window.lock().take()
        {
            self.e.return_window(w);
        }
    }

    /// Copies bytes from one file to another, or within one, without the caller touching them.
    /// Copies at most one request's worth and says how much it was.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        if to.1 > SIZE_MAX || len > SIZE_MAX - to.1 {
            return Err(FsError::FileTooBig);
        }
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return Err(FsError::Invalid);
        }
        let n = len.min(self.request_max() as u64) as usize;
        let source = self.handle(from.0)?;
        let mut data = vec![0; n];
        let n = self.read_handle(&source, from.1, &mut data)?;
        self.write(to.0, to.1, &data[..n], true)?;
        Ok(n as u64)
    }
}
