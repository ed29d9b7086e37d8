//! `quayfs mount` up to the point where the daemon takes over.
//!
//! The daemon is this program again, started with `--daemon`: nothing is forked after threads
//! exist. It answers once on its standard output, and opens the log by itself, so that it can put it aside and open it
//! anew.

use quayfs_fs::volume::{config_of, glance, locate};
use quayfs_options::remount::{Live, Remount};
use quayfs_options::{Durability, MountOptions, stored};

use super::args;
use super::daemon::{self, Job};
use super::draining;
use super::exit::{Failure, MOUNT_FAILED, MOUNT_USAGE, say, warn};
use super::handover;
use super::helper::{Call, SUPERVISOR};
use super::log::{self, Destination};
use super::media;
use super::supervisor;
use super::unopened::{unopened, unreached};
use crate::mount::probe;
use crate::mount::server::{self, Served};
use crate::mount::{self, UnmountMode, table};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// After so long it is said what a mount waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `quayfs mount`.
pub fn run(args: args::Mount) -> Result<(), Failure> {
    let words: Vec<&str> = args.options.iter().map(String::as_str).collect();
    let mut options = MountOptions::parse(&words).map_err(Failure::with(MOUNT_USAGE))?;
    if options.remount {
        return remount(&args.mountpoint, &words);
    }
    // A daemon that was started for a mount has been told all of them.
    if !args.daemon {
        options = above_stored(&args.volume, &words, options)?;
    }
    let asked = args.log_file.as_deref();
    let may_go_on = options.ends_with_daemon().is_none();
    if may_go_on && (args.daemon || args.foreground) && handover::goes_on() {
        // All is as the first daemon has found it. Looking at the mount point now would wait for this very process.
        let (detached, names_log) = (args.daemon, asked.is_some());
        let mut job = known_job(args, options)?;
        return match detached {
            true => daemon::serve_detached(&job),
            false => {
                if !names_log {
                    job.log = Destination::Stderr(Box::new(job.log));
                }
                daemon::serve_in_foreground(&job)
            }
        };
    }
    let mut job = job(&args.volume, &args.mountpoint, options, asked)?;
    if args.daemon {
        return daemon::serve_detached(&job);
    }
    if args.foreground {
        if asked.is_none() {
            job.log = Destination::Stderr(Box::new(job.log));
        }
        draining::wait_while_closing(&job.volume)?;
        return daemon::serve_in_foreground(&job);
    }
    say(start(&job)?);
    Ok(())
}

/// Runs `mount.quayfs`.
pub fn helper(call: &Call) -> Result<(), Failure> {
    let options = call.mount_options().map_err(Failure::with(MOUNT_USAGE))?;
    let (volume, target) = (&call.operands[0], &call.operands[1]);
    if options.remount {
        return if call.fake {
            Ok(())
        } else {
            remount(target, &call.known_words()?)
        };
    }
    if call.may_be_missing() {
        return Ok(());
    }
    if let Some(target) = is_there(volume, target) {
        warn(format_args!(
            "{} is mounted on {} already: nothing is done",
            quayfs_shown::argument(volume),
            quayfs_shown::argument(&target)
        ));
        return Ok(());
    }
    let options = above_stored(volume, &call.known_words()?, options)?;
    let job = job(volume, target, options, None)?;
    if call.fake {
        return Ok(());
    }
    let report = start(&job)?;
    if call.verbose {
        say(report);
    }
    Ok(())
}

/// What is asked for, with what the volume keeps below it. One that cannot be looked at keeps nothing: the mount says what
/// is wrong with it.
fn above_stored(
    volume: &Path,
    words: &[&str],
    asked: MountOptions,
) -> Result<MountOptions, Failure> {
    let watch = media::Watch::of(volume);
    let kept = config_of(volume).map_or_else(|_| String::new(), |config| config.options());
    drop(watch);
    if kept.is_empty() {
        return Ok(asked);
    }
    stored::below(&kept, words).map_err(|e| {
        let kept = quayfs_shown::text(&kept);
        let why = format_args!("{e} (the volume keeps `{kept}`, which `quayfs tune` changes)");
        Failure::new(MOUNT_USAGE, why)
    })
}

/// The mount point, if the volume is mounted there, by its daemon's own word. `mount -a` asks again for what the mount
/// table shows under another name than fstab: with `fsname=`, or a device that has several names.
fn is_there(volume: &Path, target: &Path) -> Option<PathBuf> {
    let volume = volume.canonicalize().ok()?;
    let target = table::resolve(target).ok()?;
    let entry = table::mounted_on(&target).ok()??;
    let trusted = [Some(0), Some(rustix::process::geteuid().as_raw())];
    if !entry.is_fuse() || !trusted.contains(&entry.user_id()) {
        return None;
    }
    let status: serde_json::Value =
        serde_json::from_str(&probe::ask(&entry, server::PATIENCE).ok()?).ok()?;
    (status["volume"].as_str()? == volume.to_str()?).then_some(target)
}

