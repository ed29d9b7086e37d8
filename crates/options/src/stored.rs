//! Options that a volume keeps: they hold at each mount that does not say otherwise.

use super::parse::words;
use super::{MountOptions, OptionError};

/// Options that a volume may keep, but for their values. All others are said where it is mounted: a medium that comes
/// from elsewhere must not decide whose files are let in, what they may do, or what the mount table shows.
const KEPT: [&str; 34] = [
    "data",
    "durability",
    "commit",
    "checkpoint",
    "open",
    "errors",
    "transport",
    "idle",
    "read_ahead",
    "large",
    "memory",
    "buffers",
    "threads",
    "writeback",
    "writethrough",
    "atomic_writes",
    "restart",
    "norestart",
    "acl",
    "noacl",
    "sync",
    "dirsync",
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "nosymfollow",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "diratime",
    "nodiratime",
    "rw",
];

const NOT_KEPT: &str = "a volume keeps only how QuayFS works, not who may use it; say it at the mount or in /etc/fstab";

/// Checks a list that a volume is to keep.
///
/// # Errors
/// As of [`MountOptions::parse`]; [`OptionError::Unsupported`] for what is not to be kept.
pub fn check(list: &str) -> Result<(), OptionError> {
    // First whether there is such an option at all.
    MountOptions::parse(&[list])?;
    match words(&[list]).into_iter().find(|w| !KEPT.contains(&key(w))) {
        Some(word) => Err(OptionError::Unsupported {
            option: word.into(),
            why: NOT_KEPT,
        }),
        None => Ok(()),
    }
}

/// What a mount is told, with what its volume keeps below it: a stored option holds unless something is said about the
/// same thing.
///
/// # Errors
/// As of [`MountOptions::parse`] and [`check`].
pub fn below(stored: &str, lists: &[&str]) -> Result<MountOptions, OptionError> {
    check(stored)?;
    let said = words(lists);
    let is_said = |word: &str| said.iter().any(|w| about(w) == about(word));
    let mut all = words(&[stored]);
    all.retain(|word| !is_said(word));
    all.extend(said.iter().copied());
    MountOptions::parse(&all)
}

fn key(word: &str) -> &str {
    word.split_once('=').map_or(word, |(key, _)| key)
}

/// What a word decides.
fn about(word: &str) -> &str {
    match key(word) {
        "writeback" | "writethrough" => "page cache",
        "restart" | "norestart" => "restart",
        "acl" | "noacl" => "access control lists",
        "sync" | "dirsync" => "durability",
        "ro" | "rw" => "writing",
        "atime" | "noatime" | "relatime" | "strictatime" => "access times",
        "diratime" | "nodiratime" => "access times of directories",
        key => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AtimePolicy, DataMode, Durability};

    #[test]
    fn what_is_said_at_the_mount_counts_more() {
        let o = below("commit=30,noatime,writeback", &[]).unwrap();
        assert_eq!((o.commit_seconds, o.atime), (30, AtimePolicy::NoAtime));
        assert!(o.writeback_cache);
        let o = below(
            "commit=30,noatime,writeback",
            &["commit=5,relatime", "writethrough"],
        )
        .unwrap();
        assert_eq!(o, MountOptions::parse(&["relatime"]).unwrap());
        let o = below("durability=commit", &["sync"]).unwrap();
        assert_eq!(o.durability, Some(Durability::Op));
        let o = below("ro", &["rw"]).unwrap();
        assert!(!o.read_only);
        let o = below("data=ordered", &["data=journal,durability=op"]).unwrap();
        assert_eq!(o.data, DataMode::Journal);
        // Nothing stored: as ever.
        assert_eq!(below("", &["ro"]), MountOptions::parse(&["ro"]));
    }

    #[test]
    fn what_contradicts_what_is_stored_is_refused() {
        assert!(matches!(
            below("data=ordered", &["durability=op"]),
            Err(OptionError::Contradiction { .. })
        ));
    }

    #[test]
    fn only_how_the_file_system_works_is_kept() {
        for good in ["", "commit=30", "noatime,,data=ordered,ro", "memory=1G"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "allow_other",
            "suid",
            "dev",
            "permissions=owner",
            "fsname=x",
            "idmap",
            "remount",
            "ablation=workers:1",
            "noauto",
            "ro,norecovery",
        ] {
            assert!(
                matches!(check(bad), Err(OptionError::Unsupported { .. })),
                "{bad}: {:?}",
                check(bad)
            );
        }
        assert!(matches!(check("turbo"), Err(OptionError::Unknown(_))));
        assert!(matches!(check("commit=0"), Err(OptionError::Value { .. })));
    }
}
