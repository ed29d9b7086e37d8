//! The units in which a medium takes stores.

/// Bytes in a cache line: the unit of flushing, and of rule 3 of the persistence model.
pub const LINE: u64 = 64;

/// Lengths of regions are multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// Bytes in a sector: what a data device writes as a whole, by rule 8 of the persistence model.
pub const SECTOR: u64 = 512;

/// The offsets of the lines that `len` bytes at `off` touch, ascending: what a flush of that range
/// writes back. None if `len` is 0.
pub fn lines(off: u64, len: u64) -> impl Iterator<Item = u64> {
    let first = off / LINE;
    let end = if len == 0 {
        first
    } else {
        (off + len).div_ceil(LINE)
    };
    (first..end).map(|line| line * LINE)
}

/// The size of the first atom of `len` bytes at an offset or address `at`; `len` is not 0.
pub(crate) fn first_atom(at: u64, len: u64) -> u64 {
    1 << at.trailing_zeros().min(len.ilog2()).min(3)
}

/// The offsets and lengths of the stores that `len` bytes at `off` are made of, ascending. Each is as
/// large as its alignment allows, up to 8 bytes, and reaches the medium as a whole or not at all.
pub fn atoms(off: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (off, off + len);
    std::iter::from_fn(move || {
        let size = (at < end).then(|| first_atom(at, end - at))?;
        at += size;
        Some((at - size, size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atoms_are_aligned_contiguous_and_as_large_as_can_be() {
        for off in 0..24 {
            for len in 0..40 {
                let mut at = off;
                for (start, size) in atoms(off, len) {
                    assert_eq!(start, at);
                    assert!([1, 2, 4, 8].contains(&size) && start % size == 0);
                    let double = size * 2;
                    assert!(size == 8 || start % double != 0 || start + double > off + len);
                    at += size;
                }
                assert_eq!(at, off + len);
            }
        }
    }

    #[test]
    fn no_atom_crosses_a_line() {
        for (start, size) in atoms(3, 1000) {
            assert_eq!(start / LINE, (start + size - 1) / LINE);
        }
    }

    #[test]
    fn lines_cover_exactly_what_a_flush_touches() {
        for off in 0..3 * LINE {
            for len in 0..3 * LINE {
                let covered: Vec<u64> = lines(off, len).collect();
                let touched = |line: &u64| (0..len).any(|i| (off + i) / LINE * LINE == *line);
                let expected: Vec<u64> = (0..8).map(|i| i * LINE).filter(touched).collect();
                assert_eq!(covered, expected, "{len} bytes at {off}");
            }
        }
    }
}
