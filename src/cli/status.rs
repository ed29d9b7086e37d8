//! `quayfs status`: whether a volume is well, and why not, on one screen and as an exit code.

mod below;
mod full;
mod health;
mod logged;
mod next;
mod parts;
mod report;
mod said;
mod text;

use quayfs_fs::volume::{VolumeError, glance};
use quayfs_layout::config::ConfigError;
use quayfs_pmem::PmemError;

use super::args;
use super::asking::{self, Heard};
use super::draining::{self, Closing};
use super::exit::{Failure, STATUS_UNKNOWN, say, say_json, warn};
use super::media::{LONG, glance_within, silence};
use super::unopened::{has_lost_its_beginning, unopened};
use super::unserved;
use super::work::done_by;
use crate::mount::loops;
use crate::mount::server::Server;
use crate::mount::table::{self, Entry};
pub use below::Below;
use full::Obstacle;
pub use health::stored_by;
pub use logged::{
    ABOUT, Blocks, Checked, Damage, LAST_DAEMON, Logged, RepairBegins, RepairFailed, Repaired,
};
pub use next::{beheaded, hindrance};
pub use report::Daemon;
use report::Report;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// How long a daemon may take to say how it is.
const PATIENCE: Duration = Duration::from_millis(900);
/// From so much processor time on, in ticks of mostly 10 ms, a daemon that was asked that long was not waiting.
const BUSY: u64 = 5;

/// The version of what `--json` prints: counted up when a field is renamed, removed or changes its meaning.
const SCHEMA: u32 = 1;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct All {
    schema: u32,
    volumes: Vec<Report>,
}

/// Says how one volume is, or all that are mounted or being closed; the exit code is that of the worst.
pub fn run(args: &args::Status) -> Result<u8, Failure> {
    let volumes = match &args.target {
        Some(target) => vec![of_target(target)?],
        None => all()?,
    };
    let worst = volumes.iter().map(|v| v.health).max().unwrap_or_default();
    if args.json {
        let schema = SCHEMA;
        let all = serde_json::to_string(&All { schema, volumes });
        say_json(all.map_err(Failure::with(STATUS_UNKNOWN))?);
    } else if volumes.is_empty() {
        say("no volume is mounted");
    } else {
        let blocks: Vec<String> = volumes.iter().map(text::block).collect();
        say(blocks.join("\n").trim_end());
    }
    Ok(worst.code())
}

/// What is mounted, and what is being closed.
fn all() -> Result<Vec<Report>, Failure> {
    let mut volumes = all_mounted()?;
    let closing = draining::all()
        .into_iter()
        .map(|(found, closing)| match found {
            Ok(volume) => Report::at_rest(&volume, Some(closing)),
            Err(uuid) => Report::unseen(uuid, closing),
        });
    volumes.extend(closing);
    volumes.extend(out_of_sight()?);
    Ok(volumes)
}

/// Trees that were unmounted lazily and are still used: daemons of this mount namespace serve them, and no mount table has
/// them. The media are not looked at, which may not answer; and names of sockets are free for all, so only daemons of this
/// user are listed. What those of others serve may be mounted where only they can tell.
fn out_of_sight() -> Result<Vec<Report>, Failure> {
    let entries = table::read().map_err(asking::mount_table(STATUS_UNKNOWN))?;
    let mut seen: BTreeSet<_> = entries.into_iter().map(|entry| entry.device).collect();
    let me = rustix::process::geteuid().as_raw();
    let mut reports = Vec::new();
    for (device, server, user) in Server::all_serving() {
        let daemon = server.pid().filter(|_| user == me);
        if let Some(pid) = daemon
            && let Some(volume) = unserved::volume_of(pid)
            && seen.insert(device.clone())
        {
            let report = Report::out_of_sight(&volume, server.is_stopped());
            reports.push(report.served_elsewhere(&device, &server));
        }
    }
    Ok(reports)
}

/// What is mounted, each file system once, wherever else it is mounted too.
fn all_mounted() -> Result<Vec<Report>, Failure> {
    let mut volumes = Vec::new();
    let entries = table::read().map_err(asking::mount_table(STATUS_UNKNOWN))?;
    for entry in table::each_once(&entries) {
        match of_mount(entry) {
            Ok(report) => volumes.push(report),
            Err(_) if table::is_gone(entry) => {}
            Err(failure) => warn(failure.line),
        }
    }
    Ok(volumes)
}

