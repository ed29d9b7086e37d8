//! Damaged volumes mounted read-only.

use std::sync::Arc;

use quayfs_fs::Fs;
use quayfs_fs::volume::{Access, Volume};
use quayfs_layout::Ino;
use quayfs_layout::inode::ROOT;

use super::support::{IN_RECORDS, Item, ruins, tree};
use quayfs_oracle::damage::map::Use;
use quayfs_oracle::damage::{Image, Left};

/// Reads what can be read of a file.
fn glance(fs: &Fs, ino: Ino) -> Option<Item> {
    let i = fs.getattr(ino).ok()?.inode;
    let content = match i.mode & 0o170_000 {
        0o100_000 => fs.read(ino, 0, i.size as usize).ok()?,
        0o120_000 => fs.readlink(ino).ok()?,
        _ => Vec::new(),
    };
    Some(Item {
        ino,
        mode: i.mode,
        nlink: 0,
        owner: (i.uid, i.gid),
        size: if i.is_dir() { 0 } else { i.size },
        content: Some(content),
        xattrs: Vec::new(),
    })
}

/// `-o ro` mounts a volume whatever is damaged, but for the words without which it knows nothing,
/// and shows nothing wrong.
#[test]
fn a_read_only_mount_shows_what_can_be_read() {
    for left in [Left::Op, Left::Commit, Left::Round] {
        let image = Image::sample(left);
        let whole = tree(&image.media());
        let mut seen = 0;
        let harms = ruins(&image);
        let harms = harms.iter().filter(|h| match h.what {
            Use::L2pEntry | Use::Nat | Use::Committed => h.bytes.start % 88 == 0,
            Use::Superblock | Use::DataHeader => false,
            _ => true,
        });
        for harm in harms {
            let media = harm.done_to(&image).media();
            let before = Image::of(&media, &image.options);
            let copy = Arc::new(media.region.load().unwrap());
            let volume = Volume::from_parts(copy, Arc::clone(&media.device), Access::ReadOnly);
            let options = quayfs_oracle::options("ro,errors=continue");
            let fs = Fs::mount_quiet(volume.expect("open"), &options);
            let fs = fs.unwrap_or_else(|e| panic!("{harm:?}: {e}"));
            for (path, item) in &whole {
                let mut ino = ROOT;
                let mut names = path.split('/').filter(|n| !n.is_empty());
                let found = names.all(|n| {
                    let attr = fs.lookup(ino, n.as_bytes());
                    attr.is_ok_and(|a| {
                        ino = a.ino;
                        true
                    })
                });
                let Some(now) = glance(&fs, ino).filter(|_| found) else {
                    assert_ne!(harm.what, Use::L2pLog, "{harm:?}: {path} is gone");
                    continue;
                };
                seen += 1;
                let same = now.content == item.content && now.mode == item.mode;
                let logs = matches!(harm.what, Use::Record | Use::SlotHeader | Use::Committed);
                assert!(
                    same || logs && IN_RECORDS.contains(&&path[..]),
                    "{harm:?}: {path}"
                );
            }
            drop(fs);
            let after = Image::of(&media, &image.options);
            assert!(before.pmem == after.pmem && before.blocks == after.blocks);
        }
        assert!(seen > 1000, "{seen}");
    }
}
