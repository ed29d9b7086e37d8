//! Names of extended attributes: which there can be, and how much of an inode's room each kind may take.

use quayfs_layout::acl;
use quayfs_layout::xattr::{SET_MAX, Set};

use quayfs_store::error::{FsError, Result};

/// Most bytes of the attributes in `user.`, which may be set with no more than the right to write to the inode.
const USER_MAX: usize = 112 << 10;
/// Most bytes of all attributes but access control lists: both of those fit beside them.
const OTHERS_MAX: usize = 116 << 10;

const _: () = {
    let list = acl::VALUE_MAX + entry_bytes(acl::DEFAULT, &[]);
    assert!(OTHERS_MAX + 2 * list <= SET_MAX);
};

/// What an attribute is to Linux, and so who may set it. No kind takes the room of the kinds after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// `user.`: a caller that may write to the inode.
    User,
    /// `trusted.` and `security.`: a caller that has the capability for it.
    Privileged,
    /// An access control list: the owner.
    List,
}

/// What an attribute of this name is.
///
/// # Errors
/// As on other file systems of Linux: [`FsError::NotSupported`] for a name of no known kind, [`FsError::Invalid`] for
/// a prefix with nothing behind it.
pub(super) fn kind(name: &[u8]) -> Result<Kind> {
    if is_list(name) {
        return Ok(Kind::List);
    }
    let kinds: [(&[u8], Kind); 3] = [
        (b"user.", Kind::User),
        (TRUSTED, Kind::Privileged),
        (b"security.", Kind::Privileged),
    ];
    let of = |(prefix, kind): &(&[u8], Kind)| Some((name.strip_prefix(*prefix)?, *kind));
    match kinds.iter().find_map(of) {
        Some((b"", _)) => Err(FsError::Invalid),
        Some((_, kind)) => Ok(kind),
        None => Err(FsError::NotSupported),
    }
}

/// Whether this is an access control list.
pub(super) fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

const TRUSTED: &[u8] = b"trusted.";

/// Whether an attribute is hidden from callers without privileges. The kernel keeps its content from them; whether
/// they may know of it is for the file system to decide.
pub(super) fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(TRUSTED)
}

const fn entry_bytes(name: &[u8], value: &[u8]) -> usize {
    5 + name.len() + value.len()
}

/// Refuses a set in which attributes take the room of others, one of this kind having been set.
pub(super) fn leaves_room(set: &Set, changed: Kind) -> Result<()> {
    let taken = |most: Kind| -> usize {
        let counts = |name: &[u8]| kind(name).unwrap_or(Kind::User) <= most;
        let entries = set.iter().filter(|(name, _)| counts(name));
        entries.map(|(name, value)| entry_bytes(name, value)).sum()
    };
    let full = match changed {
        Kind::User => taken(Kind::User) > USER_MAX || taken(Kind::Privileged) > OTHERS_MAX,
        Kind::Privileged => taken(Kind::Privileged) > OTHERS_MAX,
        Kind::List => false,
    };
    if full { Err(FsError::NoSpace) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_linux() {
        for (name, is) in [
            ("user.x", Ok(Kind::User)),
            ("user..", Ok(Kind::User)),
            ("trusted.x", Ok(Kind::Privileged)),
            ("security.capability", Ok(Kind::Privileged)),
            ("system.posix_acl_access", Ok(Kind::List)),
            ("system.posix_acl_default", Ok(Kind::List)),
            ("user.", Err(FsError::Invalid)),
            ("trusted.", Err(FsError::Invalid)),
            ("security.", Err(FsError::Invalid)),
            ("system.", Err(FsError::NotSupported)),
            ("system.posix_acl_accessx", Err(FsError::NotSupported)),
            ("system.nfs4_acl", Err(FsError::NotSupported)),
            ("User.x", Err(FsError::NotSupported)),
            ("userx", Err(FsError::NotSupported)),
            ("user", Err(FsError::NotSupported)),
            ("btrfs.compression", Err(FsError::NotSupported)),
            ("quayfs.quota", Err(FsError::NotSupported)),
            (".", Err(FsError::NotSupported)),
        ] {
            assert_eq!(kind(name.as_bytes()), is, "{name}");
        }
    }

    #[test]
    fn each_kind_leaves_the_room_of_those_behind_it() {
        let entry =
            |name: &str, len: usize| (name.as_bytes().to_vec(), vec![0; len - 5 - name.len()]);
        let user = vec![entry("user.a", 60 << 10), entry("user.b", 52 << 10)];
        assert_eq!(leaves_room(&user, Kind::User), Ok(()));
        let mut more = user.clone();
        more.push(entry("user.c", 11));
        assert_eq!(leaves_room(&more, Kind::User), Err(FsError::NoSpace));
        let mut others = user.clone();
        others.push(entry("trusted.a", 4 << 10));
        assert_eq!(leaves_room(&others, Kind::Privileged), Ok(()));
        others.push(entry("security.a", 16));
        for kind in [Kind::Privileged, Kind::User] {
            assert_eq!(leaves_room(&others, kind), Err(FsError::NoSpace));
        }
        assert_eq!(leaves_room(&others, Kind::List), Ok(()));
    }
}
