//! What the next daemon is asked to do with the volume before it goes on with the mount: to give one of its media another
//! size.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;

use crate::requests::{Requests, WISH};

/// One of the two media of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The data device.
    Data,
    /// The pmem region.
    Pmem,
}

/// A size that a medium is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which one.
    pub medium: Medium,
    /// In blocks of 4 KiB, less than [`MOST_BLOCKS`]; `None`: as long as the device or file is.
    pub blocks: Option<u64>,
}

/// The number of blocks of a [`Wish`] is below.
pub const MOST_BLOCKS: u64 = (1 << 62) - 1;

/// Set in a word that holds a wish.
const THERE: u64 = 1 << 63;
/// It is about the region.
const PMEM: u64 = 1 << 62;

impl Wish {
    fn encode(self) -> u64 {
        let medium = match self.medium {
            Medium::Data => 0,
            Medium::Pmem => PMEM,
        };
        THERE | medium | self.blocks.unwrap_or(MOST_BLOCKS).min(MOST_BLOCKS)
    }

    fn decode(word: u64) -> Option<Self> {
        let medium = match word & PMEM {
            0 => Medium::Data,
            _ => Medium::Pmem,
        };
        let blocks = Some(word & MOST_BLOCKS).filter(|blocks| *blocks < MOST_BLOCKS);
        (word & THERE != 0).then_some(Self { medium, blocks })
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medium = match self.medium {
            Medium::Data => "data",
            Medium::Pmem => "pmem",
        };
        match self.blocks {
            Some(blocks) => write!(f, "{medium} {blocks}"),
            None => write!(f, "{medium} max"),
        }
    }
}

impl FromStr for Wish {
    type Err = ();

    /// The reverse of `Display`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (medium, size) = text.split_once(' ').ok_or(())?;
        let medium = match medium {
            "data" => Medium::Data,
            "pmem" => Medium::Pmem,
            _ => return Err(()),
        };
        let blocks = match size {
            "max" => None,
            n => Some(n.parse().ok().filter(|n| *n < MOST_BLOCKS).ok_or(())?),
        };
        Ok(Self { medium, blocks })
    }
}

impl Requests {
    /// Asks the next daemon for something. `false`, and nothing changes, if it is to do something already.
    #[must_use]
    pub fn wish(&self, wish: Wish) -> bool {
        let word = self.words.at(WISH);
        let free = word.compare_exchange(0, wish.encode(), Ordering::AcqRel, Ordering::Acquire);
        free.is_ok()
    }

    /// Whether there is a wish.
    pub fn has_wish(&self) -> bool {
        self.words.at(WISH).load(Ordering::Acquire) != 0
    }

    /// What the last daemon was asked for, once: a daemon that dies of it is not followed by others that do.
    pub fn take_wish(&self) -> Option<Wish> {
        Wish::decode(self.words.at(WISH).swap(0, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Wish; 4] = [
        Wish {
            medium: Medium::Data,
            blocks: Some(0),
        },
        Wish {
            medium: Medium::Data,
            blocks: None,
        },
        Wish {
            medium: Medium::Pmem,
            blocks: Some(MOST_BLOCKS - 1),
        },
        Wish {
            medium: Medium::Pmem,
            blocks: None,
        },
    ];

    #[test]
    fn a_wish_is_left_to_the_next_daemon_once() {
        for wish in ALL {
            let requests = Requests::new().unwrap();
            assert!(!requests.has_wish());
            assert!(requests.wish(wish));
            assert!(!requests.wish(wish), "one at a time");
            let next = Requests::left(requests.file().try_clone().unwrap()).unwrap();
            assert!(next.has_wish());
            assert_eq!(next.take_wish(), Some(wish));
            assert_eq!((next.take_wish(), requests.has_wish()), (None, false));
            assert_eq!(requests.number(), 1, "the word beside it is another one");
        }
    }

    #[test]
    fn it_is_read_as_it_is_written() {
        for wish in ALL {
            assert_eq!(wish.to_string().parse(), Ok(wish));
        }
        let too_many = format!("data {MOST_BLOCKS}");
        for other in ["", "data", "data -1", "data x", "other 5", &too_many] {
            assert_eq!(other.parse::<Wish>(), Err(()), "{other}");
        }
    }
}
