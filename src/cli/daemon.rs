//! The process that serves a mount: from opening the volume to closing it.

use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use quayfs_options::MountOptions;
use quayfs_restart::Requests;
use quayfs_server::outside::Outside;

mod answer;
mod closing;
mod moving;
mod resizing;
mod serving;
mod signals;
mod survival;
mod watchdog;

pub use answer::{Answer, Report};
pub use moving::{FINISH, WATCH};

use super::confine;
use super::ending;
use super::exit::{Failure, MOUNT_FAILED};
use super::handover::{self, Handover, Holder, Memory};
use super::inherited;
use super::log::{self, Destination};
use super::turned;
use crate::mount::server::{Desk, Ending};
use crate::mount::{Mount, Pending, Place, table, utab};
use serving::NotServed;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long to wait for the previous daemon of the same volume to finish.
pub const PREDECESSOR: Duration = Duration::from_secs(10);

/// What to serve, and where. Paths are absolute.
#[derive(Debug)]
pub struct Job {
    /// The volume's directory.
    pub volume: PathBuf,
    /// The mount point.
    pub target: PathBuf,
    /// Options of the mount.
    pub options: MountOptions,
    /// Where to log.
    pub log: Destination,
}

/// Serves in the background: answers on the standard output, then closes it.
pub fn serve_detached(job: &Job) -> Result<(), Failure> {
    // It was started by a link in /proc, whose name `ps` and `pgrep` would show.
    let _ = rustix::thread::set_name(c"quayfs");
    inherited::leave_session();
    speak_on_fault(None, Some("failed 32 "));
    let answer = |answer: Answer| {
        let mut out = io::stdout();
        let sent = out
            .write_all(answer.encode().as_bytes())
            .and_then(|()| out.flush());
        if let Err(e) = sent {
            warn!("the process that waited for the mount has ended: {e}");
        }
        speak_on_fault(None, None);
        if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&null);
        }
    };
    let served = serve(job, true, |report| answer(Answer::Ready(report)));
    match &served {
        Err(Ended::BeforeReady(failure)) => tracing::error!("{}", failure.line),
        Err(Ended::InUse(failure)) => warn!("{}", failure.line),
        Ok(()) | Err(Ended::AfterReady(_)) => {}
    }
    log::flush();
    match served {
        Ok(()) => Ok(()),
        Err(Ended::BeforeReady(failure) | Ended::InUse(failure)) => {
            let code = failure.code;
            answer(Answer::Failed(failure));
            std::process::exit(code.into());
        }
        Err(Ended::AfterReady(failure)) => Err(failure),
    }
}

/// If a page of the region cannot be had, the daemon ends with a line in the log, and in the answer while a process
/// waits for that. Without a `log` the line goes to the standard error, which in the background is the log.
fn speak_on_fault(log: Option<RawFd>, answer: Option<&'static str>) {
    let ending = quayfs_pmem::Ending {
        code: MOUNT_FAILED,
        log,
        dated: true,
        answer,
    };
    // Otherwise it ends without a word.
    let _ = quayfs_pmem::exit_on_fault(ending);
}

/// Serves until unmounted or interrupted.
pub fn serve_in_foreground(job: &Job) -> Result<(), Failure> {
    let served = serve(job, false, |_| ());
    log::flush();
    served.map_err(|ended| match ended {
        Ended::BeforeReady(failure) | Ended::InUse(failure) | Ended::AfterReady(failure) => failure,
    })
}

/// Where `serve` failed decides where the failure is reported.
enum Ended {
    BeforeReady(Failure),
    /// Another mount has the volume, whose log this is too: nothing is wrong with it.
    InUse(Failure),
    AfterReady(Failure),
}

/// What becomes of serving.
enum Event {
    /// It has only begun.
    Started,
    /// The connection is gone.
    Unmounted(io::Result<()>),
    /// A signal asked for the end, and a process still holds on to the connection.
    GiveUp,
    /// A signal asked for another daemon.
    HandOver,
}

/// Brings the process into the state that a daemon starts with. What could not be changed, and descriptors that it was
/// given to go on with.
fn inherit(job: &Job) -> Result<(Vec<String>, Vec<OwnedFd>), Ended> {
    // Descriptors of any other kind are closed, as ever.
    let passed = match job.options.ends_with_daemon() {
        None => handover::passed(),
        Some(_) => 0,
    };
    let left = inherited::prepare(passed);
    // Before anything is opened that could get one of their numbers.
    let given = inherited::passed_on(passed).map_err(|e| {
        let why = format!("of {passed} descriptors that were passed on, not all are open: {e}");
        Ended::BeforeReady(Failure::new(MOUNT_FAILED, why))
    })?;
    Ok((left, given))
}

