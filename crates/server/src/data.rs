//! Requests about the content of files.

use std::sync::Arc;
use std::thread;

use quayfs_fs::{Cause, WriteAt, WriteOptions};
use quayfs_fuse::wire::{
    CopyFileRangeIn, FallocateIn, InHeader, LseekIn, LseekOut, ReadIn, WriteFlags, WriteIn,
    WriteOut,
};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_store::metrics::Metrics;

use crate::convert::{access, falloc_mode, whence};
use crate::errno::ToErrno;
use crate::service::Server;

impl Server {
    pub(super) fn read(&self, ino: u64, args: &ReadIn, out: &mut Out<'_>) -> Answer {
        Metrics::add(&self.fs.e.metrics.reads, 1);
        let most = (args.size as usize).min(out.room());
        out.fill(most, |room| {
            self.fs
                .read_as(access(args.flags), ino, args.offset, room)
                .errno()
        })
    }

    pub(super) fn write(&self, ino: u64, args: &WriteIn, data: &[u8], out: &mut Out<'_>) -> Answer {
        Metrics::add(&self.fs.e.metrics.writes, 1);
        let flags = WriteFlags::from_bits_truncate(args.write_flags);
        let kill = flags.contains(WriteFlags::KILL_SUIDGID);
        // Pages that the kernel has collected do not come from an open file.
        let cached = flags.contains(WriteFlags::CACHE);
        let append = !cached && args.flags & libc::O_APPEND.cast_unsigned() != 0;
        let written = WriteOut {
            size: data.len() as u32,
            ..WriteOut::default()
        };
        let mut place = WriteAt::Offset;
        if self.fs.e.options.atomic_writes {
            // What comes from mappings belongs to no session.
            if !cached {
                let size = || match append {
                    true => Ok(Some(self.fs.getattr(ino).errno()?.inode.size)),
                    false => Ok(None),
                };
                let most = (kill, self.fs.atomic_max());
                let piece = (args.offset, data);
                if self.atomic.buffer_write(args.fh, piece, size, most)? {
                    return out.put(&written);
                }
            }
            // Of the file's size the kernel knows what sessions believe and what others have not told it yet:
            // nothing by which to append, or to tell which bytes of a page are in the file.
            place = match (cached, append) {
                (true, _) => WriteAt::Within,
                (false, true) => WriteAt::End,
                (false, false) => WriteAt::Offset,
            };
        }
        let manner = WriteOptions {
            kill_privileges: kill,
            append,
            at: place,
        };
        let before = match place {
            WriteAt::End => Some(self.fs.getattr(ino).errno()?.inode.size),
            WriteAt::Offset | WriteAt::Within => None,
        };
        let privileged = self.fs.write_for(ino, args.offset, data, manner).errno()?;
        if let Some(before) = before.filter(|size| *size != args.offset) {
            self.appended_elsewhere(ino, before)?;
        }
        // The kernel believes in the mode that it remembers, and would execute the file by it.
        if privileged {
            self.kernel.attributes_changed(ino);
        }
        // Mode `commit`: a write to a file opened with `O_SYNC` or `O_DSYNC` is durable when it returns.
        if args.flags & (libc::O_SYNC | libc::O_DSYNC).cast_unsigned() != 0 {
            self.fs.fsync(ino).errno()?;
        }
        out.put(&written)
    }

    /// As [`Server::write`], where an earlier daemon has done it and not said so.
    pub(super) fn written_before(&self, ino: u64, args: &WriteIn, out: &mut Out<'_>) -> Answer {
        // It may have taken privileges.
        self.kernel.attributes_changed(ino);
        let cached = WriteFlags::from_bits_truncate(args.write_flags).contains(WriteFlags::CACHE);
        let append = !cached && args.flags & libc::O_APPEND.cast_unsigned() != 0;
        if self.fs.e.options.atomic_writes && append {
            // Where that was is not known any more.
            self.appended_elsewhere(ino, args.offset)?;
        }
        out.put(&WriteOut {
            size: args.size,
            ..WriteOut::default()
        })
    }

    /// The kernel forgets the pages where it believed the end of the file to be, but not those that an append has
    /// gone to. It is told of these soon, by another thread: that waits for readers of these pages, and a thread that
    /// answers requests must not.
    fn appended_elsewhere(&self, ino: u64, before: u64) -> Answer {
        let now = self.fs.getattr(ino).errno()?.inode.size;
        let changed = before.min(now)..before.max(now);
        if changed.is_empty() {
            return Ok(());
        }
        let kernel = Arc::clone(&self.kernel);
        let told = thread::Builder::new()
            .name("fuse-forget".into())
            .spawn(move || kernel.content_changed(ino, changed));
        if let Err(e) = told {
            tracing::warn!("the kernel may show what inode {ino} was before an append: {e}");
        }
        Ok(())
    }

    /// Here the kernel does not say whether the caller is to lose privileges, only who it is.
    pub(super) fn fallocate(&self, header: &InHeader, args: &FallocateIn) -> Answer {
        let (ino, by) = (header.nodeid, self.asker(header));
        let mode = falloc_mode(args.mode)?;
        let privileged = self.fs.has_privileges(ino).errno()?;
        let range = (args.offset, args.length);
        self.fs.fallocate_by(by, ino, mode, range).errno()?;
        if privileged {
            self.kernel.attributes_changed(ino);
        }
        self.sync_if_asked(ino, args.fh)
    }

    pub(super) fn lseek(&self, ino: u64, args: &LseekIn, out: &mut Out<'_>) -> Answer {
        let whence = whence(args.whence)?;
        // Negative offsets come as they are.
        if args.offset > i64::MAX.cast_unsigned() {
            return Err(Errno::new(libc::ENXIO));
        }
        let offset = self.fs.seek(ino, whence, args.offset).errno()?;
        out.put(&LseekOut { offset })
    }

    pub(super) fn copy_file_range(
        &self,
        ino: u64,
        args: &CopyFileRangeIn,
        wide: bool,
        out: &mut Out<'_>,
    ) -> Answer {
        let cause = Cause::Write {
            offset: args.off_out,
            append: false,
        };
        let privileged = self.fs.has_privileges(args.nodeid_out).errno()?;
        self.fs.drop_capabilities(args.nodeid_out, cause).errno()?;
        let copied = self
            .fs
            .copy_range(
                (ino, args.off_in),
                (args.nodeid_out, args.off_out),
                args.len,
            )
            .errno()?;
        if privileged {
            self.kernel.attributes_changed(args.nodeid_out);
        }
        self.sync_if_asked(args.nodeid_out, args.fh_out)?;
        if wide {
            return out.put(&copied);
        }
        out.put(&WriteOut {
            size: copied as u32,
            ..WriteOut::default()
        })
    }
}
