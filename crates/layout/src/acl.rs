//! POSIX access control lists, as the values of extended attributes: version 2, the form in which
//! Linux passes them.

use crate::bytes::{get_u16, get_u32};

/// The attribute that says who may do what.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory from which new inodes in it get theirs.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Longest value. Linux reads no more, and would refuse everyone where it cannot read all.
pub const VALUE_MAX: usize = 4096;

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// The id of entries that name no user or group; also the one that no user and no group has.
const NOBODY: u32 = u32::MAX;

/// Who an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The owner of the inode.
    Owner,
    /// A user.
    User(u32),
    /// The group of the inode.
    OwningGroup,
    /// A group.
    Group(u32),
    /// Upper limit for all entries but `Owner` and `Other`.
    Mask,
    /// Everyone else.
    Other,
}

/// What a user or group may do: bits 4 (read), 2 (write), 1 (execute, search).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub who: Who,
    /// May do what.
    pub may: u32,
}

/// Why bytes are no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Of a version that is not known.
    Version,
    /// Cut short, out of order, or without an entry that must be there.
    Form,
    /// Longer than [`VALUE_MAX`].
    Length,
}

/// A list by the rules of acl(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes the value of an attribute.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(value: &[u8]) -> Result<Self, Wrong> {
        if value.len() > VALUE_MAX {
            return Err(Wrong::Length);
        }
        let entries = value.get(HEADER..).ok_or(Wrong::Form)?;
        if get_u32(value, 0) != VERSION {
            return Err(Wrong::Version);
        }
        if !entries.len().is_multiple_of(ENTRY) {
            return Err(Wrong::Form);
        }
        let entries: Option<Vec<Entry>> = entries.chunks_exact(ENTRY).map(entry).collect();
        let acl = Self(entries.ok_or(Wrong::Form)?);
        if acl.is_in_order() {
            Ok(acl)
        } else {
            Err(Wrong::Form)
        }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            let (tag, id): (u16, u32) = match e.who {
                Who::Owner => (0x01, NOBODY),
                Who::User(id) => (0x02, id),
                Who::OwningGroup => (0x04, NOBODY),
                Who::Group(id) => (0x08, id),
                Who::Mask => (0x10, NOBODY),
                Who::Other => (0x20, NOBODY),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&(e.may as u16).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// Owner, users, owning group, groups, mask, everyone else; a mask where there are users or
    /// groups. Within users and within groups Linux asks for no order.
    fn is_in_order(&self) -> bool {
        let place = |e: &Entry| match e.who {
            Who::Owner => 0,
            Who::User(_) => 1,
            Who::OwningGroup => 2,
            Who::Group(_) => 3,
            Who::Mask => 4,
            Who::Other => 5,
        };
        let count = |p| self.0.iter().filter(|e| place(e) == p).count();
        let named = count(1) + count(3) > 0;
        self.0.is_sorted_by_key(place)
            && [0, 2, 5].into_iter().all(|p| count(p) == 1)
            && (usize::from(named)..=1).contains(&count(4))
    }

    /// Whether permission bits say the same.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The permission bits that go with it: those of the group are the mask, where there is one.
    pub fn mode(&self) -> u32 {
        let class = self.group_class();
        self.0.iter().fold(0, |mode, e| match e.who {
            Who::Owner => mode | e.may << 6,
            Who::Other => mode | e.may,
            who if who == class => mode | e.may << 3,
            _ => mode,
        })
    }

    /// The entry that stands for the group in permission bits.
    fn group_class(&self) -> Who {
        let has_mask = self.0.iter().any(|e| e.who == Who::Mask);
        if has_mask {
            Who::Mask
        } else {
            Who::OwningGroup
        }
    }

    /// Takes over the permission bits of `mode`, as `chmod` does.
    pub fn set_mode(&mut self, mode: u32) {
        self.change(|may, bits| *may = bits, mode);
    }

    /// Takes away what is not in the permission bits of `mode`: a default list becomes the access list
    /// of an inode that is created with it.
    pub fn restrict(&mut self, mode: u32) {
        self.change(|may, bits| *may &= bits, mode);
    }

    fn change(&mut self, how: impl Fn(&mut u32, u32), mode: u32) {
        let class = self.group_class();
        for e in &mut self.0 {
            match e.who {
                Who::Owner => how(&mut e.may, mode >> 6 & 7),
                Who::Other => how(&mut e.may, mode & 7),
                who if who == class => how(&mut e.may, mode >> 3 & 7),
                _ => {}
            }
        }
    }
}

