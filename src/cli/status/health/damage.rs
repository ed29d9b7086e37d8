//! What is said of damage, and of what repairs could not keep.

use super::super::logged::{Damage, LOSSES, Line, Logged};
use super::super::report::{Report, Scrub};
use super::{About, Finding, Health, LATELY, fsck_unmounted, unanswered};
use crate::cli::units::{seconds_since, span};
use std::path::Path;

/// Adds what is damaged or lost, and what to do.
pub fn of(r: &Report, all: &mut Vec<Finding>) {
    let damaged = r.scrub.as_ref().filter(|s| s.findings > 0);
    let d = (Health::Degraded, About::Damage);
    if let Some(why) = &r.passed_over {
        let what = format!("mounted over damage, and not all can be told: {why}");
        all.push((d.0, d.1, what, Some(fsck_unmounted(r))));
    } else if r.errors.damage > 0 {
        let times = quayfs_shown::count(r.errors.damage, "time");
        let what = format!("damaged metadata was met {times}");
        all.push((d.0, d.1, what, Some(fsck_unmounted(r))));
    }
    if r.errors.reads > 0 && !is_whole_again(r) {
        let reads = quayfs_shown::count(r.errors.reads, "read");
        let what = format!("{reads} failed: blocks that are lost or unreadable");
        let todo = match damaged {
            Some(_) => None,
            None => Some(format!("{} names all damaged files", scrub(r))),
        };
        all.push((d.0, d.1, what, todo));
    }
    if let Some(s) = damaged {
        all.push(found_by_scrub(r, s));
    } else if let Some(pages) = mended(r) {
        let what = format!(
            "a scrub found damage on the disk of the region, and wrote {pages} again that were whole in memory"
        );
        let todo = "look at the disk (`dmesg`, `smartctl`); this notice goes away when a scrub finds nothing";
        all.push((d.0, d.1, what, Some(todo.into())));
    }
    if let Some(log) = r.log.as_ref().filter(|log| log.is_others_file) {
        let shown = quayfs_shown::argument(Path::new(&log.path));
        let what = format!(
            "the log {shown} belongs to another user than the daemon: what it says is lost"
        );
        let todo = "move the file away, or give it to the user of the daemon (`chown`)".to_string();
        all.push((Health::Degraded, About::Past, what, Some(todo)));
    }
    if let Some(log) = &r.log {
        earlier(r, log.damage, all);
        all.extend(interrupted_repair(r, log));
        let losses = log.losses.iter().rev();
        all.extend(losses.filter_map(|repair| lost_by_repair(repair, &log.path)));
    }
}

/// What the last scrub has mended.
fn mended(r: &Report) -> Option<String> {
    let last = r.scrub.as_ref().filter(|s| s.state != "never");
    match (last, &r.log) {
        (Some(s), _) if s.mended > 0 => Some(quayfs_shown::count(s.mended, "page")),
        // Another one has read everything since.
        (Some(s), _) if s.state == "finished" => None,
        (_, Some(log)) => log.damage.mended.then(|| "pages".into()),
        (_, None) => None,
    }
}

/// What the scrub of this mount has found, which may be more than content of files.
fn found_by_scrub(r: &Report, s: &Scrub) -> Finding {
    let mut what = format!("a scrub found damaged blocks or pages: {}", s.findings);
    if s.metadata > 0 {
        let (mnt, volume) = (r.shown_mountpoint(), r.volume_to_name());
        what += &format!(", of metadata: {}", s.metadata);
        let todo = format!(
            "copy what is on {mnt} to another volume, since the next mount may be refused; then `quayfs umount {mnt}`, `quayfs fsck --repair --data {volume}`"
        );
        return (Health::Degraded, About::Damage, what, Some(todo));
    }
    let todo = match &r.log {
        Some(log) => {
            let log = quayfs_shown::argument(Path::new(&log.path));
            format!(
                "restore the files from a backup, or remove them: `grep 'scrub: /' {log}` names them"
            )
        }
        None => "restore the files from a backup, or remove them: the log names them".into(),
    };
    (Health::Degraded, About::Damage, what, Some(todo))
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
        "`grep found: {}` says what was wrong before it: put back from a backup what is missing; this notice goes away after a day",
        quayfs_shown::argument(Path::new(&log.path))
    );
    (ago < LATELY).then_some((Health::Degraded, About::Damage, what, Some(todo)))
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
        "put back from a backup what is missing: `grep repaired: {}` says what; this notice goes away after a day",
        quayfs_shown::argument(Path::new(log))
    );
    (ago < LATELY).then_some((Health::Degraded, About::Damage, what, Some(todo)))
}

/// Whether a scrub has read everything since a read failed last, and found nothing.
fn is_whole_again(r: &Report) -> bool {
    let last = r.errors.recent.last().map_or(u64::MAX, |e| e.time);
    let scrubbed = (r.scrub.as_ref()).filter(|s| s.state == "finished" && s.findings == 0);
    scrubbed
        .and_then(|s| s.ended)
        .is_some_and(|ended| ended > last)
}

/// The scrub that can be made: a mount that has failed refuses it.
fn scrub(r: &Report) -> String {
    let (mnt, volume) = (r.shown_mountpoint(), r.shown_volume());
    match &r.mountpoint {
        Some(_) if r.has_failed => {
            format!("`quayfs umount {mnt}`, then `quayfs scrub {volume}`")
        }
        Some(_) => format!("`quayfs scrub {mnt}`"),
        None => format!("`quayfs scrub {volume}`"),
    }
}

/// What only the log knows, of earlier mounts and of checks.
fn earlier(r: &Report, damage: Damage, all: &mut Vec<Finding>) {
    let volume = r.volume_to_name();
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
            Some(_) => fsck_unmounted(r),
            None => unanswered::mend(r),
        };
        all.push((Health::Degraded, About::Damage, what, Some(todo)));
    }
    // What has been found by this mount is newer.
    if r.scrub
        .as_ref()
        .is_some_and(|s| s.findings > 0 || s.state == "finished")
    {
        return;
    }
    let scrub = scrub(r);
    if damage.blocks > 0 {
        let n = damage.blocks;
        let what = format!("the last scrub or check in the log found damaged blocks or pages: {n}");
        let todo = format!(
            "{scrub} names the files: restore them from a backup, or remove them (`quayfs fsck --repair --data {volume}`, unmounted, heals \
             blocks of which one bit has changed); this notice goes away when a scrub finds nothing"
        );
        all.push((Health::Degraded, About::Damage, what, Some(todo)));
    } else if damage.reads && r.errors.reads == 0 {
        let what = "reads of files have failed, as the log tells, and nothing has read everything since: blocks that are lost or unreadable";
        let todo = format!(
            "{scrub} names all damaged files; this notice goes away when a scrub finds nothing"
        );
        all.push((Health::Degraded, About::Damage, what.into(), Some(todo)));
    }
    if damage.cut_short && r.device_missing_bytes == 0 && r.unmountable.is_none() {
        all.push((
            Health::Degraded,
            About::Media,
            "the log tells of a data device that was cut short: what lay at its end is lost".into(),
            Some(format!("{scrub} names the files that it concerns")),
        ));
    }
}
