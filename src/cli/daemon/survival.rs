//! What a daemon has from the last one of its mount, and what it keeps for the next one.

use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use quayfs_options::{Restart, Transport};
use quayfs_restart::Requests;
use rustix::io::Errno;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

use super::{Job, Mounted, moving, open};
use crate::cli::advice::{RINGS, offers_no_rings};
use crate::cli::exit::{Failure, MOUNT_FAILED, NOT_NOW};
use crate::cli::handover::{self, Handover, Holder, Memory};
use crate::cli::status::LAST_DAEMON;
use crate::cli::{log, succession};
use crate::mount::{Place, table};

/// How long requests may take that are under way when another daemon is to go on, and then what works beside them. What
/// is not done by then is done again by that one.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
const LAST_WORK: Duration = Duration::from_secs(10);

/// What would hold the mount after the death of this process, and what is left of the last daemon, if any.
pub(super) fn found(
    job: &Job,
    given: Vec<OwnedFd>,
    warnings: &mut Vec<String>,
) -> io::Result<(Option<Holder>, Option<Handover>)> {
    let asked = job.options.restart == Some(Restart::On);
    if job.options.transport == Transport::Uring && offers_no_rings() {
        warnings.push(format!(
            "transport=uring: this kernel offers no rings now (`echo Y > {RINGS}` as root, where that is there), and requests come \
             by /dev/fuse"
        ));
    }
    if let Some(why) = job.options.ends_with_daemon() {
        if job.options.restart.is_none() {
            warnings.push(format!(
                "the mount ends when its daemon dies, as with norestart ({why})"
            ));
        }
        return Ok((None, None));
    }
    let found = Handover::take(given, asked)?;
    if asked && found.0.is_none() {
        warnings.push(format!("restart has no effect: {NOTHING_STARTS_ANOTHER}"));
    }
    Ok(found)
}

const NOTHING_STARTS_ANOTHER: &str = "nothing would start another daemon; mount in the background, or by a service \
                                      manager that holds descriptors";

/// Logs how the last daemon of the mount died, and what that cost.
pub(super) fn tell_of_the_last_one(fs: &Fs) {
    if let Some(last) = fs.predecessor() {
        let mut about = format!("{LAST_DAEMON}{}; no request is lost", last.cause);
        if let Some(pause) = handover::pause(last) {
            let _ = last.pause.set(pause);
            about.push_str(&format!(", none was answered for {pause:.1?}"));
        }
        match last.is_replaced {
            true => info!("{about}"),
            false => warn!("{about}"),
        }
    }
}

/// What started this daemon, if it wants to know how it is doing: what holds descriptors, or a service manager that holds
/// none.
pub(super) fn manager(holder: &Option<Holder>, detached: bool) -> Option<Holder> {
    let other = || (!detached).then(Holder::service_manager).flatten();
    holder.clone().or_else(other)
}

/// Tells that this daemon serves, and what the next one has to know.
pub(super) fn tell_of_this_one(manager: &Holder, fs: &Fs, mounted: &Mounted) {
    let mut text = format!(
        "{}\n{}{}",
        handover::READY,
        handover::VERSION,
        succession::VERSION
    );
    if let Some(requests) = &mounted.kept {
        let needs = succession::needs(&requests.connection(), fs.e.config.compat);
        text.push_str(&format!("\n{}{needs}", handover::NEEDS));
        if let Some(number) = &mounted.number {
            text.push_str(&format!("\n{}{number}", handover::DEVICE));
        }
    }
    manager.tell(&text);
}

/// Why this daemon serves on though another one is asked for.
fn why_it_stays(fs: &Fs) -> Option<String> {
    // Another daemon would not know what has failed.
    if fs.has_failed() {
        return Some("a mount that has failed stays".into());
    }
    let why = fs.why_it_ends_with_daemon()?;
    Some(format!(
        "another daemon is asked for, and none would come ({why}): this one goes on"
    ))
}

/// Leaves the mount to the next daemon, unless there is a reason to stay: then what was wished for is dropped. Whether
/// anything would start that daemon is looked at last, right before nothing is answered any more.
pub(super) fn hand_over(fs: &Arc<Fs>, holder: &Holder, mounted: &Mounted) {
    let requests = mounted.kept.as_deref();
    let why = why_it_stays(fs).or_else(|| {
        if requests.is_some_and(Requests::has_wish) {
            // The next one will drain the rest while nothing is answered.
            fs.drain_ahead();
        }
        if let Some(why) = holder.why_deaf(mounted.number.as_deref()) {
            fs.ends_with_daemon(why);
        }
        why_it_stays(fs)
    });
    let Some(why) = why else {
        leave(fs, holder, requests);
    };
    let _ = requests.and_then(Requests::take_wish);
    warn!("{why}");
}

/// Leaves the mount to the next daemon: answers what is under way, begins nothing more, lets what is on its way to the
/// media arrive there, and ends. All of that makes the end a quiet one; the next daemon goes on as after a death.
fn leave(fs: &Arc<Fs>, holder: &Holder, requests: Option<&Requests>) -> ! {
    info!("the mount is left to another daemon");
    let asked = handover::now();
    if holder.gate().close(LAST_ANSWERS) {
        let fs = Arc::clone(fs);
        let (done, ended) = channel();
        // It may wait for the kernel, which may wait for an answer that only the next daemon gives.
        let work = move || {
            fs.abandon();
            let _ = done.send(());
        };
        let begun = thread::Builder::new().name("abandon".into()).spawn(work);
        if begun.is_ok() && ended.recv_timeout(LAST_WORK).is_err() {
            warn!("what works in the background has not ended after {LAST_WORK:?}");
        }
    } else {
        // Nothing is ended for which a request may wait: it would be answered with an error.
        warn!("not all requests are answered after {LAST_ANSWERS:?}: they come again");
    }
    match requests {
        Some(requests) => holder.leave(requests, asked),
        None => holder.tell(handover::HANDED_OVER),
    }
    log::flush();
    std::process::exit(NOT_NOW.into())
}

