//! What is said of a volume that no daemon answers for.

use super::super::full::Obstacle;
use super::super::report::{Report, State};
use super::{About, Finding, Health, fsck_unmounted};
use crate::cli::media::{PATIENCE, silence};
use crate::cli::status::next::write_protected;
use std::path::{Path, PathBuf};

/// Adds what is wrong, and what to do.
pub fn of(r: &Report, all: &mut Vec<Finding>) {
    let (mnt, volume) = (r.shown_mountpoint(), r.volume_to_name());
    match r.state {
        State::Mounted | State::Closing => {}
        State::Dead => dead(r, all),
        State::Stopped => all.push((
            Health::Failed,
            About::Service,
            match r.mountpoint {
                Some(_) => "the daemon is stopped (SIGSTOP or a debugger): every call waits",
                None if r.is_served => {
                    "its daemon is stopped (SIGSTOP or a debugger), and no mount of it can be seen from here"
                }
                None => "the daemon that closes it is stopped (SIGSTOP or a debugger)",
            }
            .into(),
            Some(match &r.daemon {
                Some(daemon) => format!("`kill -CONT {}` lets it go on", daemon.pid),
                None => "let it go on (`kill -CONT`)".into(),
            }),
        )),
        State::Silent if r.is_busy => all.push((
            Health::Degraded,
            About::Service,
            "the daemon is busy: it has not answered within a second, but works".into(),
            Some("ask again; `top` shows what else the machine does".into()),
        )),
        State::Silent => silent(r, all),
        State::Broken => {
            let last = r.log.as_ref().and_then(|log| log.last_error.as_ref());
            let why = last.map_or("every call fails", |line| line.what.as_str());
            all.push((
                Health::Failed,
                About::Service,
                format!("the root directory cannot be read: {why}"),
                Some(format!("`quayfs umount {mnt}`, then `quayfs fsck --repair {volume}`")),
            ));
        }
        State::Unmounted => at_rest(r, all),
        State::InUse => all.push(in_use(r)),
    }
}

/// A daemon serves it that is well, and no mount of it is in sight.
fn in_use(r: &Report) -> Finding {
    if let Some(pid) = r.stored_by {
        let what = stored_by(pid);
        let todo = "wait for that; its log says what is in the way, if anything is".into();
        return (Health::Degraded, About::Service, what, Some(todo));
    }
    let what = match (&r.daemon, &r.elsewhere) {
        (Some(daemon), Some(place)) => {
            format!("{place}: process {} still serves it", daemon.pid)
        }
        (Some(daemon), None) => format!(
            "unmounted with -l, or mounted where it cannot be seen from here, and still in use: process {} serves it",
            daemon.pid
        ),
        (None, _) => "in use by a process whose mount cannot be seen from here".into(),
    };
    let todo = match r.elsewhere {
        Some(_) => "unmount it there, or end what uses it".into(),
        None => format!(
            "`fuser -v {}` names it; a tree that was unmounted lazily ends with its last user",
            r.volume_to_name()
        ),
    };
    (Health::Degraded, About::Service, what, Some(todo))
}

/// What keeps a volume in use whose mount was taken away when it had no daemon.
pub fn stored_by(supervisor: i32) -> String {
    format!(
        "in use by the supervisor (process {supervisor}) of its last mount, which was taken away when its daemon was dead: what \
         that had stored is still to be put on the media, and the supervisor ends then, or after two minutes in which that \
         cannot be done"
    )
}

fn silent_media(r: &Report) -> String {
    format!("{}: {}", r.shown_volume(), silence(PATIENCE))
}

/// Every call fails. What a mount would be refused for comes before that.
fn dead(r: &Report, all: &mut Vec<Finding>) {
    let (mnt, volume) = (r.shown_mountpoint(), r.volume_to_name());
    let again = format!("`quayfs umount {mnt}`, then mount again");
    let f = (Health::Failed, About::Service);
    let (why, todo) = match &r.unmountable {
        Some(Obstacle::Silence) => (
            Some(silent_media(r)),
            format!("look at what it lies on; when that answers, {again}"),
        ),
        Some(Obstacle::Media(why)) if is_cut(why) => (
            Some(why.clone()),
            format!(
                "make it as long again, {again}; `quayfs scrub {mnt}` names the files that have lost something"
            ),
        ),
        Some(Obstacle::Media(why)) => (
            Some(why.clone()),
            format!("put back what is missing, {again}"),
        ),
        Some(Obstacle::Damage(why)) => (
            Some(format!("it cannot be mounted and used: {why}")),
            format!("`quayfs umount {mnt}`, then {}", mend(r)),
        ),
        Some(Obstacle::Failure(why)) => (
            Some(format!("it cannot be mounted: {why}")),
            format!(
                "`quayfs umount {mnt}`, then `quayfs fsck {volume}`, once the media can be read"
            ),
        ),
        Some(Obstacle::Other(why)) => (Some(why.clone()), format!("put it right, {again}")),
        None if is_damaged(r) => (None, fsck_unmounted(r)),
        None => (None, again),
    };
    all.extend(why.map(|why| (f.0, f.1, why, None)));
    let what = "the daemon is gone: every call fails".into();
    all.push((f.0, f.1, what, Some(todo)));
}

/// Whether that is a part which is shorter than it was.
fn is_cut(why: &str) -> bool {
    why.contains(": truncated: ")
}

