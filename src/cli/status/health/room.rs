//! What is said of room that runs short, in the volume and below it.

use super::super::below::Below;
use super::super::report::{Report, State};
use super::{About, Finding, Health};
use crate::cli::units::percent;
use quayfs_options::format_size;
use std::path::Path;

/// From this share on, in percent, something is nearly full.
const NEARLY_FULL: u64 = 95;

/// Adds what is short, and what to do.
pub fn of(r: &Report, all: &mut Vec<Finding>) {
    if let Some(below) = r.below.as_ref().filter(|below| below.is_short()) {
        all.push(short_below(r, below));
    }
    let at = match r.mountpoint {
        Some(_) => r.shown_mountpoint(),
        None => r.volume_to_name(),
    };
    let mut short = |what: &str, (used, total): (u64, u64), todo: &dyn Fn() -> String| {
        if r.is_nearly_full(used, total) {
            let what = format!("{what}: {} in use", percent(used, total));
            all.push((Health::Degraded, About::Room, what, Some(todo())));
        }
    };
    if let Some(d) = &r.data {
        short(
            "data",
            (d.used_bytes, d.total_bytes),
            &|| match quayfs_fs::volume::is_device_path(Path::new(&r.volume)) {
                true => format!(
                    "remove files; or make the device larger, and then `quayfs resize {at} --data max`"
                ),
                false => format!("remove files, or make room: `quayfs resize {at} --data SIZE`"),
            },
        );
    }
    if let Some(i) = &r.inodes {
        // It is node pages that run short, or the inode table, which `mkfs` has made.
        short("inodes", (i.used, i.total), &|| match r.inode_table {
            Some(table) if i.total >= table => elsewhere(),
            _ => with_larger_region(r, &at),
        });
    }
    if let Some(region) = &r.region {
        let share = (region.metadata_used_bytes, region.metadata_bytes);
        short("metadata in the region", share, &|| {
            with_larger_region(r, &at)
        });
    }
}

/// A file of the volume has holes that the file system below has no room for.
fn short_below(r: &Report, below: &Below) -> Finding {
    let part = quayfs_shown::path(Path::new(&below.part));
    let (free, needed) = (format_size(below.free_bytes), format_size(below.hole_bytes));
    let reserve = match below.reserve_bytes {
        0 => String::new(),
        // df(1) does not count it.
        bytes => format!(" ({} of it for root alone)", format_size(bytes)),
    };
    let what = format!(
        "the file system that {part} lies on has {free} free{reserve}, and the volume can still need {needed} there"
    );
    let todo = match (r.state, r.has_failed) {
        (State::Unmounted, _) => Some("make room there before it is mounted".into()),
        // What to do then has been said.
        (_, true) => None,
        _ => Some("make room there: the mount becomes read-only when nothing is free".into()),
    };
    (Health::Degraded, About::Room, what, todo)
}

fn elsewhere() -> String {
    "remove files, or copy them to a volume with a larger region (`quayfs mkfs --pmem-size`)".into()
}

/// What to do where a larger region helps.
fn with_larger_region(r: &Report, at: &str) -> String {
    match r.is_region_file {
        Some(true) => {
            format!("remove files, or make the region larger: `quayfs resize {at} --pmem SIZE`")
        }
        Some(false) => elsewhere(),
        None => format!(
            "remove files, or make the region larger if it is a file: `quayfs resize {at} --pmem SIZE`"
        ),
    }
}

impl Report {
    /// Whether a larger region would help.
    pub fn needs_region(&self) -> bool {
        let inodes = self.inodes.as_ref().map(|i| (i.used, i.total));
        let metadata = self.region.as_ref();
        let metadata = metadata.map(|r| (r.metadata_used_bytes, r.metadata_bytes));
        let mut shares = [inodes, metadata].into_iter().flatten();
        shares.any(|(used, total)| self.is_nearly_full(used, total))
    }

    /// Whether so much of something is in use that it is worth a word.
    pub fn is_nearly_full(&self, used: u64, total: u64) -> bool {
        total > 0 && used * 100 >= total * NEARLY_FULL
    }
}