/// One entry. The id of an entry that names no user or group is ignored, as in Linux.
fn entry(b: &[u8]) -> Option<Entry> {
    let (tag, may, id) = (get_u16(b, 0), u32::from(get_u16(b, 2)), get_u32(b, 4));
    let named = || (id != NOBODY).then_some(id);
    let who = match tag {
        0x01 => Who::Owner,
        0x02 => Who::User(named()?),
        0x04 => Who::OwningGroup,
        0x08 => Who::Group(named()?),
        0x10 => Who::Mask,
        0x20 => Who::Other,
        _ => return None,
    };
    (may <= 7).then_some(Entry { who, may })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, may, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&may.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    const NO: u32 = u32::MAX;
    const FULL: [(u16, u16, u32); 7] = [
        (0x01, 7, NO),
        (0x02, 6, 1001),
        (0x02, 4, 1000),
        (0x04, 5, NO),
        (0x08, 2, 0),
        (0x10, 3, NO),
        (0x20, 1, NO),
    ];

    #[test]
    fn a_list_comes_back_as_it_was() {
        let bytes = value(&FULL);
        let acl = Acl::decode(&bytes).unwrap();
        assert_eq!(acl.encode(), bytes);
        assert!(!acl.is_minimal());
        assert_eq!(acl.mode(), 0o731);
        let three = Acl::decode(&value(&[(1, 6, 0), (4, 4, 0), (0x20, 0, 0)])).unwrap();
        assert!(three.is_minimal());
        assert_eq!(three.mode(), 0o640);
        // A mask without users or groups to mask says what three entries cannot.
        let mask = [(1, 6, NO), (4, 6, NO), (0x10, 4, NO), (0x20, 0, NO)];
        let mask = Acl::decode(&value(&mask)).unwrap();
        assert!(!mask.is_minimal());
        assert_eq!(mask.mode(), 0o640);
    }

    #[test]
    fn what_linux_refuses() {
        let wrong = |entries: &[(u16, u16, u32)]| Acl::decode(&value(entries)).unwrap_err();
        for i in 0..FULL.len() {
            let without: Vec<_> = [&FULL[..i], &FULL[i + 1..]].concat();
            let bytes = value(&without);
            // Named ones may be missing.
            assert_eq!(
                Acl::decode(&bytes).is_ok(),
                matches!(FULL[i].0, 2 | 8),
                "{i}"
            );
        }
        for i in 1..FULL.len() {
            let mut swapped = FULL;
            swapped.swap(i - 1, i);
            // Users among themselves may stand in any order.
            assert_eq!(Acl::decode(&value(&swapped)).is_ok(), i == 2, "{i}");
        }
        for i in [0, 3, 5, 6] {
            let mut twice = FULL.to_vec();
            twice.insert(i, FULL[i]);
            assert_eq!(wrong(&twice), Wrong::Form, "{i}");
        }
        let three = [(1, 7, NO), (4, 7, NO), (0x20, 7, NO)];
        for (i, bad) in [(0, (1, 8, NO)), (1, (5, 7, NO)), (2, (0x40, 7, NO))] {
            let mut bits = three;
            bits[i] = bad;
            assert_eq!(wrong(&bits), Wrong::Form);
        }
        let mut nobody = FULL;
        nobody[1].2 = NO;
        assert_eq!(wrong(&nobody), Wrong::Form);
        assert_eq!(wrong(&[]), Wrong::Form);
        assert_eq!(Acl::decode(&[2, 0, 0]), Err(Wrong::Form));
        let whole = value(&three);
        assert_eq!(Acl::decode(&whole[..whole.len() - 1]), Err(Wrong::Form));
        let mut old = whole;
        old[0] = 1;
        assert_eq!(Acl::decode(&old), Err(Wrong::Version));
        let many: Vec<_> = (0..510).map(|id| (0x02, 7, id)).collect();
        let tail = [(4, 7, NO), (0x10, 7, NO), (0x20, 7, NO)];
        let long = [&three[..1], &many, &tail].concat();
        assert_eq!(wrong(&long), Wrong::Length);
        let fits = [&three[..1], &many[..507], &tail].concat();
        assert_eq!(value(&fits).len(), 4092);
        Acl::decode(&value(&fits)).unwrap();
    }

    #[test]
    fn chmod_changes_the_mask_and_nobody_named() {
        let mut acl = Acl::decode(&value(&FULL)).unwrap();
        acl.set_mode(0o100_654);
        assert_eq!(acl.mode(), 0o654);
        let mut expected = FULL;
        (expected[0].1, expected[5].1, expected[6].1) = (6, 5, 4);
        assert_eq!(acl.encode(), value(&expected));
    }

    #[test]
    fn creation_takes_away_and_adds_nothing() {
        let mut acl = Acl::decode(&value(&FULL)).unwrap();
        acl.restrict(0o666);
        assert_eq!(acl.mode(), 0o620);
        let mut expected = FULL;
        (expected[0].1, expected[5].1, expected[6].1) = (6, 2, 0);
        assert_eq!(acl.encode(), value(&expected));
        let three = [(1, 7, NO), (4, 5, NO), (0x20, 5, NO)];
        let mut acl = Acl::decode(&value(&three)).unwrap();
        acl.restrict(0o640);
        assert_eq!(acl.mode(), 0o640);
        assert!(acl.is_minimal());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(
            entries in prop::collection::vec((0u16..0x41, 0u16..9, 0u32..3), 0..8),
            mode in any::<u32>(),
            cut in 0usize..9,
        ) {
            let mut bytes = value(&entries);
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            if let Ok(mut acl) = Acl::decode(&bytes) {
                prop_assert_eq!(acl.mode() & !0o777, 0);
                acl.restrict(mode);
                prop_assert_eq!(acl.mode() & !mode, 0);
                acl.set_mode(mode);
                prop_assert_eq!(acl.mode(), mode & 0o777);
                prop_assert_eq!(Acl::decode(&acl.encode()), Ok(acl));
            }
        }
    }
}
