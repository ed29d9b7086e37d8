//! Exchanging ranges of files, in the ABI of XFS: `XFS_IOC_EXCHANGE_RANGE`, and `XFS_IOC_START_COMMIT` with
//! `XFS_IOC_COMMIT_RANGE`, which does it only if the file has not changed in between. Option `atomic_writes`.
//!
//! The kernel knows nothing of these calls. So what mappings have changed in the ranges is asked for before, and
//! the kernel forgets what it remembers of them afterwards. All of this waits for the kernel.

use std::ops::Range;

use quayfs_fs::data::write::SIZE_MAX;
use quayfs_fs::{Cause, Exchange, Freshness};
use quayfs_fuse::wire::{
    CommitRange, ExchangeFlags, ExchangeRange, InHeader, IoctlIn, IoctlOut, handed_over,
};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::Ino;
use quayfs_layout::inode::Time;
use quayfs_store::error::FsError;

use crate::errno::{ToErrno, errno};
use crate::files::{pin, reads_and_writes};
use crate::service::Server;

/// Set in the number of an open file whose ranges may be exchanged.
const EXCHANGEABLE: u64 = 1 << 63;

/// The number of a file that is opened with these flags: `number` with a mark where it may be exchanged.
pub(super) fn marked(number: u64, flags: u32) -> u64 {
    if reads_and_writes(flags) {
        number | EXCHANGEABLE
    } else {
        number
    }
}

/// A range, and the file that it is in.
#[derive(Clone, Debug)]
struct Part {
    ino: Ino,
    bytes: Range<u64>,
}

impl Server {
    /// `XFS_IOC_EXCHANGE_RANGE`.
    pub(super) fn exchange_range(
        &self,
        header: &InHeader,
        (args, data): (&IoctlIn, &[u8]),
        out: &mut Out<'_>,
    ) -> Answer {
        self.offers_atomic_writes()?;
        let range = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
        self.exchange(header, (args.fh, &range), None)?;
        out.put(&IoctlOut::default())
    }

    /// `XFS_IOC_COMMIT_RANGE`.
    pub(super) fn commit_range(
        &self,
        header: &InHeader,
        (args, data): (&IoctlIn, &[u8]),
        out: &mut Out<'_>,
    ) -> Answer {
        self.offers_atomic_writes()?;
        let what: CommitRange = handed_over(data).ok_or(Errno::new(libc::EINVAL))?;
        let seen = freshness_of(&what.file2_freshness).ok_or(Errno::new(libc::EINVAL))?;
        self.exchange(header, (args.fh, &what.range), Some(seen))?;
        out.put(&IoctlOut::default())
    }

    /// `XFS_IOC_START_COMMIT`.
    pub(super) fn start_commit(&self, ino: u64, fh: u64, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        // A caller that may only read must not touch what the kernel remembers for others.
        if fh & EXCHANGEABLE == 0 {
            return Err(Errno::new(libc::EBADF));
        }
        // Else what mappings have changed before would count as a change afterwards.
        self.kernel.content_changed(ino, 0..SIZE_MAX);
        let seen = self.fs.freshness(ino).errno()?;
        out.put(&IoctlOut::default())?;
        out.put(&CommitRange {
            file2_freshness: words_of(&seen),
            ..CommitRange::default()
        })
    }

    fn exchange(
        &self,
        header: &InHeader,
        (fh, args): (u64, &ExchangeRange),
        mut unless_changed: Option<Freshness>,
    ) -> Result<(), Errno> {
        let flags = ExchangeFlags::from_bits(args.flags).ok_or(Errno::new(libc::EINVAL))?;
        if args.pad != 0 {
            return Err(Errno::new(libc::EINVAL));
        }
        let device = self.device.as_ref().ok_or(Errno::new(libc::EOPNOTSUPP))?;
        // The kernel keeps the number of file 1 from standing for another one as long as it is pinned.
        let one = pin(&self.outside, (header.pid, args.file1_fd), device)?;
        if fh & EXCHANGEABLE == 0 {
            return Err(Errno::new(libc::EBADF));
        }
        let other = header.nodeid;
        if args.length == 0 && !flags.contains(ExchangeFlags::TO_EOF) {
            return Ok(());
        }
        let by = self.asker(header);
        let what = |unless_changed, dry_run| Exchange {
            one: (one.ino, args.file1_offset),
            other: (other, args.file2_offset),
            len: args.length,
            to_eof: flags.contains(ExchangeFlags::TO_EOF),
            written: flags.contains(ExchangeFlags::FILE1_WRITTEN),
            dry_run,
            unless_changed,
        };
        let parts = [
            part(one.ino, args.file1_offset, args, flags)?,
            part(other, args.file2_offset, args, flags)?,
        ];
        for part in &parts {
            self.kernel.content_changed(part.ino, part.bytes.clone());
        }
        if unless_changed.is_some() {
            // A change by a mapping is one, wherever in the file.
            self.kernel.content_changed(other, 0..SIZE_MAX);
        }
        // Nothing is taken away for what is refused.
        self.fs.exchange(&by, what(unless_changed, true)).errno()?;
        if flags.contains(ExchangeFlags::DRY_RUN) {
            return Ok(());
        }
        for part in &parts {
            self.drop_capabilities_of(part, &mut unless_changed)?;
        }
        let sizes = self.sizes(&parts)?;
        self.fs.exchange(&by, what(unless_changed, false)).errno()?;
        self.exchanged(&parts, sizes, flags)
    }

