//! `quayfs scrub`: has a mount verify itself and watches, or does it for a volume at rest.

use quayfs_fs::Fs;
use quayfs_fs::scrub::{Area, Command, Finding, Options, Report, State, Status};
use quayfs_fs::volume::{Access, SETTLING, Volume};
use quayfs_options::format_size;
use quayfs_shown::progress::{Meter, Unit};

use super::args;
use super::asking;
use super::at_rest;
use super::exit::{FAILED, Failure, OK, SCRUB_DAMAGE, say, say_json};
use super::interrupted;
use super::log;
use super::media;
use super::progress::Progress;
use super::unopened::unopened;
use crate::mount;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest pause between two looks at the pass.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of findings asked for at once of a pass in this process.
const ROOM: usize = 1 << 20;

/// The process that does the work.
enum Worker {
    /// The daemon of the mount there.
    Daemon(PathBuf),
    /// This process, on a volume that no other process changes.
    Here(Arc<Fs>),
}

/// Scrubs, and returns the exit code.
pub fn run(args: &args::Scrub) -> Result<u8, Failure> {
    // From here on a signal means: stop, then tell what has been found.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in interrupted::heeded() {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(Failure::with(FAILED))?;
    }
    let options = Options { rate: args.rate };
    let worker = start(&args.target, options)?;
    let meter = Arc::default();
    let shown = Progress::of(&meter, args.quiet || args.json);
    let watched = watch(&worker, &interrupted, &meter);
    drop(shown);
    watched?;
    let report = collect(&worker)?;
    let mut obstacle = None;
    if let Worker::Here(fs) = &worker {
        obstacle = fs.e.watch().obstacle().map(str::to_string);
        fs.shutdown().map_err(Failure::with(FAILED))?;
    }
    let mut told = finish(&worker, &report, args.json);
    if let (Some(why), Ok(code @ OK)) = (obstacle, &mut told) {
        *code = SCRUB_DAMAGE;
        if !args.json {
            let volume = worker.volume().unwrap_or_else(|| args.target.clone());
            let volume = quayfs_shown::argument(&volume);
            say(format_args!(
                "what is neither a block nor a page of metadata is damaged: {why}: `quayfs fsck --repair {volume}`, unmounted"
            ));
        }
    }
    if let Worker::Here(fs) = &worker {
        remember(fs, &report.status);
    }
    told
}

fn start(target: &Path, options: Options) -> Result<Worker, Failure> {
    let failed = |why: String| Failure::new(FAILED, why);
    let (path, entry) = asking::find(target, FAILED)?;
    let Some(entry) = entry else {
        media::expect_answers(&path).map_err(failed)?;
        return Ok(Worker::Here(begin_here(&path, options)?));
    };
    asking::expect_answers(&entry, FAILED)?;
    let mnt = entry.target;
    let status = mount::status(&mnt).map_err(|e| failed(refused(&mnt, e)))?;
    match mount::scrub(&mnt, Command::Start(options)) {
        Ok(()) => Ok(Worker::Daemon(mnt)),
        // Mounted read-only the kernel lets nothing through, but then nothing changes either.
        Err(Errno::ROFS) => {
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            // A mount that failed holds its volume as one that writes.
            let holds = !status["options"]
                .as_str()
                .is_some_and(|o| o.starts_with("ro"));
            if let (Some(why), true) = (status["read_only_reason"].as_str(), holds) {
                let mnt = quayfs_shown::argument(&mnt);
                return Err(failed(format!(
                    "{mnt} has failed and is read-only ({why}): `quayfs umount {mnt}`, then scrub the volume"
                )));
            }
            let volume = status["volume"].as_str().unwrap_or_default();
            Ok(Worker::Here(begin_here(Path::new(volume), options)?))
        }
        Err(e) => Err(failed(refused(&mnt, e))),
    }
}

fn refused(mnt: &Path, e: Errno) -> String {
    let mnt = quayfs_shown::argument(mnt);
    match e {
        Errno::NOTCONN => format!("the daemon of {mnt} is gone: `quayfs umount {mnt}`"),
        Errno::BUSY => {
            format!("{mnt} is being scrubbed already: `quayfs status {mnt}` says how far it is")
        }
        Errno::PERM | Errno::ACCESS => {
            format!(
                "only root (CAP_SYS_ADMIN) and the user who mounted can scrub {mnt}; if that is an \
                 ordinary user, only that user"
            )
        }
        Errno::NODATA | Errno::OPNOTSUPP => format!("{mnt} is not QuayFS"),
        e => format!("{mnt}: {e}"),
    }
}

