//! `quayfs umount`: unmount, then wait until the daemon has closed the volume, and say how that went.

use quayfs_fs::recovery::journal_geometry;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use quayfs_options::format_size;

use super::args;
use super::asking::{self, Heard};
use super::exit::{Failure, MOUNT_FAILED, say, warn};
use crate::mount::control::supervisor_process;
use crate::mount::probe::ask;
use crate::mount::server::{
    Ending, NO_DRAIN, PATIENCE, PROGRESS, Served, Server, process_ends_within,
};
use crate::mount::superblock::Superblock;
use crate::mount::table::Entry;
use crate::mount::{Place, UnmountMode, utab};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use detach::detach;
use elsewhere::lives_on;
use wait::Waited;

mod detach;
mod elsewhere;
mod wait;

/// How long to wait for the lock of a volume whose daemon cannot be watched.
const LOCK: Duration = Duration::from_secs(10);
/// The same where the user wants to be rid of the mount.
const LOCK_FORCED: Duration = Duration::from_secs(1);
/// How long the end of a mount without a daemon may take without a word.
const SOON: Duration = Duration::from_secs(2);
/// How long a file system that is mounted nowhere in sight may take to end. A daemon that tells the mount table of a
/// failure keeps it for a moment, and so does the kernel with files that it closes in the background.
const PASSING: Duration = Duration::from_secs(10);

/// How to unmount, and what to show.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// What becomes of a tree that is in use.
    mode: UnmountMode,
    /// What is staged stays in the region.
    no_drain: bool,
    /// How far it is is not shown.
    quiet: bool,
}

impl From<UnmountMode> for How {
    fn from(mode: UnmountMode) -> Self {
        Self {
            mode,
            no_drain: false,
            quiet: false,
        }
    }
}

impl From<&args::Umount> for How {
    fn from(args: &args::Umount) -> Self {
        Self {
            mode: args.mode(),
            no_drain: args.no_drain,
            quiet: args.quiet,
        }
    }
}

/// Unmounts what is mounted on `target`, or the volume that is there.
///
/// When it returns well, the daemon has ended and the volume is closed: whatever was staged is on the data device, or, if
/// it was to stay staged, in the region, which is durable. This does not hold with [`UnmountMode::Lazy`], which does not
/// wait, nor if the file system is mounted elsewhere as well: then it lives on, and that is said.
///
/// # Errors
/// Nothing was unmounted, or the volume was not closed.
pub fn run(target: &Path, how: How) -> Result<(), Failure> {
    unmount(target, how).map_err(Failure::with(MOUNT_FAILED))
}

fn unmount(target: &Path, how: How) -> Result<(), String> {
    let mode = how.mode;
    let shown = quayfs_shown::argument(target);
    let entry = asking::mounted_at(target)?;
    let target = entry.target.clone();
    let place = Place::find(&target).map_err(|e| format!("{shown}: {e}"))?;
    let served = Served::find(&entry, mode);
    refuse(&served, &entry, mode)?;
    keep_the_last_copy(&served, &entry, mode)?;
    wish(&served, &entry, how)?;
    // What starts another daemon where this one dies, or is being replaced just now.
    let supervisor = supervisor_process(&entry);
    let superblock = Superblock::of(&entry);
    let leaves_users = detach(&place, (&entry, &served), mode, supervisor.is_some())?;
    if mode == UnmountMode::Lazy {
        // Only root may, and a line without a mount means nothing.
        let _ = utab::remove(entry.source.as_ref(), &target);
        if !matches!(served, Served::By(_))
            && let Some(why) = still_stores(supervisor.as_ref())
        {
            warn(format_args!("{shown} is unmounted; {why}"));
        }
        return Ok(());
    }
    if mode == UnmountMode::Normal && !leaves_users && superblock.lives() {
        let places = superblock.places();
        if !places.is_empty() || !superblock.ends_within(PASSING) {
            say(lives_on(&target, &places));
            if how.no_drain {
                warn("--no-drain has no effect: the file system does not end now");
            }
            return Ok(());
        }
    }
    if leaves_users || !superblock.lives() {
        // Only root may, and a line without a mount means nothing.
        let _ = utab::remove(entry.source.as_ref(), &target);
    }
    match served {
        Served::By(server) => finish(
            &server,
            supervisor.map(|(_, process)| process),
            (&entry, &superblock),
            how,
        ),
        Served::Dead => {
            // Whether they are is not looked up: what they lie on may not answer, and this would not end then.
            let why = "its daemon had died: the next mount recovers what was durable by then, if the media are whole";
            warn(format_args!("{shown} is unmounted; {why}"));
            if leaves_users {
                warn(
                    "processes still have files of it open, or work in it: what they call there fails, as before, until they \
                     have closed it",
                );
            }
            Ok(())
        }
        Served::Silent | Served::OutOfSight | Served::Foreign => {
            match still_stores(supervisor.as_ref()) {
                Some(why) => Err(why),
                None => judge(&entry, mode),
            }
            .map_err(|why| format!("{shown} is unmounted, but {why}"))
        }
    }
}

