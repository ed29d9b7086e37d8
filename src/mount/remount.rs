//! Changing a mount that exists.

use quayfs_options::remount::Remount;

use super::place::by_descriptor;
use super::table::Entry;
use super::{AttachError, Place};
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// Changes flags that the kernel keeps. All others stay as the mount table has them; access times the kernel keeps by
/// itself.
///
/// # Errors
/// [`AttachError::Refused`]: files are open for writing, or the caller is not root.
pub fn remount(place: &Place, entry: &Entry, change: &Remount) -> Result<(), AttachError> {
    let refused = |e: Errno| AttachError::Refused {
        path: entry.target.clone(),
        why: match e {
            Errno::BUSY => "a file is open for writing; close it, then try again".into(),
            Errno::PERM => "only root can remount".into(),
            e => e.to_string(),
        },
    };
    let on_top = place.open().map_err(refused)?;
    let path = by_descriptor(&on_top);
    rustix::mount::mount_remount(&path, flags(entry, change), "").map_err(refused)
}

fn flags(entry: &Entry, change: &Remount) -> MountFlags {
    let shown = |word: &str| {
        let words = entry.options.split(',').chain(entry.superblock.split(','));
        words.into_iter().any(|w| w == word)
    };
    let mut flags = MountFlags::empty();
    for (word, flag) in [
        ("ro", MountFlags::RDONLY),
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("nosymfollow", MountFlags::NOSYMFOLLOW),
        ("sync", MountFlags::SYNCHRONOUS),
    ] {
        let kept = shown(word) && !change.clear.contains(&word);
        flags.set(flag, kept || change.set.contains(&word));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_stays() {
        let entry = Entry {
            id: 1,
            parent: 0,
            device: "0:45".into(),
            root: "/".into(),
            target: "/m".into(),
            options: "rw,nosuid,nosymfollow,relatime".into(),
            fstype: "fuse.quayfs".into(),
            source: "/v".into(),
            superblock: "ro,sync,user_id=0".into(),
        };
        let change = |set: &[&'static str], clear: &[&'static str]| Remount {
            set: set.to_vec(),
            clear: clear.to_vec(),
        };
        let kept = MountFlags::NOSYMFOLLOW | MountFlags::SYNCHRONOUS;
        let was = kept | MountFlags::NOSUID | MountFlags::RDONLY;
        assert_eq!(flags(&entry, &change(&[], &[])), was);
        assert_eq!(
            flags(&entry, &change(&["nodev", "ro"], &["nosuid"])),
            kept | MountFlags::NODEV | MountFlags::RDONLY
        );
        assert_eq!(
            flags(&entry, &change(&["noexec"], &["ro", "nosuid"])),
            kept | MountFlags::NOEXEC
        );
    }
}
