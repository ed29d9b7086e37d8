//! The intent table: what an operation promised and has not finished.
//!
//! An entry takes 16 bytes; a free one is all zeros. It is logged by the record that makes the
//! intent and cleared by the record that finishes it.

use crate::bytes::{get_u64, put_u64};
use crate::node::PAYLOAD;

/// Bytes of an entry.
pub const SIZE: usize = 16;
/// Entries of one page.
pub const PER_PAGE: usize = PAYLOAD / SIZE;

/// What is left to be done for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum IntentKind {
    /// No name is left: free everything once no process has it open.
    Orphan = 1,
    /// Blocks behind the end of the file are still allocated.
    Truncate = 2,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Inode number.
    pub ino: u64,
    /// What is left to be done.
    pub kind: IntentKind,
}

/// A place in the intent table holds neither zeros nor an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an intent")]
pub struct NotAnIntent;

impl Intent {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut b = [0; SIZE];
        put_u64(&mut b, 0, self.ino);
        put_u64(&mut b, 8, self.kind as u64);
        b
    }

    /// Decodes a place: `Ok(None)` if it is free, `Err` if it is neither free nor an intent.
    pub fn decode(b: &[u8]) -> Result<Option<Self>, NotAnIntent> {
        let kind = match get_u64(b, 8) {
            0 => {
                return if get_u64(b, 0) == 0 {
                    Ok(None)
                } else {
                    Err(NotAnIntent)
                };
            }
            1 => IntentKind::Orphan,
            2 => IntentKind::Truncate,
            _ => return Err(NotAnIntent),
        };
        Ok(Some(Self {
            ino: get_u64(b, 0),
            kind,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for kind in [IntentKind::Orphan, IntentKind::Truncate] {
            let i = Intent { ino: 7, kind };
            assert_eq!(Intent::decode(&i.encode()), Ok(Some(i)));
        }
        assert_eq!(Intent::decode(&[0; SIZE]), Ok(None));
        assert_eq!(Intent::decode(&[9; SIZE]), Err(NotAnIntent));
    }
}
