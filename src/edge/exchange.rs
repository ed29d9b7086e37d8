//! Exchanging ranges of files, in the ABI of XFS: `XFS_IOC_EXCHANGE_RANGE`, and `XFS_IOC_START_COMMIT` with
//! `XFS_IOC_COMMIT_RANGE`, which does it only if the file has not changed in between.
//!
//! The kernel knows nothing of these calls. So whatever it has collected for the two files is asked for
//! before, and it forgets what it remembers of them afterwards.

use quayfs_fuse::wire::{
    CommitRange, ExchangeFlags, ExchangeRange, InHeader, IoctlOut, handed_over,
};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::inode::Time;

use crate::edge::caller::asker;
use crate::edge::files::Files;
use crate::edge::service::Edge;
use crate::fs::{Cause, Exchange, Freshness};

impl Edge {
    /// `XFS_IOC_EXCHANGE_RANGE`.
    pub(super) fn exchange_range(
        &self,
        header: &InHeader,
        data: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let args = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
        self.exchange(header, &args, None)?;
        out.put(&IoctlOut::default())
    }

    /// `XFS_IOC_COMMIT_RANGE`.
    pub(super) fn commit_range(&self, header: &InHeader, data: &[u8], out: &mut Out<'_>) -> Answer {
        let args: CommitRange = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
        let seen = freshness_of(&args.file2_freshness).ok_or(Errno::new(libc::EINVAL))?;
        self.exchange(header, &args.range, Some(seen))?;
        out.put(&IoctlOut::default())
    }

    /// `XFS_IOC_START_COMMIT`.
    pub(super) fn start_commit(&self, ino: u64, out: &mut Out<'_>) -> Answer {
        // Else times of writes that the kernel has not sent yet would count as a change.
        self.kernel.content_changed(ino);
        let seen = self.fs.freshness(ino)?;
        out.put(&IoctlOut::default())?;
        out.put(&CommitRange {
            file2_freshness: words_of(&seen),
            ..CommitRange::default()
        })
    }

    fn exchange(
        &self,
        header: &InHeader,
        args: &ExchangeRange,
        unless_changed: Option<Freshness>,
    ) -> Result<(), Errno> {
        let flags = ExchangeFlags::from_bits(args.flags).ok_or(Errno::new(libc::EINVAL))?;
        if args.pad != 0 {
            return Err(Errno::new(libc::EINVAL));
        }
        let device = self.device.as_deref().ok_or(Errno::new(libc::EOPNOTSUPP))?;
        let files = Files::of(header.pid, device)?;
        let (one, other) = (files.writable(args.file1_fd)?, header.nodeid);
        if !files.has_writable(other)? {
            return Err(Errno::new(libc::EBADF));
        }
        if args.length == 0 && !flags.contains(ExchangeFlags::TO_EOF) {
            return Ok(());
        }
        let inodes = [one, other];
        for ino in inodes {
            self.atomic.none(ino)?;
            self.kernel.content_changed(ino);
        }
        let to_eof = flags.contains(ExchangeFlags::TO_EOF);
        let dry_run = flags.contains(ExchangeFlags::DRY_RUN);
        let what = Exchange {
            one: (one, args.file1_offset),
            other: (other, args.file2_offset),
            len: args.length,
            to_eof,
            written: flags.contains(ExchangeFlags::FILE1_WRITTEN),
            dry_run,
            unless_changed,
        };
        let by = asker(header);
        if to_eof && self.fs.e.options.writeback_cache {
            let dry_run = true;
            self.fs.exchange(by, Exchange { dry_run, ..what })?;
            // The kernel believes in no size but its own.
            let tail = |(ino, at): (u64, u64)| {
                Ok::<_, Errno>(self.fs.getattr(ino)?.inode.size.saturating_sub(at))
            };
            if tail(what.one)? != tail(what.other)? {
                return Err(Errno::new(libc::EOPNOTSUPP));
            }
        }
        if !dry_run {
            for (ino, offset) in [(one, args.file1_offset), (other, args.file2_offset)] {
                let append = false;
                self.fs
                    .drop_capabilities(ino, Cause::Write { offset, append })?;
            }
        }
        let done = self.fs.exchange(by, what);
        for ino in inodes {
            self.kernel.content_changed(ino);
        }
        done?;
        if flags.contains(ExchangeFlags::DSYNC) {
            for ino in inodes {
                self.fs.fsync(ino)?;
            }
        }
        Ok(())
    }
}

/// What the caller keeps for the second call, and cannot make use of.
fn words_of(seen: &Freshness) -> [u64; 6] {
    let nanoseconds = u64::from(seen.mtime.nsec) << 32 | u64::from(seen.ctime.nsec);
    [
        MAGIC,
        seen.ino,
        u64::from(seen.generation),
        seen.mtime.sec.cast_unsigned(),
        seen.ctime.sec.cast_unsigned(),
        nanoseconds,
    ]
}

/// What a first call has given; `None` if it was no first call.
fn freshness_of(words: &[u64; 6]) -> Option<Freshness> {
    let [magic, ino, generation, mtime, ctime, nanoseconds] = *words;
    let time = |sec: u64, nsec: u32| Time {
        sec: sec.cast_signed(),
        nsec,
    };
    (magic == MAGIC).then_some(Freshness {
        ino,
        generation: u32::try_from(generation).ok()?,
        mtime: time(mtime, (nanoseconds >> 32) as u32),
        ctime: time(ctime, nanoseconds as u32),
    })
}

/// Says that words are ours.
const MAGIC: u64 = u64::from_le_bytes(*b"QuayFSxr");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_survives_the_caller() {
        let seen = Freshness {
            ino: 9,
            generation: u32::MAX,
            mtime: Time {
                sec: -7,
                nsec: 999_999_999,
            },
            ctime: Time {
                sec: 1 << 40,
                nsec: 1,
            },
        };
        assert_eq!(freshness_of(&words_of(&seen)), Some(seen));
        assert_eq!(freshness_of(&[0; 6]), None);
    }
}
