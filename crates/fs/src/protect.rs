//! What the flags of `chattr` forbid: `EPERM`, for root as well.
//!
//! Every operation asks under the locks under which it changes something, and `set_flags` holds the
//! inode's lock exclusively: what began before the flag was there is done, what comes later is refused.
//! Nothing depends on how a file was opened, which the daemon may never have been told.

use quayfs_layout::inode::{FLAG_APPEND, FLAG_IMMUTABLE, Inode};
use quayfs_store::error::{FsError, Result};

use crate::{SetAttr, SetTime};

fn forbid(i: &Inode, flags: u32) -> Result<()> {
    if i.flags & flags != 0 {
        return Err(FsError::Perm);
    }
    Ok(())
}

/// Something is added, or noted: a name in a directory, blocks behind what is there, the time of now.
pub fn grow(i: &Inode) -> Result<()> {
    forbid(i, FLAG_IMMUTABLE)
}

/// Something that is there is changed or taken away.
pub fn change(i: &Inode) -> Result<()> {
    forbid(i, FLAG_IMMUTABLE | FLAG_APPEND)
}

/// A directory loses the name of `victim`, or the name comes to stand for something else.
pub fn unname(dir: &Inode, victim: &Inode) -> Result<()> {
    change(dir)?;
    change(victim)
}

/// Bytes are written at `offset`. `append`: by a writer that opened the file for appending and nothing else.
pub fn write(i: &Inode, append: bool, offset: u64) -> Result<()> {
    if append && offset >= i.size {
        grow(i)
    } else {
        change(i)
    }
}

/// Attributes are set. Of an append-only inode both times may become the time of now.
pub fn set(i: &Inode, set: &SetAttr) -> Result<()> {
    let now = Some(SetTime::Now);
    let touch = SetAttr {
        atime: now,
        mtime: now,
        ..SetAttr::default()
    };
    if *set == touch { grow(i) } else { change(i) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_only_grows_at_its_end() {
        let i = Inode {
            size: 10,
            flags: FLAG_APPEND,
            ..Inode::default()
        };
        assert_eq!(write(&i, true, 10), Ok(()));
        assert_eq!(write(&i, true, 9), Err(FsError::Perm));
        assert_eq!(write(&i, false, 10), Err(FsError::Perm));
        let i = Inode {
            flags: FLAG_IMMUTABLE,
            ..i
        };
        assert_eq!(write(&i, true, 10), Err(FsError::Perm));
    }
}
