//! Taking a mount out of the tree.

use crate::mount::server::Served;
use crate::mount::table::{self, Entry};
use crate::mount::{AttachError, Place, UnmountMode};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// How often it is looked whether a mount is in use still, since something may be asking how it is, and after which time.
const ASKED: u32 = 50;
const AGAIN: Duration = Duration::from_millis(20);

/// Takes the mount away; whether its users were left with what they have open. They are only where its daemon is dead, and
/// nothing is there to start another one (`is_supervised`): all their calls fail then, with or without the mount.
///
/// # Errors
/// What to say of a mount that stays.
pub fn detach(
    place: &Place,
    (entry, served): (&Entry, &Served),
    mode: UnmountMode,
    is_supervised: bool,
) -> Result<bool, String> {
    let device = Some(&*entry.device);
    let detach = |mode| place.detach(mode, device);
    let text = |e: AttachError| e.to_string();
    let is_dead = matches!(served, Served::Dead);
    if is_dead && !is_supervised && mode == UnmountMode::Normal {
        return match detach(mode) {
            Err(AttachError::Busy(path)) => match mounted_below(entry) {
                // It would go along, with all that is done there.
                Some(below) => {
                    let [path, below] = [&path, &below].map(|path| quayfs_shown::argument(path));
                    Err(format!(
                        "{path}: its daemon is dead, and something else is mounted on {below}: unmount that first, or take \
                         both away with `quayfs umount -l {path}`"
                    ))
                }
                None => detach(UnmountMode::Lazy).map(|()| true).map_err(text),
            },
            other => other.map(|()| false).map_err(text),
        };
    }
    match patiently(|| detach(mode)) {
        Ok(()) => Ok(false),
        // What uses it cannot be found out: even asking for that fails there.
        Err(AttachError::Busy(path)) if is_dead => {
            let path = quayfs_shown::argument(&path);
            Err(format!(
                "{path} is in use, and its daemon is dead: `quayfs umount -l {path}` takes it away from its users"
            ))
        }
        Err(e) => Err(text(e)),
    }
}

/// Where something is mounted on a directory of a mount.
fn mounted_below(entry: &Entry) -> Option<PathBuf> {
    let table = table::read().ok()?.into_iter();
    let mut below = table.filter(|e| e.parent == entry.id && e.id != entry.id);
    Some(below.next()?.target)
}

/// Takes the mount away. A process that asks the mount how it is uses it for a moment, as `quayfs status` does of all mounts,
/// and is no reason to leave it.
fn patiently(mut detach: impl FnMut() -> Result<(), AttachError>) -> Result<(), AttachError> {
    for _ in 0..ASKED {
        match detach() {
            Err(AttachError::Busy(_)) => sleep(AGAIN),
            other => return other,
        }
    }
    detach()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_for_a_moment_is_unmounted() {
        let busy_for = |times: u32| {
            let mut calls = 0;
            let result = patiently(|| {
                calls += 1;
                match calls > times {
                    true => Ok(()),
                    false => Err(AttachError::Busy("/mnt".into())),
                }
            });
            (result.is_ok(), calls)
        };
        assert_eq!(busy_for(0), (true, 1));
        assert_eq!(busy_for(3), (true, 4));
        assert_eq!(busy_for(u32::MAX), (false, ASKED + 1));
    }
}