/// Changes what a remount can change, once the daemon has said what is so. `lists`: values of `-o`.
fn remount(target: &Path, lists: &[&str]) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(MOUNT_FAILED, why);
    let shown = quayfs_shown::argument(target);
    let target = table::resolve(target).map_err(|e| failed(format!("{shown}: {e}")))?;
    let entry = table::mounted_on(&target)
        .map_err(|e| failed(format!("cannot read the mount table: {e}")))?
        .ok_or_else(|| {
            failed(format!(
                "nothing is mounted on {shown}: mount it without `remount`"
            ))
        })?;
    if !entry.is_fuse() {
        let kind = &entry.fstype;
        return Err(failed(format!("{shown} is {kind}, not QuayFS")));
    }
    let place = mount::Place::find(&target).map_err(|e| failed(format!("{shown}: {e}")))?;
    let live = live(&entry).map_err(failed)?;
    let change = Remount::parse(lists, &live).map_err(Failure::with(MOUNT_FAILED))?;
    mount::remount(&place, &entry, &change).map_err(Failure::with(MOUNT_FAILED))
}

/// What the daemon of a mount says about it.
fn live(entry: &table::Entry) -> Result<Live, String> {
    let shown = quayfs_shown::argument(&entry.target);
    let status = probe::ask(entry, server::PATIENCE).map_err(|e| match e {
        Errno::NOTCONN => {
            format!("the daemon of {shown} is dead: `quayfs umount {shown}`, then mount again")
        }
        Errno::TIMEDOUT => {
            format!("the daemon of {shown} does not answer, so it is not known what can be changed")
        }
        e if entry.is_quayfs() => format!("the daemon of {shown} cannot be asked: {e}"),
        _ => format!("{shown} is {}, not QuayFS", entry.fstype),
    })?;
    let nonsense = || format!("{shown} answers nonsense about itself");
    let status: serde_json::Value = serde_json::from_str(&status).map_err(|_| nonsense())?;
    let options = status["options"].as_str().ok_or_else(nonsense)?;
    let options = MountOptions::parse(&[options]).map_err(|e| e.to_string())?;
    let durability = match status["durability"].as_str() {
        Some("op") => Durability::Op,
        Some("commit") => Durability::Commit,
        _ => return Err(nonsense()),
    };
    Ok(Live {
        options,
        durability,
        read_only: status["read_only"].as_bool().ok_or_else(nonsense)?,
        table: entry.superblock.clone(),
    })
}

/// Checks the paths and makes them absolute, so that the daemon needs no working directory.
fn job(
    volume: &Path,
    target: &Path,
    options: MountOptions,
    log: Option<&Path>,
) -> Result<Job, Failure> {
    let failed = |why: String| Failure::new(MOUNT_FAILED, why);
    if volume.as_os_str().is_empty() {
        return Err(Failure::new(
            MOUNT_USAGE,
            "no volume is named; a service has it from VOLUME= in /etc/quayfs/NAME.conf",
        ));
    }
    let named = volume;
    let volume = volume
        .canonicalize()
        .map_err(|e| unreached(MOUNT_FAILED, named, &e))?;
    let target = mount::table::resolve(target).map_err(|e| {
        failed(format!(
            "cannot mount on {}: {e}",
            quayfs_shown::argument(target)
        ))
    })?;
    if volume.starts_with(&target) {
        let (v, t) = (
            quayfs_shown::argument(&volume),
            quayfs_shown::argument(&target),
        );
        return Err(failed(format!(
            "cannot mount on {t}: it would hide the volume {v} itself"
        )));
    }
    if let Ok(Some(entry)) = mount::table::mount_of(&volume)
        && !matches!(
            Served::find(&entry, UnmountMode::Normal),
            Served::Dead | Served::Foreign
        )
    {
        let (v, t) = (
            quayfs_shown::argument(&volume),
            quayfs_shown::argument(&entry.target),
        );
        return Err(failed(format!(
            "{v} is mounted on {t} already: use it there, or `quayfs umount {t}` first"
        )));
    }
    // Before anything is written there, be it a log.
    locate(named).map_err(unopened(MOUNT_FAILED))?;
    look_below(&target)?;
    let log = log::destination(&volume, log).map_err(|e| failed(format!("--log-file: {e}")))?;
    Ok(Job {
        log,
        volume,
        target,
        options,
    })
}

