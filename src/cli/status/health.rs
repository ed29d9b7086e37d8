//! Whether a volume is well, and what to do where it is not.

mod unanswered;

use super::logged::{Damage, LOSSES, Line, Logged};
use super::report::Report;
use crate::cli::asking::UNLINKED;
use crate::cli::exit;
use crate::cli::handover::ON_REQUEST;
use crate::cli::units::{percent, seconds_since, span};
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

/// From this share on, in percent, something is nearly full.
const NEARLY_FULL: u64 = 95;
/// For how long the death of a daemon is worth a word, in seconds.
const LATELY: u64 = 86_400;

/// A data device that has answered nothing for so long is not just slow, in seconds.
const SILENT: u64 = 30;

/// A complaint, and what to do about it if something is to be done.
type Finding = (Health, String, Option<String>);

/// What can be said against it, the worst first.
fn findings(r: &Report) -> Vec<Finding> {
    let mut all = Vec::new();
    unanswered::of(r, &mut all);
    failures(r, &mut all);
    damage(r, &mut all);
    shortages(r, &mut all);
    let worst_first = |f: &Finding| std::cmp::Reverse(f.0);
    all.sort_by_key(worst_first);
    all
}

/// Judges, and puts the verdict into the report.
pub fn judge(r: &mut Report) {
    let all = findings(r);
    r.health = all.first().map(|f| f.0).unwrap_or_default();
    r.reasons = all.iter().map(|f| f.1.clone()).collect();
    let todo = all.into_iter().find_map(|f| f.2);
    r.advice = todo.or_else(|| r.advice.take());
}

fn failures(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    if r.shut_down {
        all.push((
            Health::Failed,
            "shut down on purpose: every call fails".into(),
            Some(format!("`quayfs umount {mnt}`, then mount again")),
        ));
    }
    if let Some(why) = &r.read_only_reason {
        all.push((
            Health::Failed,
            format!("read-only: {why}"),
            after_failure(r, why),
        ));
    }
    if let Some(seconds) = r.device_silent_seconds.filter(|s| *s >= SILENT) {
        all.push((
            Health::Failed,
            format!(
                "the data device has not answered for {}: what needs it waits",
                span(seconds)
            ),
            Some("look at what it lies on; what waits goes on when it answers".into()),
        ));
    }
    continuity(r, all);
    if let Some(what) = death(r) {
        // The kernel's OOM killer sends it, and leaves no word but its own.
        let todo = match what.contains("signal 9") {
            true => "`dmesg` says whether memory had run out; this ends a day after it",
            false => "look at the log for the cause; this ends a day after it",
        };
        all.push((Health::Degraded, what, Some(todo.into())));
    }
}

/// What to do about a mount that has failed.
fn after_failure(r: &Report, why: &str) -> Option<String> {
    let (mnt, volume) = (r.shown_mountpoint(), r.shown_volume());
    // Of the volume itself that is no failure, unless its device ends too early: that says the same.
    let is_full = why.contains("No space left");
    // What has been answered since can be read as long as the daemon lives.
    let first = match r.uncommitted {
        Some(true) => format!(
            "copy what you need from {mnt} to another volume, since what was done after the last commit ends with this mount; then "
        ),
        _ => String::new(),
    };
    match r.errors.damage {
        1.. => Some(format!(
            "`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`"
        )),
        0 if r.device_missing_bytes > 0 => None,
        0 if is_full => Some(format!(
            "{first}the file system that {volume} lies on is full: make room there, `quayfs umount {mnt}`, mount again"
        )),
        0 => Some(format!(
            "{first}remove the cause, `quayfs umount {mnt}`, `quayfs fsck {volume}`, mount again"
        )),
    }
}