/// Whether the log has damage that nothing has repaired since.
fn is_damaged(r: &Report) -> bool {
    (r.log.as_ref()).is_some_and(|log| log.damage.structure > 0 || log.damage.met)
}

/// It may be that the next daemon cannot begin.
fn silent(r: &Report, all: &mut Vec<Finding>) {
    let mnt = r.shown_mountpoint();
    if let Some(pid) = r.stopped_supervisor {
        let what =
            format!("the daemon does not answer, and its supervisor (process {pid}) is stopped");
        let todo = format!("`kill -CONT {pid}` lets it go on");
        return all.push((Health::Failed, About::Service, what, Some(todo)));
    }
    let todo = match &r.unmountable {
        Some(Obstacle::Silence) => {
            all.push((Health::Failed, About::Service, silent_media(r), None));
            "look at what it lies on; what waits goes on when that answers".into()
        }
        Some(Obstacle::Media(why)) => {
            all.push((Health::Failed, About::Service, why.clone(), None));
            format!("put back what is missing, or `quayfs umount --force {mnt}`")
        }
        Some(Obstacle::Other(why)) => {
            all.push((Health::Failed, About::Service, why.clone(), None));
            "put it right: the next daemon waits for that, two minutes at most".into()
        }
        Some(Obstacle::Damage(why)) => {
            all.push((Health::Failed, About::Service, why.clone(), None));
            format!("`quayfs umount --force {mnt}`, then {}", mend(r))
        }
        _ => "ask again; look at the log, and at the disks (`dmesg`)".into(),
    };
    let what = "the daemon has not answered within a second".into();
    all.push((Health::Failed, About::Service, what, Some(todo)));
}

fn at_rest(r: &Report, all: &mut Vec<Finding>) {
    let volume = r.volume_to_name();
    if r.repairing {
        all.push((
            Health::Failed,
            About::Service,
            "a repair has begun and not ended".into(),
            Some(match failed_repair(r) {
                Some(_) => mend(r),
                None => format!("`quayfs fsck --repair {volume}`"),
            }),
        ));
    } else if let Some(obstacle) = &r.unmountable {
        let (why, todo) = match obstacle {
            Obstacle::Silence => (&silent_media(r), None),
            Obstacle::Media(why) => (
                why,
                Some(match is_cut(why) {
                    true => format!(
                        "make it as long again, mount it, then `quayfs scrub MOUNTPOINT` names the files that have lost something; `quayfs fsck --data {volume}` does so before"
                    ),
                    false => format!(
                        "put back what is missing; then `quayfs fsck --data {volume}` says whether it is whole"
                    ),
                }),
            ),
            Obstacle::Damage(why) => (why, Some(mend(r))),
            Obstacle::Failure(why) => (
                why,
                Some(format!(
                    "`quayfs fsck {volume}`, once the media can be read"
                )),
            ),
            Obstacle::Other(why) => (why, None),
        };
        let what = match obstacle {
            // A mount may be made, and have no root.
            Obstacle::Damage(_) => format!("it cannot be mounted and used: {why}"),
            _ => format!("it cannot be mounted: {why}"),
        };
        all.push((Health::Failed, About::Service, what, todo));
    } else if r.clean.is_none() {
        all.push((
            Health::Failed,
            About::Service,
            "the superblock is damaged".into(),
            Some(mend(r)),
        ));
    } else if r.clean == Some(false) {
        // What a check has found comes first.
        all.push(not_closed(r, write_protected(Path::new(&r.volume))));
    }
}

/// A volume that is to be recovered. `protected`: the part of it that cannot be written.
pub(super) fn not_closed(r: &Report, protected: Option<PathBuf>) -> Finding {
    let (mut what, mount) = (
        "not unmounted cleanly".to_string(),
        "mount it: that recovers what was durable",
    );
    let todo = match protected {
        Some(part) => {
            let shown = quayfs_shown::argument(&part);
            what += &format!(
                ", and {shown} is write-protected: a mount is read-only, and recovers nothing for good"
            );
            match part.starts_with("/dev/") {
                true => {
                    format!("make the device writable (`blockdev --setrw {shown}`), then {mount}")
                }
                false => format!("make it writable, then {mount}"),
            }
        }
        None => mount.into(),
    };
    // What a check has found comes first.
    let todo = (!is_damaged(r)).then_some(todo);
    (Health::Degraded, About::NotClosed, what, todo)
}

/// What mends a volume that is not mounted, or whether nothing does.
pub fn mend(r: &Report) -> String {
    let volume = r.volume_to_name();
    if let Some(why) = failed_repair(r) {
        return format!(
            "the last `quayfs fsck --repair` has failed ({why}): remove the cause and try again, or make a new volume from a backup"
        );
    }
    match (r.log.as_ref()).is_some_and(|log| log.damage.beyond_repair) {
        true => "a repair could not mend it: make a new volume from a backup".into(),
        // What the journal had is on the device by now, but for an unmount with `--no-drain`.
        false if r.clean == Some(true) => format!(
            "`quayfs fsck --repair {volume}`; since it was unmounted, damage to the journal mostly costs nothing; what else cannot be \
             mended has to come from a backup"
        ),
        false => format!(
            "`quayfs fsck --repair {volume}`; what it cannot mend has to come from a backup"
        ),
    }
}

/// Why the last repair has failed, if no other one nor a check has ended since.
fn failed_repair(r: &Report) -> Option<&str> {
    r.log.as_ref()?.failed_repair.as_deref()
}