/// Why this daemon cannot serve, where another one may: if there is a mount already.
pub(super) fn hindered(job: &Job, why: &dyn Display) -> Failure {
    let code = match job.options.ends_with_daemon().is_none() && handover::goes_on() {
        true => NOT_NOW,
        false => MOUNT_FAILED,
    };
    Failure::new(code, why)
}

/// Whether what is in the way may be gone the next time: all but what a volume is, and what is damaged.
pub(super) fn may_pass(e: &(dyn Error + 'static)) -> bool {
    let volume = e.downcast_ref::<VolumeError>().map(|e| {
        !matches!(
            e,
            VolumeError::Config { .. }
                | VolumeError::Header { .. }
                | VolumeError::Pairing { .. }
                | VolumeError::Features(_)
                | VolumeError::Fenced(_)
        )
    });
    let mount = e
        .downcast_ref::<MountError>()
        .map(|e| matches!(e, MountError::Device(_) | MountError::Io(_)));
    let system = e.downcast_ref::<io::Error>().map(|_| true);
    volume.or(mount).or(system).unwrap_or(false)
}

/// Where the mount is, or is to be. One that goes on may have been moved, or a directory above it renamed or covered since.
pub(super) fn place(job: &Job, handover: Option<&Handover>) -> Result<Place, Errno> {
    let found = Place::find(&job.target);
    let Some(number) = handover.and_then(Handover::number) else {
        return found;
    };
    if found
        .as_ref()
        .is_ok_and(|place| place.device().as_ref() == Ok(&number))
    {
        return found;
    }
    let table = table::read().unwrap_or_default();
    let targets = table.into_iter().filter(|e| e.device == number);
    let mut elsewhere = targets.filter_map(|e| Place::find(&e.target).ok());
    // Where it cannot be seen any more, it serves all the same.
    match elsewhere.next_back() {
        Some(place) => Ok(place),
        None => found.or_else(|_| Place::find(Path::new("/"))),
    }
}

/// Opens the volume, as the last daemon has left it if there was one, and with what is to be left to the next one; or
/// why nothing is, as far as that is known before the kernel is asked.
pub(super) fn take_over(
    job: &Job,
    (holder, handover): (Option<&Holder>, Option<&Handover>),
) -> Result<(Volume, Result<Memory, String>), Box<dyn std::error::Error>> {
    moving::before_opening(job, handover);
    let mut volume = open(job)?;
    if let Some(requests) = handover.map(|last| last.memory().requests)
        && let Some(token) = requests.fencing_token()
    {
        volume.check_fencing_token(token)?;
        if volume.config().fencing_token == 0 {
            // It gets another one, which this daemon may not live to note.
            requests.set_fencing_token(0);
        }
    }
    moving::after_opening(&mut volume, handover);
    if let Some(why) = job.options.ends_with_daemon() {
        return Ok((volume, Err(why.into())));
    }
    let Some(holder) = holder else {
        return Ok((volume, Err(NOTHING_STARTS_ANOTHER.into())));
    };
    holder.reserve(&volume)?;
    let memory = match outlive(&mut volume, job, handover) {
        Err(e) if handover.is_none() && job.options.restart.is_none() => {
            Err(format!("there is no memory that would outlive it: {e}"))
        }
        other => Ok(other?),
    };
    if let Some(handover) = handover {
        volume.follow(handover.predecessor()?);
    }
    Ok((volume, memory))
}

/// From here on what is stored to the region, and what is posted to the data device, outlives this process.
fn outlive(
    volume: &mut Volume,
    job: &Job,
    handover: Option<&Handover>,
) -> Result<Memory, Box<dyn std::error::Error>> {
    if handover.is_some() && volume.access() == Access::ReadOnly && !job.options.read_only {
        let why = volume.protected().unwrap_or("it is write-protected");
        return Err(format!("what the last daemon has stored cannot be written: {why}").into());
    }
    let memory = match handover {
        Some(handover) => handover.memory(),
        None => Memory::new()?,
    };
    let bytes = volume.outlive(memory.stores.try_clone()?)?;
    if bytes > 0 {
        info!("{bytes} bytes that the last daemon had stored are stored again");
    }
    volume.post_from(Arc::clone(&memory.postings));
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_layout::config::ConfigError;

    #[test]
    fn what_others_do_may_pass_and_what_a_volume_is_does_not() {
        let path = std::path::PathBuf::from("/volume");
        let config = VolumeError::Config {
            path: path.clone(),
            why: ConfigError::NotQuayfs,
        };
        let pairing = VolumeError::Pairing {
            path: path.clone(),
            why: "another one".into(),
        };
        let damaged = MountError::Damaged {
            count: 1,
            first: "a page".into(),
        };
        let cases: [(Box<dyn Error>, bool); 10] = [
            (VolumeError::Busy(path.clone()).into(), true),
            (VolumeError::Missing(path).into(), true),
            (config.into(), false),
            (pairing.into(), false),
            (VolumeError::Features(1 << 40).into(), false),
            (VolumeError::Fenced("/volume".into()).into(), false),
            (damaged.into(), false),
            (MountError::Repairing.into(), false),
            (
                MountError::Io(io::ErrorKind::OutOfMemory.into()).into(),
                true,
            ),
            (io::Error::other("no descriptors").into(), true),
        ];
        for (error, passes) in cases {
            assert_eq!(may_pass(&*error), passes, "{error}");
        }
    }
}
