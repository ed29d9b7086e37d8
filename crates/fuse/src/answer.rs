//! Answers, written where the transport wants them.

use std::fmt;

use zerocopy::{Immutable, IntoBytes};

use crate::wire::{Dirent, EntryOut};

/// Answers that carry no content are at most this long.
pub const SHORT: usize = 512;

/// An errno other than 0, as the kernel hands it to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// `ENOSYS`: for most requests the kernel takes note, and never sends that kind again.
    pub const NOSYS: Self = Self(libc::ENOSYS);
    /// `EIO`.
    pub const IO: Self = Self(libc::EIO);

    /// The errno with this number; a number that is none becomes `EIO`.
    pub fn new(number: i32) -> Self {
        if (1..512).contains(&number) {
            Self(number)
        } else {
            Self::IO
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// What a [`crate::Service`] makes of a request.
pub type Answer = Result<(), Errno>;

/// Where the content of an answer goes: the very buffer that the kernel reads.
#[derive(Debug)]
pub struct Out<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    /// An empty answer with this much room.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it holds.
    pub fn content(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.room.len() - self.len
    }

    /// Appends a structure.
    ///
    /// # Errors
    /// `EIO` where it does not fit, which no transport lets happen for what the kernel asked for.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Answer {
        self.bytes(value.as_bytes())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `EIO` where they do not fit.
    pub fn bytes(&mut self, bytes: &[u8]) -> Answer {
        let to = self
            .room
            .get_mut(self.len..self.len + bytes.len())
            .ok_or(Errno::IO)?;
        to.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Lets `fill` write up to `most` bytes in place; it says how many it wrote.
    ///
    /// # Errors
    /// What `fill` says; `EIO` where `most` bytes do not fit.
    pub fn fill<E: From<Errno>>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let room = self
            .room
            .get_mut(self.len..self.len + most)
            .ok_or(Errno::IO)?;
        let wrote = fill(room)?;
        self.len += wrote.min(most);
        Ok(())
    }

    /// Forgets what was appended.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// A listing, entry by entry, as long as the kernel's buffer has room.
#[derive(Debug)]
pub struct Listing<'o, 'a> {
    out: &'o mut Out<'a>,
    most: usize,
}

impl<'o, 'a> Listing<'o, 'a> {
    /// A listing of at most `size` bytes.
    pub fn new(out: &'o mut Out<'a>, size: u32) -> Self {
        let most = (size as usize).min(out.room());
        Self { out, most }
    }

    /// Bytes that a name of this length takes, with its inode.
    pub fn entry_size(name: usize) -> usize {
        (size_of::<Dirent>() + size_of::<EntryOut>() + name).next_multiple_of(8)
    }

    /// Appends a name. `next`: where to go on after it. False if it does not fit any more.
    pub fn name(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.append(None, ino, next, kind, name)
    }

    /// Appends a name with its inode. False if it does not fit any more.
    pub fn entry(&mut self, entry: &EntryOut, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.append(Some(entry), ino, next, kind, name)
    }

    fn append(
        &mut self,
        entry: Option<&EntryOut>,
        ino: u64,
        next: u64,
        kind: u8,
        name: &[u8],
    ) -> bool {
        let head = size_of::<Dirent>() + entry.map_or(0, |_| size_of::<EntryOut>());
        let size = (head + name.len()).next_multiple_of(8);
        if self.out.len() + size > self.most {
            return false;
        }
        let dirent = Dirent {
            ino,
            off: next,
            namelen: name.len() as u32,
            kind: u32::from(kind),
        };
        let padding = &[0; 8][..size - head - name.len()];
        let written = entry
            .map_or(Ok(()), |e| self.out.put(e))
            .and_then(|()| self.out.put(&dirent))
            .and_then(|()| self.out.bytes(name))
            .and_then(|()| self.out.bytes(padding));
        written.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn a_listing_ends_where_the_kernels_buffer_does() {
        let mut room = [0xff; 4096];
        let mut out = Out::new(&mut room);
        let mut listing = Listing::new(&mut out, 100);
        assert!(listing.name(5, 1, 8, b"abc"));
        assert!(listing.name(6, 2, 4, b"12345678"));
        // 32 + 32 bytes are used; 24 + 13 would make 40 and end at 104.
        assert!(!listing.name(7, 3, 8, b"1234567890123"));
        assert!(listing.name(7, 3, 8, b"0123456"));
        assert_eq!(out.len(), 96);
        let (first, rest) = Dirent::read_from_prefix(&room).unwrap();
        assert_eq!(
            (first.ino, first.off, first.namelen, first.kind),
            (5, 1, 3, 8)
        );
        assert_eq!(&rest[..8], b"abc\0\0\0\0\0");
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_changes_nothing() {
        let mut room = [0; 8];
        let mut out = Out::new(&mut room);
        assert_eq!(out.bytes(b"12345"), Ok(()));
        assert_eq!(out.bytes(b"6789"), Err(Errno::IO));
        assert_eq!(out.len(), 5);
        let filled: Result<(), Errno> = out.fill(3, |to| {
            to.copy_from_slice(b"678");
            Ok(2)
        });
        assert_eq!(filled, Ok(()));
        assert_eq!(out.len(), 7);
        assert_eq!(&room, b"12345678");
    }

    #[test]
    fn no_errno_is_out_of_range() {
        assert_eq!(Errno::new(libc::ENOENT).number(), libc::ENOENT);
        for odd in [0, -2, 512, i32::MAX, i32::MIN] {
            assert_eq!(Errno::new(odd), Errno::IO);
        }
    }
}
