//! Whether a volume is well, and what to do where it is not.

mod damage;
mod room;
mod unanswered;

pub use unanswered::stored_by;

use super::next::{is_beheaded, is_taken, is_without_log};
use super::report::{Report, State};
use crate::cli::asking::UNLINKED;
use crate::cli::exit;
use crate::cli::handover::ON_REQUEST;
use crate::cli::media::without_commands;
use crate::cli::units::{seconds_since, span};
use serde::Serialize;
use std::path::Path;

/// How a volume is; what comes later is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// There is nothing to say against it.
    #[default]
    Ok,
    /// It works, and something is to be looked at.
    Degraded,
    /// It does not do what it is there for.
    Failed,
}

impl Health {
    /// The exit code that says so.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => exit::OK,
            Self::Degraded => exit::STATUS_DEGRADED,
            Self::Failed => exit::STATUS_FAILED,
        }
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// For how long the death of a daemon is worth a word, in seconds.
const LATELY: u64 = 86_400;

/// A data device that has answered nothing for so long is not just slow, in seconds.
const SILENT: u64 = 30;

/// What a complaint is about; of those that weigh the same, what comes first is told first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// It cannot be served, or is lost.
    Service,
    /// Something in it is damaged or lost.
    Damage,
    /// The media were cut short, or are missing.
    Media,
    /// Nothing can be written.
    ReadOnly,
    /// Something is nearly full.
    Room,
    /// What will be in the way of the next daemon.
    Next,
    /// It was not unmounted as it should be.
    NotClosed,
    /// What has happened, and is over.
    Past,
}

/// A complaint, and what to do about it if something is to be done.
type Finding = (Health, About, String, Option<String>);

/// What can be said against it, the worst first.
fn findings(r: &Report) -> Vec<Finding> {
    let mut all = Vec::new();
    unanswered::of(r, &mut all);
    failures(r, &mut all);
    damage::of(r, &mut all);
    room::of(r, &mut all);
    all.sort_by_key(|f| (std::cmp::Reverse(f.0), f.1));
    all
}

/// Judges, and puts the verdict into the report.
pub fn judge(r: &mut Report) {
    let all = findings(r);
    r.health = all.first().map(|f| f.0).unwrap_or_default();
    // What another user's daemon says, and what is said of what it names, is no place for commands.
    let said = |what: &String| match r.is_foreign {
        true => without_commands(what),
        false => what.clone(),
    };
    r.reasons = all.iter().map(|f| said(&f.2)).collect();
    r.todo = all.into_iter().map(|f| f.3).collect();
    let first = r.todo.iter().flatten().next().cloned();
    r.advice = first.or_else(|| r.advice.take());
}

fn failures(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    if r.shut_down {
        all.push((
            Health::Failed,
            About::Service,
            "shut down on purpose: every call fails".into(),
            Some(format!("`quayfs umount {mnt}`, then mount again")),
        ));
    }
    if let Some(why) = &r.read_only_reason {
        all.push(read_only(r, why));
    }
    if let Some(seconds) = r.device_silent_seconds.filter(|s| *s >= SILENT) {
        all.push((
            Health::Failed,
            About::Service,
            format!(
                "the data device has not answered for {}: what needs it waits",
                span(seconds)
            ),
            Some("look at what it lies on; what waits goes on when it answers".into()),
        ));
    }
    loss(r, all);
    continuity(r, all);
    if let Some(what) = death(r) {
        // The kernel's OOM killer sends it, and leaves no word but its own.
        let cause = match what.contains("signal 9") {
            true => "`dmesg` says whether memory had run out",
            false => "look at the log for the cause",
        };
        let todo = format!("{cause}; this notice goes away a day after the death");
        all.push((Health::Degraded, About::Past, what, Some(todo)));
    }
}

/// Writing has ended, or was never possible.
fn read_only(r: &Report, why: &str) -> Finding {
    let what = format!("read-only: {why}");
    let mnt = r.shown_mountpoint();
    match why.split_once(" is write-protected (") {
        Some((medium, _)) if !r.has_failed => {
            let how = match medium.starts_with("/dev/") && !r.is_foreign {
                true => {
                    let medium = quayfs_shown::argument(Path::new(medium));
                    format!("make the device writable (`blockdev --setrw {medium}`)")
                }
                false => "make it writable".into(),
            };
            let todo = format!(
                "mount with `-o ro` if that is intended, or {how}; for either, `quayfs umount {mnt}` first, then mount again"
            );
            (Health::Degraded, About::ReadOnly, what, Some(todo))
        }
        _ => {
            let todo = after_failure(r, why);
            (Health::Failed, About::ReadOnly, what, todo)
        }
    }
}

/// What to do about a mount that has failed.
fn after_failure(r: &Report, why: &str) -> Option<String> {
    let (mnt, volume) = (r.shown_mountpoint(), r.volume_to_name());
    // Of the volume itself that is no failure, unless its device ends too early: that says the same.
    let is_full = why.contains("No space left");
    // What has been answered since can be read as long as the daemon lives.
    let first = match r.uncommitted {
        Some(true) => format!(
            "copy what you need from {mnt} to another volume, since what was done after the last commit ends with this mount; then "
        ),
        _ => String::new(),
    };
    let again = format!("`quayfs umount {mnt}`, mount again");
    match r.errors.damage {
        1.. => Some(fsck_unmounted(r)),
        0 if r.device_missing_bytes > 0 => None,
        // What is short below has been said, with what to do.
        0 if is_full && r.below.as_ref().is_some_and(|below| !below.is_short()) => Some(format!(
            "{first}there is room again in the file system that {volume} lies on: {again}"
        )),
        0 if is_full => Some(format!(
            "{first}the file system that {volume} lies on is full: make room there, {again}"
        )),
        0 => Some(format!(
            "{first}remove the cause, `quayfs umount {mnt}`, `quayfs fsck {volume}`, mount again"
        )),
    }
}