fn begin_here(path: &Path, options: Options) -> Result<Arc<Fs>, Failure> {
    let volume = Volume::open(path, Access::ReadOnly, SETTLING).map_err(unopened(FAILED))?;
    let fs = at_rest::recover(volume).map_err(|e| {
        let shown = quayfs_shown::argument(path);
        Failure::new(FAILED, format!("{e}; `quayfs fsck {shown}` says more"))
    })?;
    fs.scrub
        .start(&fs.e, options)
        .map_err(Failure::with(FAILED))?;
    Ok(fs)
}

impl Worker {
    /// The volume that is verified, if that is known.
    fn volume(&self) -> Option<PathBuf> {
        match self {
            Self::Here(fs) => Some(fs.volume_path().into()),
            Self::Daemon(mnt) => {
                let status: Value = serde_json::from_str(&mount::status(mnt).ok()?).ok()?;
                Some(status["volume"].as_str()?.into())
            }
        }
    }

    fn report(&self, from: usize) -> Result<Report, Failure> {
        let mnt = match self {
            Self::Here(fs) => return Ok(fs.scrub.report(from, ROOM)),
            Self::Daemon(mnt) => mnt,
        };
        let text =
            mount::scrub_report(mnt, from).map_err(|e| Failure::new(FAILED, refused(mnt, e)))?;
        serde_json::from_str(&text).map_err(Failure::with(FAILED))
    }

    fn stop(&self) -> Result<(), Failure> {
        match self {
            Self::Here(fs) => {
                fs.scrub.stop();
                Ok(())
            }
            Self::Daemon(mnt) => {
                mount::scrub(mnt, Command::Stop).map_err(|e| Failure::new(FAILED, refused(mnt, e)))
            }
        }
    }
}

/// Returns when the pass has ended.
fn watch(worker: &Worker, interrupted: &AtomicBool, meter: &Meter) -> Result<(), Failure> {
    let mut pause = Duration::from_millis(5);
    let mut number = None;
    let mut told = false;
    let mut found = None;
    loop {
        let status = worker.report(usize::MAX)?.status;
        if *number.get_or_insert(status.pass) != status.pass {
            return Err(Failure::new(
                FAILED,
                "it has ended: the daemon was replaced or has died meanwhile, or another scrub was begun; begin again",
            ));
        }
        if status.state != State::Running {
            break;
        }
        note(&status, &mut found, meter);
        if !told && interrupted.load(Ordering::Acquire) {
            told = true;
            worker.stop()?;
            continue;
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LOOK_EVERY);
    }
    Ok(())
}

/// How far a pass is. `found`: how much was suspect when that was told last, and whether all had been read.
fn note(status: &Status, found: &mut Option<(u64, bool)>, meter: &Meter) {
    // Files that grew meanwhile were not in the estimate.
    let total = status.total_bytes.max(status.bytes);
    let now = (status.findings, status.bytes == total);
    if *found != Some(now) {
        *found = Some(now);
        let what = match now {
            (0, _) => "verifying".into(),
            (n, false) => format!("verifying, {n} suspect"),
            // What was suspected is read once more, under the locks of its files.
            (n, true) => format!("reading what is suspect again ({n})"),
        };
        match meter.look() {
            None => meter.begin(what, status.total_bytes, Unit::Bytes),
            Some(_) => meter.rename(what),
        }
    }
    meter.set(status.bytes, total);
}

/// The whole report, part by part.
fn collect(worker: &Worker) -> Result<Report, Failure> {
    let mut all = worker.report(0)?;
    while all.more > 0 {
        let part = worker.report(all.list.len())?;
        if part.list.is_empty() || part.status.pass != all.status.pass {
            break;
        }
        all.list.extend(part.list);
        all.more = part.more;
    }
    Ok(all)
}

fn finish(worker: &Worker, report: &Report, as_json: bool) -> Result<u8, Failure> {
    let status = &report.status;
    let damaged = status.findings > 0;
    let read = format_size(status.bytes);
    let complete = status.state == State::Finished;
    if status.state == State::Failed {
        let why = "the scrub has failed, by a fault of the program: its log says which";
        return Err(Failure::new(FAILED, why));
    }
    if as_json {
        let mut value = serde_json::to_value(report).map_err(Failure::with(FAILED))?;
        if let (Worker::Daemon(mnt), Some(map)) = (worker, value.as_object_mut()) {
            map.insert("mountpoint".into(), json!(mnt.to_string_lossy()));
        }
        say_json(value);
    } else {
        tell(worker, &report.list);
        let damaged_shown = match status.findings {
            1 => "1 block or page damaged".into(),
            n => format!("{n} blocks or pages damaged"),
        };
        let next = || next(&report.list, worker.volume().as_deref());
        match (damaged, complete) {
            (true, true) => say(format_args!("{read} verified: {damaged_shown}: {}", next())),
            (true, false) => say(format_args!(
                "stopped after {read}: {damaged_shown}: {}",
                next()
            )),
            (false, true) => say(format_args!("{read} verified, nothing found")),
            (false, false) => {}
        }
        if status.mended > 0 {
            let pages = quayfs_shown::count(status.mended, "page");
            say(format_args!(
                "{pages} of the region were damaged on the disk, but whole in memory: they are written again; look at the disk"
            ));
        }
    }
    match (damaged, complete) {
        (true, _) => Ok(SCRUB_DAMAGE),
        (false, true) => Ok(OK),
        (false, false) => Err(Failure::new(
            FAILED,
            format!("stopped after {read}, nothing found so far"),
        )),
    }
}

