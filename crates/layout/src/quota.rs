//! The quota table: what each project, user and group uses of the volume, and what it may use.
//!
//! An entry takes 64 bytes; a free one says that nothing is used and nothing limited. What is used is
//! changed by digest only, by what records say that is added or taken away ([`charge`]). That is the one
//! thing in a record that is not absolute, so digest counts it once: a page says up to which record it has
//! been applied.

use std::fmt;

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::node::{HEADER, PAYLOAD};

/// Bytes of an entry.
pub const SIZE: usize = 64;
/// Entries of one page.
pub const PER_PAGE: usize = PAYLOAD / SIZE;
/// Offset of the limits within an entry.
pub const OFF_LIMITS: usize = 24;
/// Bytes of the limits.
pub const LIMITS_BYTES: usize = 32;

/// Offset of the grace times within an entry; they follow the limits.
pub const OFF_GRACE: usize = OFF_LIMITS + LIMITS_BYTES;
/// Bytes of the grace times.
pub const GRACE_BYTES: usize = 8;
/// How long a soft limit may be exceeded where nothing else was set, in seconds: seven days.
pub const GRACE: u32 = 7 * 86_400;

const OFF_KIND: usize = 4;
const OFF_BLOCKS: usize = 8;
const OFF_INODES: usize = 16;

/// What has a quota: the inodes that have this number are counted, and limited, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A project; 0 is that of inodes which have none, and is not counted.
    Project(u32),
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
}

impl Subject {
    /// Its number.
    pub fn id(self) -> u32 {
        let (Self::Project(id) | Self::User(id) | Self::Group(id)) = self;
        id
    }

    /// Which kind it is of.
    pub fn kind(self) -> u8 {
        match self {
            Self::Project(_) => 0,
            Self::User(_) => 1,
            Self::Group(_) => 2,
        }
    }

    /// The subject of a kind with a number.
    pub fn of(kind: u8, id: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::Project(id),
            1 => Self::User(id),
            2 => Self::Group(id),
            _ => return None,
        })
    }

    /// The other subject of the same kind with this number.
    pub fn with_id(self, id: u32) -> Self {
        match self {
            Self::Project(_) => Self::Project(id),
            Self::User(_) => Self::User(id),
            Self::Group(_) => Self::Group(id),
        }
    }
}

/// That of no inode: project 0.
impl Default for Subject {
    fn default() -> Self {
        Self::Project(0)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Project(_) => "project",
            Self::User(_) => "user",
            Self::Group(_) => "group",
        };
        write!(f, "{kind} {}", self.id())
    }
}

/// What the inodes of a subject have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks and pages, in 4 KiB.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What a subject may have; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Blocks that are exceeded for a while at most.
    pub blocks_soft: u64,
    /// Blocks that are never exceeded.
    pub blocks: u64,
    /// Inodes that are exceeded for a while at most.
    pub inodes_soft: u64,
    /// Inodes that are never exceeded.
    pub inodes: u64,
}

impl Limits {
    /// Encodes the limits.
    pub fn encode(&self) -> [u8; LIMITS_BYTES] {
        let mut b = [0; LIMITS_BYTES];
        put_u64(&mut b, 0, self.blocks_soft);
        put_u64(&mut b, 8, self.blocks);
        put_u64(&mut b, 16, self.inodes_soft);
        put_u64(&mut b, 24, self.inodes);
        b
    }
}

/// Until when soft limits may be exceeded, in seconds since 1970; 0 where they are not. In the entry of number 0 of a
/// kind, whose soft limits are only shown: for how many seconds those of that kind may be, 0 for [`GRACE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// The limit of blocks.
    pub blocks: u32,
    /// The limit of inodes.
    pub inodes: u32,
}