fn of_target(target: &Path) -> Result<Report, Failure> {
    loop {
        let (path, entry) = asking::find(target, STATUS_UNKNOWN)?;
        let by_loop = || loops::mount_of(&path).map_err(asking::mount_table(STATUS_UNKNOWN));
        let entry = match entry {
            Some(entry) => Some(entry),
            None => by_loop()?,
        };
        let Some(entry) = entry else {
            return at_rest(&path);
        };
        match of_mount(&entry) {
            // It ended just now: what is there instead was asked.
            Err(_) if table::is_gone(&entry) => {}
            told => return told,
        }
    }
}

fn at_rest(path: &Path) -> Result<Report, Failure> {
    let volume = match glance_within(path, LONG) {
        Some(Ok(volume)) => volume,
        Some(Err(e)) if is_beyond_mounting(&e) => {
            return Ok(Report::unmountable(path, Obstacle::Media(e.to_string())));
        }
        Some(Err(e)) if has_lost_its_beginning(&e) => {
            let obstacle = next::known_by_copy(path).ok_or(e);
            let obstacle = obstacle.map_err(unopened(STATUS_UNKNOWN))?;
            return Ok(Report::unmountable(path, obstacle));
        }
        Some(Err(e)) => return Err(unopened(STATUS_UNKNOWN)(e)),
        None => {
            let shown = quayfs_shown::argument(path);
            let why = format_args!("{shown}: {}", silence(LONG));
            return Err(Failure::new(STATUS_UNKNOWN, why));
        }
    };
    let closing = (volume.in_use)
        .then(|| draining::state_soon(path))
        .flatten();
    let again = (volume.in_use && closing.is_none()).then(|| glance(path).ok());
    let volume = again.flatten().unwrap_or(volume);
    if volume.in_use
        && closing.is_none()
        && let Some((device, server)) = unserved::server_of(&volume.path)
    {
        let stopped = server.pid().filter(|_| server.is_stopped());
        let report = Report::at_rest(&volume, stopped.map(Closing::Stopped));
        return Ok(report.served_elsewhere(&device, &server));
    }
    let supervisor = (volume.in_use && closing.is_none())
        .then(|| unserved::supervisor_left(&volume.path))
        .flatten();
    let report = Report::at_rest(&volume, closing);
    Ok(match supervisor {
        Some(pid) => report.stored_by(pid),
        None => report,
    })
}

/// Whether there is a volume that no mount takes.
fn is_beyond_mounting(e: &VolumeError) -> bool {
    match e {
        VolumeError::Pairing { .. } | VolumeError::Incomplete { .. } => true,
        VolumeError::Config { why, .. } => *why != ConfigError::NotQuayfs,
        VolumeError::Pmem(e) => matches!(e, PmemError::Length { .. } | PmemError::Cut { .. }),
        _ => false,
    }
}

/// How a mount is. One whose daemon does not answer is described by what lies on the media, and by what is known of that
/// process.
fn of_mount(entry: &Entry) -> Result<Report, Failure> {
    let done = || Server::of(entry).and_then(|server| done_by(server.pid()?));
    let before = done();
    match asking::hear(entry, PATIENCE, STATUS_UNKNOWN)? {
        Heard::Status(status) => {
            let report = Report::live(&entry.target, entry.is_read_only(), &status);
            Ok(report.look_ahead(entry))
        }
        Heard::Nothing(why) => {
            let is_busy = before.zip(done()).is_some_and(|(b, a)| works(b, a));
            let volume = unserved::glance_of(entry);
            Ok(Report::unserved(entry, (why, is_busy), volume))
        }
    }
}

/// Whether a daemon has done more between two looks than its timers do.
fn works(before: [u64; 3], after: [u64; 3]) -> bool {
    after[0] >= before[0] + BUSY || after[1..] != before[1..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_no_work() {
        let before = [100, 7, 7];
        assert!(!works(before, [100 + BUSY - 1, 7, 7]));
        for busy in [[100 + BUSY, 7, 7], [100, 8, 7], [100, 7, 8]] {
            assert!(works(before, busy), "{busy:?}");
        }
    }
}