/// What to do about what was found.
fn next(list: &[Finding], volume: Option<&Path>) -> String {
    let volume = volume.map_or("VOLUME".into(), quayfs_shown::argument);
    let repair =
        format!("`quayfs fsck --repair --data {volume}`, unmounted, repairs what can be repaired");
    let in_files = |f: &Finding| matches!(f.area, Area::Data | Area::Staged);
    match list.iter().all(in_files) {
        true => format!(
            "{repair}; what it leaves is nowhere else: write these files anew, from a backup, or remove them"
        ),
        false => repair,
    }
}

/// Leaves to `quayfs status` what a scrub of a volume that is not mounted has found. Of a mount the daemon does. A log that
/// cannot be written is no reason not to scrub.
fn remember(fs: &Fs, status: &Status) {
    let uuid = quayfs_fs::uuid_text(fs.e.config.uuid);
    let _ = log::add(fs.volume_path(), &uuid, &[status.outcome()]);
}

/// Findings about no file, alike but for their numbers, of which there is a line each; of more there is the number.
const EACH: usize = 4;

fn tell(worker: &Worker, list: &[Finding]) {
    let nameless = |f: &Finding| f.paths.is_empty() && f.inode.is_none();
    let lines = list.iter().map(|f| (line(worker, f), nameless(f)));
    quayfs_shown::summed_up(lines, EACH).iter().for_each(say);
}

/// A finding, with names as the caller can use them.
fn line(worker: &Worker, finding: &Finding) -> String {
    let mut shown = finding.clone();
    if let Worker::Daemon(mnt) = worker {
        for path in shown.paths.iter_mut().filter(|p| p.starts_with('/')) {
            *path = format!("{}{path}", mnt.display());
        }
    }
    shown.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suspect_is_told_while_it_goes_on() {
        let meter = Meter::default();
        let mut status = Status {
            bytes: 3 << 20,
            total_bytes: 6 << 20,
            ..Status::default()
        };
        let mut found = None;
        note(&status, &mut found, &meter);
        let look = meter.look().unwrap();
        assert_eq!((&*look.what, look.left()), ("verifying", Some(3 << 20)));
        (status.bytes, status.findings) = (5 << 20, 2);
        note(&status, &mut found, &meter);
        let look = meter.look().unwrap();
        assert_eq!(
            (&*look.what, look.left()),
            ("verifying, 2 suspect", Some(1 << 20))
        );
        status.bytes = 7 << 20;
        note(&status, &mut found, &meter);
        let look = meter.look().unwrap();
        assert_eq!(
            (&*look.what, look.left()),
            ("reading what is suspect again (2)", Some(0))
        );
    }

    #[test]
    fn findings_come_with_what_to_do() {
        let of = |area| Finding {
            area,
            inode: None,
            paths: Vec::new(),
            bytes: None,
            count: 1,
            what: "x".into(),
        };
        let volume = Some(Path::new("/srv/vol"));
        let repair =
            "`quayfs fsck --repair --data /srv/vol`, unmounted, repairs what can be repaired";
        let said = next(&[of(Area::Data), of(Area::Metadata)], volume);
        assert_eq!(said, repair);
        let said = next(&[of(Area::Data)], volume);
        assert!(said.starts_with(repair) && said.ends_with("from a backup, or remove them"));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let mnt = Path::new("/mnt/q");
        for (e, about) in [
            (Errno::BUSY, "quayfs status /mnt/q"),
            (Errno::PERM, "root"),
            (Errno::ACCESS, "root"),
            (Errno::NOTCONN, "quayfs umount /mnt/q"),
            (Errno::NODATA, "not QuayFS"),
        ] {
            assert!(refused(mnt, e).contains(about), "{e}");
        }
    }
}