fn serve(job: &Job, detached: bool, ready: impl FnOnce(Report)) -> Result<(), Ended> {
    let (left, given) = inherit(job)?;
    let mut warnings: Vec<String> = start_log(job, detached)?.into_iter().collect();
    left.iter().for_each(|what| warn!("{what}"));
    if !detached {
        speak_on_fault(Some(log::descriptor()), None);
    }
    // Writing back for us must not wait for us; needs CAP_SYS_RESOURCE, helps where there is it.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let early = |e: &dyn std::fmt::Display| Ended::BeforeReady(Failure::new(MOUNT_FAILED, e));
    // What the next daemon may not meet any more.
    let now = |e: &dyn std::fmt::Display| Ended::BeforeReady(survival::hindered(job, e));
    confine::keep_memory_private();
    let outside = Outside::start(|| confine::to(Outside::NEEDS)).map_err(|e| now(&e))?;
    let started = Instant::now();
    let (holder, handover) = survival::found(job, given, &mut warnings).map_err(|e| early(&e))?;
    // A program that rotates logs signals every daemon, also one that is recovering its volume.
    let signals = Signals::new([SIGHUP]).map_err(|e| now(&e))?;
    if handover.is_some() {
        // There is a mount already, which is to end when a signal asks for that.
        signals::expect_end(&signals).map_err(|e| now(&e))?;
    }
    // From here on it is this directory, whatever becomes of its path while the volume recovers.
    let place = survival::place(job, handover.as_ref()).map_err(|e| {
        let target = quayfs_shown::path(&job.target);
        now(&format_args!("cannot mount on {target}: {e}"))
    })?;
    let before = (holder.as_ref(), handover.as_ref());
    let resized = before.0.zip(before.1);
    let resized = resized.and_then(|(holder, handover)| resizing::fulfil(job, holder, handover));
    let (fs, memory) = recover(job, before)?;
    if let Some(resized) = resized {
        fs.began_with(resized);
    }
    let before = holder.clone().zip(handover);
    let goes_on = before.is_some();
    let mounted = match before {
        Some((holder, handover)) => resume(job, &fs, (place, signals), outside, handover, holder),
        None => attach(
            job,
            &fs,
            (place, signals),
            outside,
            holder.clone().zip(memory),
        ),
    };
    let mounted = mounted.map_err(|why| match why {
        // As if this daemon had died: the next one has the volume as it is.
        NotServed::Failed(why) if goes_on => now(&why),
        why => early(&match fs.shutdown() {
            Ok(()) => why.to_string(),
            Err(f) => format!("{why}; closing the volume failed as well: {f}"),
        }),
    })?;
    let manager = survival::manager(&holder, detached);
    watchdog::start(manager.as_ref(), mounted.number.as_deref()).map_err(|e| now(&e))?;
    // What is left to do here is to wait, and to close the volume.
    confine::this_thread();
    ready(Report::of(job, &fs, started.elapsed(), warnings));
    if let Some(manager) = &manager {
        if fs.why_it_ends_with_daemon().is_some() {
            manager.tell(handover::FAILED);
        }
        survival::tell_of_this_one(manager, &fs, &mounted);
    }
    watch_failure(&fs, mounted.failed.clone(), holder.clone());
    survival::tell_of_the_last_one(&fs);
    serve_to_the_end(&fs, mounted, holder.as_ref(), manager.as_ref())
}

/// The volume, recovered, as the last daemon has left it if there was one, and what is to be left to the next one.
fn recover(
    job: &Job,
    before: (Option<&Holder>, Option<&Handover>),
) -> Result<(Arc<Fs>, Option<Memory>), Ended> {
    let failed = |e: &(dyn std::error::Error + 'static)| {
        let failure = match survival::may_pass(e) {
            true => survival::hindered(job, &e),
            false => Failure::new(MOUNT_FAILED, unrecovered(job, e)),
        };
        match e.downcast_ref() {
            Some(VolumeError::Busy(_)) => Ended::InUse(failure),
            _ => Ended::BeforeReady(failure),
        }
    };
    let (volume, memory) = survival::take_over(job, before).map_err(|e| failed(&*e))?;
    let mut options = job.options.clone();
    options.read_only = volume.access() == Access::ReadOnly;
    // Its threads are started in there.
    let fs = confine::run(|| Fs::mount(volume, &options))
        .map_err(|e| Ended::BeforeReady(survival::hindered(job, &e)))?;
    let fs = fs.map_err(|e| failed(&e))?;
    if let Some(path) = job.log.path() {
        // Set once.
        let _ = fs.log.set(path);
    }
    if let Some(is_moving) = before.1.and_then(moving::asked) {
        let _ = fs.moving.set(is_moving);
    }
    let memory = memory.map_err(|why| fs.ends_with_daemon(&why)).ok();
    if let Some(memory) = &memory {
        memory.requests.set_fencing_token(fs.e.config.fencing_token);
    }
    if let Some(holder) = before.0.cloned() {
        fs.on_successor_doubted(move || holder.why_gone());
    }
    Ok((fs, memory))
}

