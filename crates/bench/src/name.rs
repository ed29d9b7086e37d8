//! Names made in the measured loop, where nothing may allocate.

use std::ffi::CStr;
use std::io::Write;

/// Longest name with the zero behind it.
const ROOM: usize = 64;

/// A relative path of a fixed prefix and a number.
#[derive(Clone, Debug)]
pub struct Name {
    prefix: &'static str,
    buffer: [u8; ROOM],
}

impl Name {
    /// Names that begin with `prefix`, at most 40 bytes without zeros.
    ///
    /// # Panics
    /// If the prefix is longer or contains a zero byte.
    pub fn new(prefix: &'static str) -> Self {
        assert!(prefix.len() <= 40 && !prefix.contains('\0'), "{prefix:?}");
        Self {
            prefix,
            buffer: [0; ROOM],
        }
    }

    /// The name with this number, until the next call.
    pub fn at(&mut self, number: u64) -> &CStr {
        let mut rest = &mut self.buffer[..];
        let written = write!(rest, "{}{number}\0", self.prefix);
        debug_assert!(written.is_ok(), "prefix and digits fit");
        CStr::from_bytes_until_nul(&self.buffer).unwrap_or_default()
    }

    /// The name with this number in directory `dir`, whose path and the prefix have at most 40 bytes
    /// together.
    pub fn within(&mut self, dir: &str, number: u64) -> &CStr {
        let mut rest = &mut self.buffer[..];
        let written = write!(rest, "{dir}/{}{number}\0", self.prefix);
        debug_assert!(written.is_ok(), "directory, prefix and digits fit");
        CStr::from_bytes_until_nul(&self.buffer).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_prefix_and_number() {
        let mut name = Name::new("dir/f");
        assert_eq!(name.at(u64::MAX), c"dir/f18446744073709551615");
        assert_eq!(name.at(7), c"dir/f7");
        assert_eq!(name.at(120), c"dir/f120");
        assert_eq!(name.within("a/b", 3), c"a/b/dir/f3");
    }
}