/// What is lost with the daemon, or could not be gone on with by another one.
fn continuity(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    if !r.unlinked.is_empty() {
        all.push((
            Health::Failed,
            format!("{}: {UNLINKED}", r.unlinked.join(" and ")),
            Some(format!(
                "copy what is on {mnt} to another volume before it is unmounted"
            )),
        ));
    }
    if r.device_missing_bytes > 0 {
        let size = quayfs_options::format_size(r.device_missing_bytes);
        all.push((
            Health::Failed,
            format!("the data device was cut short: its last {size} are not there any more"),
            Some("copy what can still be read; what lay there is in a backup, if anywhere".into()),
        ));
    }
    if r.region_missing_bytes > 0 {
        let size = quayfs_options::format_size(r.region_missing_bytes);
        all.push((
            Health::Failed,
            format!("the region was cut short: its last {size} are not there any more"),
            Some(format!(
                "copy what is on {mnt} to another volume before it is unmounted"
            )),
        ));
    }
    if let Some(why) = &r.hindrance {
        all.push((
            Health::Degraded,
            format!("no other daemon could go on with the mount: {why}"),
            Some(format!(
                "put that right, before the daemon ends or `quayfs umount {mnt}`"
            )),
        ));
    }
    if let Some(why) = &r.successor_lost {
        all.push((
            Health::Degraded,
            format!("{why}: the mount would end with its daemon"),
            Some(format!("`quayfs umount {mnt}`, then mount again")),
        ));
    }
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

fn damage(r: &Report, all: &mut Vec<Finding>) {
    let (mnt, volume) = (r.shown_mountpoint(), r.shown_volume());
    let damaged = r.scrub.as_ref().filter(|s| s.findings > 0);
    let todo = "write the files that it named anew, from a backup, or remove them: the log has their names";
    if let Some(why) = &r.passed_over {
        let what = format!("mounted over damage, and not all can be told: {why}");
        let todo = format!("`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`");
        all.push((Health::Degraded, what, Some(todo)));
    } else if r.errors.damage > 0 {
        all.push((
            Health::Degraded,
            format!(
                "damaged metadata was met {}",
                quayfs_shown::count(r.errors.damage, "time")
            ),
            Some(format!(
                "`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`"
            )),
        ));
    }
    if r.errors.reads > 0 && !is_whole_again(r) {
        let reads = quayfs_shown::count(r.errors.reads, "read");
        let what = format!("{reads} failed: blocks that are lost or unreadable");
        let todo = match damaged {
            Some(_) => None,
            None => Some(format!("`quayfs scrub {mnt}` names all damaged files")),
        };
        all.push((Health::Degraded, what, todo));
    }
    if let Some(s) = damaged {
        let what = format!("a scrub found damaged blocks or pages: {}", s.findings);
        all.push((Health::Degraded, what, Some(todo.into())));
    }
    if let Some(log) = &r.log {
        earlier(r, log.damage, all);
        all.extend(interrupted_repair(r, log));
        let losses = log.losses.iter().rev();
        all.extend(losses.filter_map(|repair| lost_by_repair(repair, &log.path)));
    }
}

/// A repair that has begun and not ended, and that nothing says a word of any more: nor does what it could not keep.
fn interrupted_repair(r: &Report, log: &Logged) -> Option<Finding> {
    let begun = log.begun_repair.as_ref().filter(|_| !r.repairing)?;
    let ago = seconds_since(begun.time);
    let what = format!(
        "a repair has begun {} ago and not ended: what it could not keep is not told",
        span(ago)
    );
    let todo = format!(
        "`grep found: {}` says what was wrong before it: put back from a backup what is missing; this ends after a day",
        quayfs_shown::argument(Path::new(&log.path))
    );
    (ago < LATELY).then_some((Health::Degraded, what, Some(todo)))
}

/// What a repair could not keep, while that is news.
fn lost_by_repair(repair: &Line, log: &str) -> Option<Finding> {
    let (_, losses) = repair.what.split_once(LOSSES)?;
    let ago = seconds_since(repair.time);
    let what = format!(
        "the repair {} ago could not keep everything: {losses}",
        span(ago)
    );
    let todo = format!(
        "put back from a backup what is missing: `grep repaired: {}` says what; this ends after a day",
        quayfs_shown::argument(Path::new(log))
    );
    (ago < LATELY).then_some((Health::Degraded, what, Some(todo)))
}

/// Whether a scrub has read everything since a read failed last, and found nothing.
fn is_whole_again(r: &Report) -> bool {
    let last = r.errors.recent.last().map_or(u64::MAX, |e| e.time);
    let scrubbed = (r.scrub.as_ref()).filter(|s| s.state == "finished" && s.findings == 0);
    scrubbed
        .and_then(|s| s.ended)
        .is_some_and(|ended| ended > last)
}

/// What only the log knows, of earlier mounts and of checks.
fn earlier(r: &Report, damage: Damage, all: &mut Vec<Finding>) {
    let volume = r.shown_volume();
    let found = match damage {
        Damage { structure: 1.., .. } => Some(format!(
            "the last check (`quayfs fsck`) has left findings: {}",
            damage.structure
        )),
        // What this mount has met has been said.
        Damage { met: true, .. } if r.errors.damage == 0 => Some(
            "damaged metadata was met, as the log tells, and nothing has checked the volume since"
                .into(),
        ),
        _ => None,
    };
    if let Some(what) = found {
        let todo = match &r.mountpoint {
            Some(_) => {
                let mnt = r.shown_mountpoint();
                format!("`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`")
            }
            None => unanswered::mend(r),
        };
        all.push((Health::Degraded, what, Some(todo)));
    }
    // What has been found by this mount is newer.
    let at = match (&r.scrub, &r.mountpoint) {
        (Some(s), _) if s.findings > 0 || s.state == "finished" => return,
        (_, Some(_)) => r.shown_mountpoint(),
        (_, None) => volume,
    };
    if damage.blocks > 0 {
        let n = damage.blocks;
        let what = format!("the last scrub or check in the log found damaged blocks or pages: {n}");
        let todo = format!(
            "`quayfs scrub {at}` names the files: write them anew, from a backup, or remove them; a scrub that finds nothing ends this"
        );
        all.push((Health::Degraded, what, Some(todo)));
    } else if damage.reads && r.errors.reads == 0 {
        let what = "reads of files have failed, as the log tells, and nothing has read everything since: blocks that are lost or unreadable";
        let todo = format!(
            "`quayfs scrub {at}` names all damaged files; one that finds nothing ends this"
        );
        all.push((Health::Degraded, what.into(), Some(todo)));
    }
    if damage.cut_short && r.device_missing_bytes == 0 && r.unmountable.is_none() {
        all.push((
            Health::Degraded,
            "the log tells of a data device that was cut short: what lay at its end is lost".into(),
            Some(format!(
                "`quayfs scrub {at}` names the files that it concerns"
            )),
        ));
    }
}

/// What to do where a larger region helps. Whether it can be had is told by the name: a look at the media may not be answered.
fn with_larger_region(r: &Report, at: &str) -> String {
    match is_device(r) {
        true => "remove files, or copy them to a volume with a larger region (`quayfs mkfs --pmem-size`)".into(),
        false => format!(
            "remove files; or make the region larger, which it can be if it is a file: `quayfs resize {at} --pmem SIZE`"
        ),
    }
}

fn is_device(r: &Report) -> bool {
    quayfs_fs::volume::is_device_path(Path::new(&r.volume))
}

fn shortages(r: &Report, all: &mut Vec<Finding>) {
    let at = match r.mountpoint {
        Some(_) => r.shown_mountpoint(),
        None => r.shown_volume(),
    };
    let mut short = |what: &str, used: u64, total: u64, todo: &str| {
        if total > 0 && used * 100 >= total * NEARLY_FULL {
            let share = percent(used, total);
            let todo = Some(todo.to_string());
            all.push((Health::Degraded, format!("{what}: {share} in use"), todo));
        }
    };
    if let Some(d) = &r.data {
        short(
            "data",
            d.used_bytes,
            d.total_bytes,
            &match is_device(r) {
                true => format!(
                    "remove files; or make the device larger, and then `quayfs resize {at} --data max`"
                ),
                false => format!("remove files, or make room: `quayfs resize {at} --data SIZE`"),
            },
        );
    }
    if let Some(i) = &r.inodes {
        // It is node pages that run short, or the inode table, which `mkfs` has made.
        let todo = match r.inode_table {
            Some(table) if i.total >= table => {
                "remove files, or copy them to a volume with a larger region (`quayfs mkfs --pmem-size`)"
                    .into()
            }
            _ => with_larger_region(r, &at),
        };
        short("inodes", i.used, i.total, &todo);
    }
    if let Some(region) = &r.region {
        short(
            "metadata in the region",
            region.metadata_used_bytes,
            region.metadata_bytes,
            &with_larger_region(r, &at),
        );
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