/// What is said where a volume does not recover: its name is in what says that it does not open.
fn unrecovered(job: &Job, e: &(dyn std::error::Error + 'static)) -> String {
    let volume = quayfs_shown::argument(&job.volume);
    match e.downcast_ref() {
        Some(why @ (MountError::Journal(_) | MountError::Ppt(_) | MountError::Fs(_))) => {
            format!("{volume}: {why}; `quayfs fsck {volume}` says more")
        }
        Some(why @ (MountError::Damaged { .. } | MountError::Repairing)) => {
            format!("{volume}: {why}")
        }
        _ => e.to_string(),
    }
}

/// Waits until the mount has ended, and closes the volume.
fn serve_to_the_end(
    fs: &Arc<Fs>,
    mounted: Mounted,
    holder: Option<&Holder>,
    manager: Option<&Holder>,
) -> Result<(), Ended> {
    let served = loop {
        match (mounted.inbox.recv(), holder) {
            // It returns if there is a reason to stay.
            (Ok(Event::HandOver), Some(holder)) => survival::hand_over(fs, holder, &mounted),
            (Ok(Event::Unmounted(end)), _) => break end,
            _ => break Ok(()),
        }
    };
    let callers = mounted.desk.map(Desk::close).unwrap_or_default();
    let closed = closing::close(fs, callers, manager);
    let ending = ending::of(fs, closed.left_staged);
    closed.callers.tell(&ending);
    if let Some(holder) = holder {
        holder.forget();
    }
    // What is left to be done there ends with this process.
    drop(mounted.leaving.lock());
    let late = |line: String| Ended::AfterReady(Failure::new(MOUNT_FAILED, line));
    ending::log(&ending);
    if let Ending::Left(why) = ending {
        return Err(late(format!("the volume is not closed: {why}")));
    }
    served.map_err(|e| {
        tracing::error!("serving ended: {e}");
        late(format!("serving ended: {e}"))
    })
}

/// A mount that others find, and what becomes of it.
struct Mounted {
    inbox: Receiver<Event>,
    /// Locked while a signal has this unmounted.
    leaving: Arc<Mutex<()>>,
    /// Without one `quayfs umount` has to look at the volume.
    desk: Option<Desk>,
    /// Has the mount table say that it is read-only.
    failed: Sender<()>,
    /// Its device number.
    number: Option<String>,
    /// What the next daemon will find of requests.
    kept: Option<Arc<Requests>>,
}

/// Mounts, and serves in threads of its own. The mount is put into the tree last: whatever fails here, and whatever
/// ends this process meanwhile, leaves none.
fn attach(
    job: &Job,
    fs: &Arc<Fs>,
    (place, signals): (Place, Signals),
    outside: Outside,
    survives: Option<(Holder, Memory)>,
) -> Result<Mounted, NotServed> {
    signals::expect_end(&signals).map_err(NotServed::failed)?;
    let (pending, device) =
        Pending::new(&job.volume, place, &fs.e.options).map_err(NotServed::failed)?;
    let succession = survives.map(|(holder, memory)| {
        let begun = handover::begin(holder.clone(), memory, pending.device());
        (holder, begun)
    });
    let holder = succession.as_ref().map(|(holder, _)| holder.clone());
    let succession = succession.map(|(_, succession)| succession);
    let kept = succession.as_ref().map(|s| Arc::clone(&s.requests));
    let (events, inbox) = channel();
    // Without it ranges are not exchanged.
    let number = (fs.e.options.atomic_writes)
        .then(|| pending.device().map(Into::into))
        .flatten();
    let connection = (device, number);
    let served = (Arc::clone(fs), connection);
    serving::start(served, outside, succession, events.clone()).map_err(NotServed::failed)?;
    let own_number = pending.device().map(str::to_string);
    // Asking our own mount would be simpler. But a process that is killed while it waits for an answer of its own
    // waits forever, and so keeps the connection from being closed.
    serving::await_start(&inbox, &events).map_err(|why| {
        let target = quayfs_shown::path(&job.target);
        why.because(format_args!("{target} does not answer"))
    })?;
    if let Err(e) = pending.read_ahead(fs.e.options.read_ahead) {
        info!("read_ahead= has no effect, the kernel keeps to its own: {e}");
    }
    let desk = open_desk(pending.device());
    let entry = (job.target.clone(), pending.device().map(str::to_string));
    let failed = turned::serve(entry).map_err(NotServed::failed)?;
    let (mount, mounted) = channel();
    let source = table::source(&job.volume, &job.options);
    let leaving = signals::watch(signals, source, mounted, (events, holder));
    let leaving = leaving.map_err(NotServed::failed)?;
    // Its receiver waits for it until the process ends.
    let _ = mount.send(pending.finish().map_err(NotServed::failed)?);
    tell_umount8(job);
    Ok(Mounted {
        inbox,
        leaving,
        desk,
        failed,
        number: own_number,
        kept,
    })
}

/// Has umount(8) of root wait until the volume is closed, as it does of other users anyway.
fn tell_umount8(job: &Job) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let source = table::source(&job.volume, &job.options);
    if let Err(e) = utab::add(&source, &job.target) {
        info!("umount(8) will not wait until the volume is closed, `quayfs umount` does: {e}");
    }
}

