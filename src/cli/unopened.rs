//! What to say of a volume that cannot be opened, where the mount table knows more than the volume.

use quayfs_fs::volume::{VolumeError, locate};

use super::draining;
use super::exit::{FSCK_FAILED, Failure};
use super::status::stored_by;
use super::units::closing_text;
use super::unserved::supervisor_left;
use crate::mount::table;
use std::io;
use std::path::Path;

/// Adapter for `map_err`: a failure with this exit code.
pub fn unopened(code: u8) -> impl FnOnce(VolumeError) -> Failure {
    move |e| {
        let named = match &e {
            VolumeError::Missing(path) => Some(path),
            // A file; what is said of a directory or a link is about a volume that is there.
            VolumeError::Unreachable { path, .. } | VolumeError::Incomplete { path, .. }
                if path.is_file() =>
            {
                Some(path)
            }
            VolumeError::Busy(path) => {
                if let Some(closing) = draining::state(path) {
                    let (shown, how) = (quayfs_shown::argument(path), closing_text(closing));
                    return Failure::new(code, format_args!("{shown} {how}"));
                }
                if let Some(line) = mounted(path) {
                    return Failure::new(code, line);
                }
                if let Some(pid) = supervisor_left(path) {
                    let (shown, how) = (quayfs_shown::argument(path), stored_by(pid));
                    return Failure::new(code, format_args!("{shown}: {how}"));
                }
                None
            }
            _ => None,
        };
        let missing = || match &e {
            VolumeError::Missing(path) => no_volume(path),
            _ => None,
        };
        match named.and_then(|path| inside(path)).or_else(missing) {
            Some(line) => Failure::new(code, line),
            // It has looked.
            None if code == FSCK_FAILED || !has_lost_its_beginning(&e) => Failure::new(code, e),
            None => Failure::new(
                code,
                format_args!("{e}; if it was one, `quayfs fsck` looks for a copy of its tables"),
            ),
        }
    }
}

/// Whether there may be a volume whose tables were overwritten.
pub fn has_lost_its_beginning(e: &VolumeError) -> bool {
    match e {
        VolumeError::Config { .. } => true,
        VolumeError::Unreachable { path, why } => path.exists() && why.starts_with("no volume; "),
        _ => false,
    }
}

/// A failure with this exit code about a path that does not resolve.
pub fn unreached(code: u8, path: &Path, e: &io::Error) -> Failure {
    match locate(path) {
        Err(why) => unopened(code)(why),
        Ok(_) => Failure::new(code, format_args!("{}: {e}", quayfs_shown::argument(path))),
    }
}

/// What to say of a volume that is in use, if it is so since it is mounted, and where that can be seen.
pub fn mounted(volume: &Path) -> Option<String> {
    let volume = volume.canonicalize().ok()?;
    let entry = table::mount_of(&volume).ok()??;
    let (shown, target) = (
        quayfs_shown::argument(&volume),
        quayfs_shown::argument(&entry.target),
    );
    Some(format!(
        "{shown}: in use: mounted on {target}: `quayfs umount {target}` first"
    ))
}

/// What to say of a path that is hardly meant to become a volume: a mount point without its mount, a label.
fn no_volume(path: &Path) -> Option<String> {
    let shown = quayfs_shown::argument(path);
    if path.is_dir() {
        return Some(format!(
            "{shown}: nothing is mounted on this directory, and no volume is in it: `quayfs status` lists what is mounted"
        ));
    }
    let name = path.to_str()?;
    let (by, name) = (name.strip_prefix("LABEL=").map(|name| ("label", name)))
        .or_else(|| name.strip_prefix("UUID=").map(|name| ("uuid", name)))?;
    let name = quayfs_shown::argument(Path::new(name));
    Some(format!(
        "{shown}: only mount(8) looks for labels and UUIDs; name the device, /dev/disk/by-{by}/{name}"
    ))
}

/// Names the volume where the path is what the kernel shows of a mounted one.
fn inside(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let entry = table::read()
        .ok()?
        .into_iter()
        .filter(|entry| path.starts_with(&entry.target))
        // The innermost mount, and the topmost one of those.
        .max_by_key(|entry| entry.target.components().count())?;
    if !entry.is_quayfs() {
        return None;
    }
    let (shown, target) = (
        quayfs_shown::argument(&path),
        quayfs_shown::argument(&entry.target),
    );
    let volume = quayfs_shown::argument(Path::new(&entry.source));
    Some(match path == entry.target {
        true => format!(
            "{shown} is where the volume {volume} is mounted, and no volume: `quayfs umount {shown}`, then name {volume}"
        ),
        false => format!(
            "{shown} lies in the volume {volume}, mounted on {target}, and is no volume: name {volume} or {target}"
        ),
    })
}