/// What keeps a volume in use whose mount is gone, and has no daemon that would say how it ends.
fn still_stores(supervisor: Option<&(i32, OwnedFd)>) -> Option<String> {
    let (pid, process) = supervisor?;
    let lives_on = process_ends_within(process.as_fd(), SOON) == Ok(false);
    lives_on.then(|| {
        format!(
            "what its last daemon had stored is still to be put on the media by its supervisor (process {pid}), and as long \
             the volume is in use, at most two minutes if that cannot be done"
        )
    })
}

/// Tells the daemon what is wanted of it when the file system is gone.
fn wish(served: &Served, entry: &Entry, how: How) -> Result<(), String> {
    let shown = quayfs_shown::argument(&entry.target);
    let Served::By(server) = served else {
        return match how.no_drain {
            true => Err(format!(
                "{shown}: --no-drain: its daemon cannot be told so from here"
            )),
            false => Ok(()),
        };
    };
    if how.no_drain {
        let status = ask(entry, PATIENCE).map_err(|e| {
            format!("{shown}: --no-drain: its daemon does not say whether that is safe: {e}")
        })?;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        match status["leaves_staged"].as_bool() {
            Some(true) => {}
            Some(false) => {
                return Err(format!(
                    "{shown}: --no-drain: the region lies in ordinary memory (backend `volatile`), and what stays there \
                     is lost with the machine; unmount without it"
                ));
            }
            None => {
                return Err(format!(
                    "{shown}: --no-drain: its daemon is of a version that always drains; unmount without it"
                ));
            }
        }
        if !server.ask_for(NO_DRAIN) {
            return Err(format!("{shown}: --no-drain: its daemon cannot be told so"));
        }
    }
    // Without it there is nothing to show.
    server.ask_for(PROGRESS);
    Ok(())
}

/// What cannot be unmounted, and what would only wait for an answer that may never come.
fn refuse(served: &Served, entry: &Entry, mode: UnmountMode) -> Result<(), String> {
    let shown = quayfs_shown::argument(&entry.target);
    match served {
        Served::Foreign => {
            let kind = &entry.fstype;
            Err(format!(
                "{shown} is {kind}, not QuayFS: use `umount {shown}`"
            ))
        }
        Served::Silent if mode == UnmountMode::Normal => Err(format!(
            "{shown}: its daemon does not answer; {}",
            way_out(&shown)
        )),
        Served::By(server) if mode == UnmountMode::Normal && server.is_stopped() => {
            let pid = server.pid().unwrap_or_default();
            Err(format!(
                "{shown}: its daemon is stopped; `kill -CONT {pid}` lets it go on, {}",
                way_out(&shown)
            ))
        }
        _ => Ok(()),
    }
}

/// A part whose file was removed is in its daemon, and nowhere else.
fn keep_the_last_copy(served: &Served, entry: &Entry, mode: UnmountMode) -> Result<(), String> {
    if mode != UnmountMode::Normal || !matches!(served, Served::By(_)) {
        return Ok(());
    }
    // Its daemon may be too busy to answer, or the mount another one's: then this is no reason.
    let Ok(Heard::Status(status)) = asking::hear(entry, PATIENCE, MOUNT_FAILED) else {
        return Ok(());
    };
    let shown = quayfs_shown::argument(&entry.target);
    match asking::irreplaceable(&status, &shown) {
        Some(why) => Err(format!("{why}, then `quayfs umount -l {shown}`")),
        None => Ok(()),
    }
}

fn way_out(shown: impl std::fmt::Display) -> String {
    format!("`quayfs umount -l {shown}` takes the mount away without it")
}

/// Waits for the daemon, and says how it has ended.
fn finish(
    server: &Server,
    supervisor: Option<OwnedFd>,
    (entry, superblock): (&Entry, &Superblock),
    how: How,
) -> Result<(), String> {
    let mode = how.mode;
    let shown = quayfs_shown::argument(&entry.target);
    let pid = server.pid().map_or("?".into(), |pid| pid.to_string());
    let waited = wait::until_end(server, mode, how.quiet)
        .map_err(|e| format!("{shown} is unmounted, but its daemon cannot be waited for: {e}"))?;
    let held = "the volume is in use until it ends; its log says more";
    match waited {
        // The volume is reserved until what would start another daemon ends, too.
        Waited::Ended => {
            if let Some(supervisor) = supervisor
                && !wait::until_gone(&supervisor, mode)
            {
                warn(format_args!(
                    "{shown} is unmounted, but its supervisor has not ended, and keeps the volume reserved until then"
                ));
            }
        }
        Waited::Stopped => {
            return Err(format!(
                "{shown} is unmounted, but its daemon is stopped and closes the volume only after `kill -CONT {pid}`"
            ));
        }
        Waited::Stuck if superblock.lives() => {
            return Err(format!(
                "{shown} is unmounted, but processes still use it, so its daemon (process {pid}) goes on: {held}"
            ));
        }
        Waited::Stuck => {
            return Err(format!(
                "{shown} is unmounted, but its daemon (process {pid}) makes no progress with closing the volume: {held}"
            ));
        }
    }
    let unclosed =
        |why: String| format!("{shown} is unmounted, but the volume is not closed: {why}");
    match server.ending() {
        Some(Ending::Closed) => Ok(()),
        Some(Ending::Staged(bytes)) => {
            let size = format_size(bytes);
            say(format_args!(
                "{shown} is unmounted; {size} stay staged in the region until the volume is mounted again"
            ));
            Ok(())
        }
        Some(Ending::Damaged(why)) => {
            warn(format_args!(
                "{shown} is unmounted, and the volume is closed, but {why}"
            ));
            Ok(())
        }
        Some(Ending::ShutDown) => {
            let why = "it had been shut down: the next mount recovers the volume";
            warn(format_args!("{shown} is unmounted; {why}"));
            Ok(())
        }
        Some(Ending::Left(why)) => Err(unclosed(why)),
        // It has left the end to the next one, which says nothing to a process that it does not know of.
        None => judge(entry, mode).map_err(unclosed),
    }
}