/// As [`attach`], where another daemon has mounted: serves its connection. The mount point is not looked at before
/// that, and what is mounted there by now may be something else.
fn resume(
    job: &Job,
    fs: &Arc<Fs>,
    (place, signals): (Place, Signals),
    outside: Outside,
    handover: Handover,
    holder: Holder,
) -> Result<Mounted, NotServed> {
    let (device, number, succession) = handover.succeed(holder.clone());
    let (kept, own_number) = (Some(Arc::clone(&succession.requests)), number.clone());
    // Before the first answer: what has it may ask who gave it.
    let desk = open_desk(number.as_deref());
    let (events, inbox) = channel();
    let exchanged = number.as_deref().filter(|_| fs.e.options.atomic_writes);
    let connection = (device, exchanged.map(Into::into));
    let served = (Arc::clone(fs), connection);
    serving::start(served, outside, Some(succession), events.clone()).map_err(NotServed::failed)?;
    serving::await_start(&inbox, &events)
        .map_err(|why| why.because("the connection cannot be served"))?;
    let failed = turned::serve((job.target.clone(), number.clone())).map_err(NotServed::failed)?;
    let (mount, mounted) = channel();
    let source = table::source(&job.volume, &job.options);
    let leaving = signals::watch(signals, source, mounted, (events, Some(holder)));
    let leaving = leaving.map_err(NotServed::failed)?;
    let _ = mount.send(Mount::made_before(place, number));
    Ok(Mounted {
        inbox,
        leaving,
        desk,
        failed,
        number: own_number,
        kept,
    })
}

fn open_desk(device: Option<&str>) -> Option<Desk> {
    device.map(Desk::open).transpose().unwrap_or_else(|e| {
        warn!("`quayfs umount` cannot be told how this daemon ends: no socket: {e}");
        None
    })
}

/// Starts the log, and returns what to warn of. A volume is mounted without one rather than not at all; a file that was
/// asked for must open.
fn start_log(job: &Job, detached: bool) -> Result<Option<String>, Ended> {
    let Err(e) = log::start(&job.log, detached) else {
        return Ok(None);
    };
    let path = job.log.path().unwrap_or_default();
    let why = format!("cannot open the log {}: {e}", quayfs_shown::path(&path));
    match job.log {
        Destination::Asked(_) => Err(Ended::BeforeReady(survival::hindered(
            job,
            &format!("{why}; choose another --log-file"),
        ))),
        _ => Ok(Some(format!(
            "{why}; messages are lost until that is put right"
        ))),
    }
}

/// Opens the volume, for reading only where that is asked for or all that is possible.
fn open(job: &Job) -> Result<Volume, VolumeError> {
    let access = match job.options.read_only {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    Volume::open_for_mount(
        &job.volume,
        access,
        PREDECESSOR,
        Some(job.options.memory_for_region()),
    )
}

/// After a failure of the mount, also one that has been, the mount table shall say `ro`, and no other daemon go on as
/// if it had not been. To be called when the mount is in the table.
fn watch_failure(fs: &Fs, failed: Sender<()>, holder: Option<Holder>) {
    let tell = move || {
        // The thread is there as long as the process.
        let _ = failed.send(());
        if let Some(holder) = &holder {
            holder.tell(handover::FAILED);
        }
    };
    fs.e.on_failure(tell.clone());
    if fs.has_failed() {
        tell();
    }
}