/// What to do about damaged metadata of a volume that is mounted.
fn fsck_unmounted(r: &Report) -> String {
    let (mnt, volume) = (r.shown_mountpoint(), r.volume_to_name());
    format!("`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`")
}

/// What is not there any more, or ends with the daemon.
fn loss(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    let copy = format!("copy what is on {mnt} to another volume before it is unmounted");
    if !r.unlinked.is_empty() {
        all.push((
            Health::Failed,
            About::Service,
            format!("{}: {UNLINKED}", r.unlinked.join(" and ")),
            Some(copy.clone()),
        ));
    }
    if r.device_missing_bytes > 0 {
        let size = quayfs_options::format_size(r.device_missing_bytes);
        all.push((
            Health::Failed,
            About::Media,
            format!("the data device was cut short: its last {size} are not there any more"),
            Some(lengthen(r)),
        ));
    }
    if r.region_missing_bytes > 0 {
        let size = quayfs_options::format_size(r.region_missing_bytes);
        all.push((
            Health::Failed,
            About::Media,
            format!("the region was cut short: its last {size} are not there any more"),
            Some(copy),
        ));
    }
}

/// What to do about a data device that was cut short.
fn lengthen(r: &Report) -> String {
    let mnt = r.shown_mountpoint();
    let needs = r
        .device_needs_bytes
        .filter(|needs| *needs > r.device_missing_bytes);
    let how = match (&r.data_file, needs) {
        (Some(file), Some(needs)) => {
            let file = quayfs_shown::argument(Path::new(file));
            format!("make it as long again (`truncate --size {needs} {file}`)")
        }
        (None, Some(needs)) => format!("make it as long again ({needs} bytes)"),
        (_, None) => "make it as long again".into(),
    };
    format!(
        "{how} unless it is by now, then `quayfs umount {mnt}` and mount again: what was behind the cut is lost, and `quayfs scrub {mnt}` names the files"
    )
}

/// What could not be gone on with by another daemon.
fn continuity(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    if let Some(why) = &r.hindrance {
        let todo = match is_beheaded(why) {
            false if is_without_log(why) && (r.read_only || r.has_failed) => format!(
                "copy what is on {mnt} to another volume, since the next mount is refused; then {}",
                fsck_unmounted(r)
            ),
            false if is_without_log(why) => format!(
                "`quayfs scrub {mnt}` writes them again: until then, what the last commits had is lost with the daemon"
            ),
            true => beheaded(r, why),
            false => {
                "put this right while the daemon still runs: neither another daemon nor the next mount could go on as it is".into()
            }
        };
        let what = format!("no other daemon could go on with the mount: {why}");
        all.push((Health::Degraded, About::Next, what, Some(todo)));
    }
    // Of one that does not answer, that is said with it.
    if let Some(pid) = r.stopped_supervisor.filter(|_| r.state != State::Silent) {
        all.push((
            Health::Degraded,
            About::Next,
            format!("the supervisor (process {pid}) is stopped: it would start no other daemon"),
            Some(format!("`kill -CONT {pid}` lets it go on")),
        ));
    }
    if let Some(why) = &r.successor_lost {
        all.push((
            Health::Degraded,
            About::Next,
            format!("{why}: the mount would end with its daemon"),
            Some(format!("`quayfs umount {mnt}`, then mount again")),
        ));
    }
}

/// What to do about a volume that is mounted and whose beginning was overwritten. What the daemon has in memory of a region on a
/// disk, the tables among it, a scrub writes again; what else was there may be lost.
fn beheaded(r: &Report, why: &str) -> String {
    let (mnt, volume) = (r.shown_mountpoint(), r.shown_volume());
    let scrub = match r.backend.as_deref() == Some("file") && !r.has_failed {
        true => format!(
            "`quayfs scrub {mnt}` writes the tables again from the memory of the daemon, and says what else is damaged; if it does \
             not help, "
        ),
        false => String::new(),
    };
    let wipe = match is_taken(why) {
        true => format!("`wipefs --all --force {volume}`, "),
        false => String::new(),
    };
    format!(
        "{scrub}copy what is on {mnt} to another volume, since the next mount is refused, and what was overwritten behind the \
         tables may be lost; then `quayfs umount {mnt}`, {wipe}`quayfs fsck --repair --data {volume}`, which looks for a copy of the tables"
    )
}

/// What to say of a daemon of this mount that has died, where that was lately.
fn death(r: &Report) -> Option<String> {
    let daemon = r.daemon.as_ref()?;
    let is_lately = |ago: &u64| *ago < LATELY;
    let (cause, uptime) = (daemon.last_death.as_deref(), daemon.uptime_seconds);
    if daemon.restarts? > 0 && cause != Some(ON_REQUEST) && is_lately(&uptime) {
        let cause = cause.unwrap_or("unknown");
        let ago = span(uptime);
        return Some(format!(
            "the daemon before this one died {ago} ago ({cause})"
        ));
    }
    // One that died before others that were replaced.
    let line = r.log.as_ref()?.last_death.as_ref()?;
    let ago = Some(seconds_since(line.time)).filter(is_lately).map(span)?;
    Some(format!(
        "a daemon of this mount died {ago} ago ({})",
        line.what
    ))
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod advice_tests;
#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