/// What the volume itself says, where the daemon cannot: whether it was closed.
fn judge(entry: &Entry, mode: UnmountMode) -> Result<(), String> {
    let unseen = |why: String| {
        format!(
            "its daemon died or cannot be watched from here, and whether the volume was closed cannot be seen: {why}"
        )
    };
    let source = Path::new(&entry.source);
    if !source.is_absolute() {
        let shown = quayfs_shown::argument(source);
        return Err(unseen(format!("the mount table names it {shown}")));
    }
    let patience = match mode {
        UnmountMode::Force => LOCK_FORCED,
        UnmountMode::Normal | UnmountMode::Lazy => LOCK,
    };
    let volume = match Volume::open(source, Access::ReadOnly, patience) {
        Ok(volume) => volume,
        Err(VolumeError::Busy(path)) => {
            let path = quayfs_shown::argument(&path);
            return Err(format!(
                "its daemon, which cannot be watched from here, has not closed {path} yet: `quayfs fsck {path}` says when"
            ));
        }
        Err(e) => return Err(unseen(e.to_string())),
    };
    // One that was mounted for writing may have become so, by a failure too.
    let is_read_only = entry.is_read_only();
    let salt = volume.config().salt();
    let geometry = journal_geometry(&volume.config().geometry, salt);
    match quayfs_journal::Journal::is_closed(volume.region(), &geometry) {
        Ok(true) => Ok(()),
        Ok(false) if is_read_only => Err(
            "neither its daemon, which had it read-only at the end, nor one before that has closed it: the next mount recovers what was durable by then"
                .into(),
        ),
        Ok(false) => Err(
            "its daemon ended before it was done: the next mount recovers what was durable by then"
                .into(),
        ),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use quayfs_fs::Fs;
    use quayfs_mkfs::{MkfsOptions, mkfs};
    use quayfs_options::MountOptions;

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let failure = run(Path::new("/proc"), UnmountMode::Normal.into()).unwrap_err();
        assert!(failure.line.contains("not QuayFS"), "{}", failure.line);
        let failure = run(Path::new("/no/such/place"), UnmountMode::Normal.into()).unwrap_err();
        assert_eq!(failure.code, MOUNT_FAILED);
        let dir = tempfile::tempdir().unwrap();
        let failure = run(dir.path(), UnmountMode::Normal.into()).unwrap_err();
        assert!(
            failure.line.contains("not a mount point"),
            "{}",
            failure.line
        );
    }

    #[test]
    fn a_volume_says_whether_it_was_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vol");
        let options = MkfsOptions {
            pmem_size: Some(32 << 20),
            data_size: Some(64 << 20),
            sparse: true,
            ..MkfsOptions::default()
        };
        mkfs(&path, &options).unwrap();
        let options = MountOptions::parse(&[]).unwrap();
        let mounted = || {
            let volume = Volume::open(&path, Access::ReadWrite, Duration::ZERO).unwrap();
            Fs::mount_quiet(volume, &options).unwrap()
        };
        let judged = |superblock: &str| {
            let entry = Entry {
                id: 1,
                parent: 0,
                device: "0:1048575".into(),
                root: "/".into(),
                target: "/mnt".into(),
                options: "rw".into(),
                fstype: "fuse.quayfs".into(),
                source: path.clone().into(),
                superblock: superblock.into(),
            };
            judge(&entry, UnmountMode::Force)
        };
        let fs = mounted();
        assert!(judged("rw").unwrap_err().contains("has not closed"));
        fs.shutdown().unwrap();
        drop(fs);
        judged("rw").unwrap();
        judged("ro").unwrap();
        let fs = mounted();
        fs.shutdown_leaving_staged().unwrap();
        drop(fs);
        judged("rw").unwrap();
        let fs = mounted();
        fs.abandon();
        drop(fs);
        let about = [
            ("rw", "ended before it was done"),
            ("ro,x", "read-only at the end"),
        ];
        for (superblock, about) in about {
            let why = judged(superblock).unwrap_err();
            assert!(why.contains(about), "{superblock}: {why}");
        }
    }
}
