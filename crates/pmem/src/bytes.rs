//! Bytes of a region where they lie.

use crate::Region;
use std::fmt;

/// A range of a region, for a system call that reads it where it lies, without a copy in between. Other threads may be
/// storing there, so no slice of it is given out.
#[derive(Clone, Copy)]
pub struct Bytes<'r> {
    region: &'r Region,
    off: u64,
    len: usize,
}

impl<'r> Bytes<'r> {
    #[track_caller]
    pub(crate) fn new(region: &'r Region, off: u64, len: usize) -> Self {
        // Panics where there is nothing.
        region.address(off, len);
        Self { region, off, len }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first. All of them can be read as long as the region is there; what comes out is as with
    /// [`Region::read`].
    pub fn as_ptr(&self) -> *const u8 {
        self.region.address(self.off, self.len)
    }

    /// Copies the first `buf.len()` of them: [`Region::read`].
    ///
    /// # Panics
    /// There are not so many.
    #[track_caller]
    pub fn read(&self, buf: &mut [u8]) {
        assert!(buf.len() <= self.len, "{} bytes of {self:?}", buf.len());
        self.region.read(self.off, buf);
    }

    /// The first `at`, and the others.
    ///
    /// # Panics
    /// There are not so many.
    #[track_caller]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "{at} bytes of {self:?}");
        let first = Self { len: at, ..self };
        let others = Self {
            off: self.off + at as u64,
            len: self.len - at,
            ..self
        };
        (first, others)
    }

    /// Both in one, if `next` begins where this ends.
    pub fn join(self, next: Self) -> Option<Self> {
        let adjacent =
            std::ptr::eq(self.region, next.region) && self.off + self.len as u64 == next.off;
        adjacent.then_some(Self {
            len: self.len + next.len,
            ..self
        })
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.off, self.off + self.len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;

    fn content(bytes: Bytes<'_>) -> Vec<u8> {
        let mut buf = vec![0; bytes.len()];
        bytes.read(&mut buf);
        buf
    }

    #[test]
    fn what_is_split_and_joined_again_is_the_same() {
        let region = Region::anonymous(PAGE);
        region.write(8, b"abcdefgh");
        let all = region.bytes(8, 8);
        assert_eq!(all.as_ptr().addr() - region.bytes(0, 0).as_ptr().addr(), 8);
        for at in 0..=8 {
            let (first, others) = all.split_at(at);
            assert_eq!([content(first), content(others)].concat(), b"abcdefgh");
            let joined = first.join(others).unwrap();
            assert_eq!((joined.off, joined.len()), (8, 8));
            assert!(others.join(first).is_none(), "back to front");
        }
        // Those of another region are elsewhere, whatever their offset.
        let other = Region::anonymous(PAGE);
        assert!(all.join(other.bytes(16, 8)).is_none());
        assert!(all.join(region.bytes(16, 48)).is_some());
        assert!(all.join(region.bytes(17, 1)).is_none());
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn there_are_none_behind_the_end() {
        let _ = Region::anonymous(PAGE).bytes(PAGE - 4, 5);
    }
}
