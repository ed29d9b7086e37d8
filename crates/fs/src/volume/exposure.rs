//! Who else can get at the media.
//!
//! A user who can write to a region or a data file decides what a mount shows, and one who can read it reads every
//! file in it, past all permissions. So a regular file has to belong to the user who mounts, or to root, and to be
//! closed to all other users. Devices are the system's business: those of group `disk` are as usual.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permission bits of others than the owner.
const OTHERS: u32 = 0o077;
/// Those of them that let others change the file.
const OTHERS_WRITE: u32 = 0o022;

/// Why this medium is not safe to use and what makes it so; `None` if it is.
pub fn exposure(path: &Path, meta: &Metadata) -> Option<String> {
    let me = rustix::process::geteuid().as_raw();
    found(
        &quayfs_shown::argument(path),
        me,
        meta.is_file(),
        meta.uid(),
        meta.mode(),
    )
}

/// Why no user can mount a volume with this medium until the owner closes it to others; `None` if nothing is in the way.
pub fn openness(path: &Path, meta: &Metadata) -> Option<String> {
    let (owner, path) = (meta.uid(), quayfs_shown::argument(path));
    found(&path, owner, meta.is_file(), owner, meta.mode())
}

/// Whether others can do no more than read this regular file, which belongs to this user or to root: what an ordinary
/// umask makes of a file.
pub fn is_only_readable(meta: &Metadata) -> bool {
    let me = rustix::process::geteuid().as_raw();
    meta.is_file() && [me, 0].contains(&meta.uid()) && meta.mode() & OTHERS_WRITE == 0
}

fn found(path: &str, me: u32, regular: bool, owner: u32, mode: u32) -> Option<String> {
    if !regular {
        return None;
    }
    let foreign = owner != me && owner != 0;
    let open = mode & OTHERS != 0;
    let chmod = || format!("`chmod 600 {path}`");
    match (foreign, open) {
        (false, false) => None,
        (false, true) => Some(format!(
            "others have access to it (mode {:04o}), and so to every file; {}",
            mode & 0o7777,
            chmod()
        )),
        (true, _) => {
            let mut cure = format!("`chown {me} {path}`");
            if open {
                cure.push_str(&format!(" and {}", chmod()));
            }
            Some(format!(
                "it belongs to user {owner}, who has access to every file in it; {cure} if it should be yours"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_and_root_may_have_access() {
        let of = |me, regular, owner, mode| found("/r", me, regular, owner, mode);
        for (me, regular, owner, mode) in [
            (0, true, 0, 0o100_600),
            (7, true, 7, 0o100_400),
            (7, true, 0, 0o100_600),
            // A device of group `disk`, and one of another user.
            (0, false, 0, 0o060_660),
            (0, false, 7, 0o060_666),
        ] {
            assert_eq!(of(me, regular, owner, mode), None);
        }
        for (me, owner, mode, cure) in [
            (0, 0, 0o100_640, "`chmod 600 /r`"),
            (7, 7, 0o100_602, "`chmod 600 /r`"),
            (7, 0, 0o100_604, "`chmod 600 /r`"),
            (0, 7, 0o100_600, "`chown 0 /r` if"),
            (7, 8, 0o100_666, "`chown 7 /r` and `chmod 600 /r` if"),
        ] {
            let why = of(me, true, owner, mode).unwrap();
            assert!(why.contains(cure), "{why}");
        }
    }
}