impl Grace {
    /// Encodes the times.
    pub fn encode(&self) -> [u8; GRACE_BYTES] {
        let mut b = [0; GRACE_BYTES];
        put_u32(&mut b, 0, self.blocks);
        put_u32(&mut b, 4, self.inodes);
        b
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Whose it is; one of no known kind is decoded as that of project 0.
    pub subject: Subject,
    /// What it has.
    pub usage: Usage,
    /// What it may have.
    pub limits: Limits,
    /// And until when a little more.
    pub grace: Grace,
}

impl Entry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut b = [0; SIZE];
        put_u32(&mut b, 0, self.subject.id());
        b[OFF_KIND] = self.subject.kind();
        put_u64(&mut b, OFF_BLOCKS, self.usage.blocks);
        put_u64(&mut b, OFF_INODES, self.usage.inodes);
        b[OFF_LIMITS..OFF_LIMITS + LIMITS_BYTES].copy_from_slice(&self.limits.encode());
        b[OFF_GRACE..OFF_GRACE + GRACE_BYTES].copy_from_slice(&self.grace.encode());
        b
    }

    /// Decodes an entry.
    pub fn decode(b: &[u8]) -> Self {
        Self {
            subject: Subject::of(b[OFF_KIND], get_u32(b, 0)).unwrap_or_default(),
            usage: Usage {
                blocks: get_u64(b, OFF_BLOCKS),
                inodes: get_u64(b, OFF_INODES),
            },
            limits: Limits {
                blocks_soft: get_u64(b, OFF_LIMITS),
                blocks: get_u64(b, OFF_LIMITS + 8),
                inodes_soft: get_u64(b, OFF_LIMITS + 16),
                inodes: get_u64(b, OFF_LIMITS + 24),
            },
            grace: Grace {
                blocks: get_u32(b, OFF_GRACE),
                inodes: get_u32(b, OFF_GRACE + 4),
            },
        }
    }

    /// Whether another subject can have the place, whatever number is left there.
    pub fn is_free(&self) -> bool {
        let nothing = self.usage == Usage::default() && self.limits == Limits::default();
        nothing && (self.subject.id() != 0 || self.grace == Grace::default())
    }

    /// Whether a table may have such an entry: project 0 has grace times of its kind, and nothing else.
    pub fn is_possible(&self) -> bool {
        let nothing = self.usage == Usage::default() && self.limits == Limits::default();
        self.subject != Subject::default() || nothing
    }
}

/// Where entry `slot` begins in its page.
pub fn offset(slot: usize) -> usize {
    HEADER + slot * SIZE
}

/// Adds to what the subject in `slot` has, which becomes `subject`'s place if it is another one's. The
/// same change must not be applied to the same page twice.
pub fn charge(page: &mut [u8], slot: usize, subject: Subject, blocks: i64, inodes: i64) {
    let place = &mut page[offset(slot)..offset(slot) + SIZE];
    if (get_u32(place, 0), place[OFF_KIND]) != (subject.id(), subject.kind()) {
        let other = Entry {
            subject,
            ..Entry::default()
        };
        place.copy_from_slice(&other.encode());
    }
    for (at, by) in [(OFF_BLOCKS, blocks), (OFF_INODES, inodes)] {
        let sum = get_u64(place, at).saturating_add_signed(by);
        put_u64(place, at, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;

    #[test]
    fn round_trip() {
        let e = Entry {
            subject: Subject::Group(7),
            usage: Usage {
                blocks: 1,
                inodes: 2,
            },
            limits: Limits {
                blocks_soft: 3,
                blocks: 4,
                inodes_soft: 5,
                inodes: 6,
            },
            grace: Grace {
                blocks: 7,
                inodes: u32::MAX,
            },
        };
        assert_eq!(Entry::decode(&e.encode()), e);
        assert!(!e.is_free());
        let left = Entry {
            subject: Subject::User(7),
            ..Entry::default()
        };
        assert!(left.is_free() && Entry::decode(&[0; SIZE]).is_free());
    }

    #[test]
    fn grace_times_keep_the_place_of_number_0_alone() {
        let of = |subject| Entry {
            subject,
            grace: Grace {
                blocks: 1,
                inodes: 0,
            },
            ..Entry::default()
        };
        assert!(of(Subject::User(7)).is_free());
        for subject in [Subject::User(0), Subject::Project(0)] {
            assert!(!of(subject).is_free() && of(subject).is_possible());
        }
        let mut has = of(Subject::Project(0));
        has.usage.inodes = 1;
        assert!(!has.is_possible());
    }

    #[test]
    fn a_kind_that_is_unknown_is_that_of_nothing() {
        for kind in 0..=u8::MAX {
            let mut bytes = Entry::default().encode();
            (bytes[0], bytes[OFF_KIND]) = (7, kind);
            let subject = Entry::decode(&bytes).subject;
            assert_eq!(subject, Subject::of(kind, 7).unwrap_or(Subject::Project(0)));
            assert_eq!(Subject::of(kind, 7).is_some(), kind < 3);
        }
    }

    #[test]
    fn a_place_changes_hands() {
        let mut page = vec![0; BLOCK];
        let last = PER_PAGE - 1;
        let at = |page: &[u8]| Entry::decode(&page[offset(last)..]);
        charge(&mut page, last, Subject::User(7), 10, 1);
        charge(&mut page, last, Subject::User(7), -4, 1);
        let usage = Usage {
            blocks: 6,
            inodes: 2,
        };
        let now = at(&page);
        assert_eq!((now.subject, now.usage), (Subject::User(7), usage));
        page[offset(last) + OFF_LIMITS] = 9;
        // The number is the same, the kind is not.
        charge(&mut page, last, Subject::Group(7), 3, 1);
        let other = Entry {
            subject: Subject::Group(7),
            usage: Usage {
                blocks: 3,
                inodes: 1,
            },
            ..Entry::default()
        };
        assert_eq!(at(&page), other);
        charge(&mut page, last, Subject::Group(7), -9, -9);
        assert!(at(&page).is_free());
    }
}
