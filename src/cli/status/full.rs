//! How full a volume is that is not mounted. That is on no page of its own: it takes what a mount does to recover it, here
//! read-only, in the memory of this process.

use super::next::{absence, without_tables};
use crate::cli::at_rest;
use crate::cli::unopened::has_lost_its_beginning;
use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_fs::volume::{Access, Volume, VolumeError, locate, openness, refusal};
use quayfs_layout::inode::ROOT;
use quayfs_pmem::PmemError;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Why a volume cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The media do not answer.
    Silence,
    /// The media do not belong together, or are not as long as they were.
    Media(String),
    /// A repair is needed.
    Damage(String),
    /// It cannot be read.
    Failure(String),
    /// The line says what to do.
    Other(String),
}

/// What a daemon would say of it that had just mounted it, if that can be told, or why there would be none. Neither if it is
/// in use by now.
pub fn status(path: &Path) -> (Option<Value>, Option<Obstacle>) {
    let volume = match Volume::open(path, Access::ReadOnly, Duration::ZERO) {
        Ok(volume) => volume,
        Err(why) => return (None, unopened(&why)),
    };
    let fs = match at_rest::recover(volume) {
        Ok(fs) => fs,
        Err(why) => return (None, unrecovered(&why)),
    };
    let obstacle = damage(&fs).map(Obstacle::Damage);
    // What is counted over damage is not what there is.
    let status = match &obstacle {
        Some(_) => None,
        None => serde_json::to_value(fs.status()).ok(),
    };
    // Nothing of it was changed, so there is nothing that could fail to be written.
    let _ = fs.shutdown();
    (
        status,
        obstacle.or_else(|| in_the_way(path).map(Obstacle::Other)),
    )
}

/// What recovery has passed over, and what a user would meet first.
fn damage(fs: &Fs) -> Option<String> {
    let passed_over = fs.e.watch().obstacle().map(str::to_string);
    let root = || fs.getattr(ROOT).err();
    passed_over.or_else(|| root().map(|why| format!("the root directory: {why}")))
}

/// The same of a volume that was mounted: what is not found was there.
pub fn unopened_mounted(path: &Path, why: &VolumeError) -> Option<Obstacle> {
    match why {
        why if has_lost_its_beginning(why) => Some(Obstacle::Damage(without_tables(path))),
        VolumeError::Unreachable { .. } => Some(Obstacle::Media(why.to_string())),
        VolumeError::Missing(_) => absence(why).map(Obstacle::Media),
        why => unopened(why),
    }
}

fn unopened(why: &VolumeError) -> Option<Obstacle> {
    let line = why.to_string();
    match why {
        // It is in use by now, or can be mounted all the same.
        VolumeError::Busy(_) | VolumeError::WriteProtected { .. } => None,
        VolumeError::Pairing { .. }
        | VolumeError::Incomplete { .. }
        | VolumeError::Pmem(PmemError::Length { .. } | PmemError::Cut { .. }) => {
            Some(Obstacle::Media(line))
        }
        VolumeError::Config { .. }
        | VolumeError::Beheaded(_)
        | VolumeError::Header { .. }
        | VolumeError::Pmem(PmemError::BatchLog) => Some(Obstacle::Damage(line)),
        VolumeError::Pmem(_) | VolumeError::Device(_) => Some(Obstacle::Failure(line)),
        VolumeError::Missing(_)
        | VolumeError::Unreachable { .. }
        | VolumeError::Exposed { .. }
        | VolumeError::Unclear { .. }
        | VolumeError::Fenced(_)
        | VolumeError::Features(_) => Some(Obstacle::Other(line)),
    }
}

fn unrecovered(why: &MountError) -> Option<Obstacle> {
    let line = why.to_string();
    match why {
        MountError::Io(_) | MountError::Options(_) => None,
        MountError::Damaged { .. } | MountError::Repairing => Some(Obstacle::Damage(line)),
        MountError::Journal(_)
        | MountError::Ppt(_)
        | MountError::Fs(_)
        | MountError::Device(_)
        | MountError::WriteAgain(_) => Some(Obstacle::Failure(line)),
    }
}

/// What a mount would be refused for, other than what the volume holds.
pub fn in_the_way(path: &Path) -> Option<String> {
    exposed(path).or_else(|| refusal(path).map(|why| why.to_string()))
}

/// What others have access to, of the media, and what to do about it.
pub fn exposed(path: &Path) -> Option<String> {
    let place = locate(path).ok()?;
    [place.pmem, place.data].iter().find_map(|part| {
        let why = openness(part, &std::fs::metadata(part).ok()?)?;
        Some(format!("{}: {why}", part.display()))
    })
}
