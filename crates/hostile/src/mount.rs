//! Target `mount`: a volume that has been tampered with.

use std::collections::BTreeSet;

use quayfs_fs::{Fs, Whence};
use quayfs_layout::inode::ROOT;
use quayfs_layout::{BLOCK, Ino};
use quayfs_options::MountOptions;
use quayfs_store::error::Result;

use crate::forge::forge;
use crate::input::Input;
use crate::script::Script;
use crate::volumes::Media;

/// Inodes that a walk visits at most, and entries that it takes from one directory.
const VISITS: usize = 400;
/// Calls after a mount.
const CALLS: usize = 24;

/// Checks, mounts read-only, mounts, uses, unmounts and checks again. Everything may fail; nothing
/// may panic or take for ever. What the checker finds nothing wrong with can be mounted.
pub fn mount(data: &[u8]) {
    let mut input = Input::new(data);
    let (base, media) = forge(&mut input);
    let how = input.u8();
    let Ok(report) = media.fsck() else {
        return;
    };
    let whole = report.is_clean() && report.skipped.is_empty();
    let ro = MountOptions::parse(&[base.options, "ro"]).expect("options");
    if let Ok(volume) = media.copy()
        && let Ok(fs) = Fs::mount_quiet(volume, &ro)
    {
        walk(&fs);
        fs.abandon();
    }
    let errors = ["errors=remount-ro", "errors=continue"][usize::from(how & 1)];
    let options = MountOptions::parse(&[base.options, errors]).expect("options");
    let mounted = match media.volume() {
        Ok(volume) => Fs::mount_quiet(volume, &options),
        Err(_) => return,
    };
    match mounted {
        Err(e) => assert!(!whole, "fsck finds nothing, mount fails: {e}"),
        Ok(fs) => {
            use_it(&fs, &mut input, how & 2 != 0);
            // Both ask the same questions of what they read.
            let met = fs.e.watch().found();
            assert!(
                !whole || met == 0,
                "fsck finds nothing, the mount {met} times"
            );
            drop(fs);
            after(&media, whole);
        }
    }
}

fn use_it(fs: &Fs, input: &mut Input<'_>, clean: bool) {
    let seen = walk(fs);
    let mut script = Script::new(seen);
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let _ = script.step(fs, input);
    }
    walk(fs);
    if clean {
        let _ = fs.shutdown();
    } else {
        fs.abandon();
    }
}

fn after(media: &Media, whole: bool) {
    let report = media.fsck().expect("it was mounted");
    let still = report.is_clean() && report.skipped.is_empty();
    assert!(still || !whole, "whole before it was mounted: {report}");
}

/// Looks at everything that can be reached from the root, and returns the inodes.
fn walk(fs: &Fs) -> Vec<Ino> {
    let mut seen = BTreeSet::from([ROOT]);
    let mut todo = vec![ROOT];
    while let Some(ino) = todo.pop() {
        let _ = look(fs, ino);
        let mut names = Vec::new();
        let _ = fs.readdir(ino, 0, |e| {
            names.push((e.name, e.ino));
            names.len() < VISITS
        });
        for (name, child) in names {
            if let Ok(attr) = fs.lookup(ino, &name) {
                fs.forget(attr.ino, 1);
            }
            if seen.len() < VISITS && seen.insert(child) {
                todo.push(child);
            }
        }
    }
    seen.into_iter().collect()
}

fn look(fs: &Fs, ino: Ino) -> Result<()> {
    let inode = fs.getattr(ino)?.inode;
    if let Ok(names) = fs.listxattr(ino) {
        for name in names.split(|b| *b == 0) {
            let _ = fs.getxattr(ino, name);
        }
    }
    let _ = fs.readlink(ino);
    let _ = fs.read(ino, 0, 16 * BLOCK);
    let _ = fs.read(ino, inode.size.saturating_sub(5000), 2 * BLOCK);
    let mut at = 0;
    for _ in 0..20 {
        let data = fs.seek(ino, Whence::Data, at)?;
        let _ = fs.read(ino, data, BLOCK);
        at = fs.seek(ino, Whence::Hole, data)?;
    }
    Ok(())
}