/// Looks at what is mounted there already: it would be hidden.
fn look_below(target: &Path) -> Result<(), Failure> {
    let Some(entry) = mount::table::mounted_on(target).ok().flatten() else {
        return Ok(());
    };
    if entry.fstype == "proc" {
        let t = quayfs_shown::argument(target);
        let why = format!("cannot mount on {t}: all programs find processes and mounts there");
        return Err(Failure::new(MOUNT_FAILED, why));
    }
    if entry.is_quayfs() && !matches!(Served::find(&entry, UnmountMode::Normal), Served::Dead) {
        let (t, hidden) = (quayfs_shown::path(target), Path::new(&entry.source));
        let hidden = quayfs_shown::path(hidden);
        warn(format_args!(
            "{t}: {hidden} is mounted there already, and is hidden by what is mounted over it"
        ));
    }
    Ok(())
}

/// The job of a daemon that goes on where another one has died: the paths are absolute, and have been looked at.
pub fn known_job(args: args::Mount, options: MountOptions) -> Result<Job, Failure> {
    let log = log::destination(&args.volume, args.log_file.as_deref())
        .map_err(|e| Failure::new(MOUNT_FAILED, format!("--log-file: {e}")))?;
    Ok(Job {
        volume: args.volume,
        target: args.mountpoint,
        options,
        log,
    })
}

/// Starts the daemon, when the last one of the volume has closed it, and waits until the mount answers. Warns where
/// needed, and returns what else to tell the user.
fn start(job: &Job) -> Result<String, Failure> {
    draining::wait_while_closing(&job.volume)?;
    let failed = |why: String| Failure::new(MOUNT_FAILED, why);
    let in_use = glance(&job.volume).is_ok_and(|volume| volume.in_use);
    // What is mounted there by then and was not before is a mount of this daemon.
    let before = mounts_on(&job.target);
    let cannot = |e| failed(format!("cannot start the daemon: {e}"));
    let command = daemon_of(job);
    let mut child = command
        .and_then(|mut command| command.spawn())
        .map_err(cannot)?;
    let mut answer = String::new();
    if let Some(pipe) = child.stdout.take() {
        if in_use && !answers_within(&pipe, PATIENCE) {
            warn(format_args!(
                "{}: in use by another process; its end is waited for, {} s at most",
                quayfs_shown::argument(&job.volume),
                daemon::PREDECESSOR.as_secs()
            ));
        }
        // A read error leaves the answer empty, which is handled below.
        let _ = BufReader::new(pipe).read_line(&mut answer);
    }
    match daemon::Answer::decode(answer.trim_end_matches('\n')) {
        Some(daemon::Answer::Ready(report)) => {
            report.warnings.iter().for_each(warn);
            Ok(report.text)
        }
        Some(daemon::Answer::Failed(failure)) => Err(failure),
        None => {
            let end = child.wait().map(|s| s.to_string()).unwrap_or_default();
            let log = job.log.path().unwrap_or_default();
            sweep(job, &before);
            Err(failed(format!(
                "the daemon ended while mounting ({end}): see {}",
                quayfs_shown::argument(&log)
            )))
        }
    }
}

/// What starts the daemon, which answers on its standard output.
fn daemon_of(job: &Job) -> std::io::Result<Command> {
    let mut command = program()?;
    if job.options.ends_with_daemon().is_none() {
        command.arg0(SUPERVISOR);
        supervisor::keep_small();
    }
    command.args(["mount", "--daemon"]);
    if let Destination::Asked(path) = &job.log {
        command.arg("--log-file").arg(path);
    }
    command
        .arg("-o")
        .arg(job.options.to_string())
        .arg("--")
        .args([&job.volume, &job.target])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Ok(command)
}

/// Whether anything comes from a pipe within that time, be it its end.
fn answers_within(pipe: &impl AsFd, patience: Duration) -> bool {
    let patience = patience.try_into().ok();
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut fds, patience.as_ref()).is_ok_and(|n| n > 0)
}

/// This program again, in no directory in particular.
pub fn program() -> std::io::Result<Command> {
    let mut command = Command::new(own_program()?);
    command.arg0("quayfs").current_dir("/");
    Ok(command)
}

fn mounts_on(target: &Path) -> Vec<table::Entry> {
    let mut entries = table::read().unwrap_or_default();
    entries.retain(|e| e.target == target);
    entries
}

/// Takes away what a daemon that is dead has mounted: it would stand in the way of the next try.
fn sweep(job: &Job, before: &[table::Entry]) {
    let made = mounts_on(&job.target)
        .into_iter()
        .rfind(|e| e.is_fuse() && before.iter().all(|b| b.id != e.id));
    let Some(made) = made else {
        return;
    };
    let gone = mount::Place::find(&job.target)
        .map_err(|e| e.to_string())
        .and_then(|place| {
            let detached = place.detach(UnmountMode::Lazy, Some(&made.device));
            detached.map_err(|e| e.to_string())
        });
    if let Err(why) = gone {
        warn(format_args!("a dead mount is left: {why}"));
    }
}

/// Ourselves, even if the file was replaced since.
fn own_program() -> std::io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    File::open(link).map(|_| link.into())
}