    /// As [`Server::exchange`], where an earlier daemon has done it and not said so.
    pub(super) fn exchanged_before(
        &self,
        header: &InHeader,
        args: &ExchangeRange,
    ) -> Result<(), Errno> {
        let flags = ExchangeFlags::from_bits(args.flags).ok_or(Errno::new(libc::EINVAL))?;
        let device = self.device.as_ref().ok_or(Errno::new(libc::EOPNOTSUPP))?;
        let one = pin(&self.outside, (header.pid, args.file1_fd), device)?;
        let parts = [
            part(one.ino, args.file1_offset, args, flags)?,
            part(header.nodeid, args.file2_offset, args, flags)?,
        ];
        // Which of them has grown is not known any more.
        self.exchanged(&parts, [0; 2], flags)
    }

    /// The kernel learns of it. `sizes`: those that it may remember.
    fn exchanged(
        &self,
        parts: &[Part; 2],
        sizes: [u64; 2],
        flags: ExchangeFlags,
    ) -> Result<(), Errno> {
        for part in parts {
            self.kernel.attributes_changed(part.ino);
        }
        for ((part, before), now) in parts.iter().zip(sizes).zip(self.sizes(parts)?) {
            if now > before {
                self.kernel.grown(part.ino, now);
            }
            self.kernel.content_changed(part.ino, part.bytes.clone());
        }
        if flags.contains(ExchangeFlags::DSYNC) {
            for part in parts {
                self.fs.fsync(part.ino).errno()?;
            }
        }
        Ok(())
    }

    fn sizes(&self, parts: &[Part; 2]) -> Result<[u64; 2], Errno> {
        let size = |part: &Part| Ok::<_, Errno>(self.fs.getattr(part.ino).errno()?.inode.size);
        Ok([size(&parts[0])?, size(&parts[1])?])
    }

    /// This changes the file's times, by which it is known whether another caller has changed the file. From then on,
    /// the time of the last change of attributes is compared with its new value.
    fn drop_capabilities_of(
        &self,
        part: &Part,
        unless_changed: &mut Option<Freshness>,
    ) -> Result<(), Errno> {
        let before = self.fs.freshness(part.ino).errno()?;
        let (offset, append) = (part.bytes.start, false);
        self.fs
            .drop_capabilities(part.ino, Cause::Write { offset, append })
            .errno()?;
        let now = self.fs.freshness(part.ino).errno()?;
        match unless_changed {
            Some(seen) if seen.ino == part.ino && now != before => {
                if *seen != before || now.mtime != before.mtime {
                    return Err(errno(&FsError::Busy));
                }
                *seen = now;
            }
            _ => (),
        }
        Ok(())
    }
}

/// What changes in a file. To its end: whatever that becomes.
fn part(ino: Ino, offset: u64, args: &ExchangeRange, flags: ExchangeFlags) -> Result<Part, Errno> {
    let end = if flags.contains(ExchangeFlags::TO_EOF) {
        Some(SIZE_MAX)
    } else {
        offset.checked_add(args.length)
    };
    let end = end.filter(|end| offset < *end && *end <= SIZE_MAX);
    let end = end.ok_or(Errno::new(libc::EINVAL))?;
    Ok(Part {
        ino,
        bytes: offset..end,
    })
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

    #[test]
    fn the_kernel_forgets_what_changes_and_no_more() {
        let args = ExchangeRange {
            length: 8192,
            ..ExchangeRange::default()
        };
        let bytes = |offset, args, flags| {
            let part = part(7, offset, args, flags);
            part.map(|p| p.bytes).map_err(Errno::number)
        };
        let plain = ExchangeFlags::empty();
        assert_eq!(bytes(4096, &args, plain), Ok(4096..12288));
        let tail = ExchangeFlags::TO_EOF;
        assert_eq!(bytes(4096, &args, tail), Ok(4096..SIZE_MAX));
        for offset in [u64::MAX, SIZE_MAX, SIZE_MAX - 8191] {
            assert_eq!(bytes(offset, &args, plain), Err(libc::EINVAL));
        }
    }

    #[test]
    fn only_what_is_open_for_reading_and_writing_is_marked() {
        let bits = |flags: i32| marked(5, flags.cast_unsigned());
        assert_eq!(bits(libc::O_RDWR), 5 | EXCHANGEABLE);
        for flags in [
            libc::O_RDONLY,
            libc::O_WRONLY,
            libc::O_RDWR | libc::O_APPEND,
        ] {
            assert_eq!(bits(flags), 5);
        }
    }
}
