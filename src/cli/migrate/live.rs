//! The same of a volume that is mounted, and goes on being used.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quayfs_fs::volume::{Place, config_of};
use quayfs_layout::BLOCK;
use quayfs_migrate::{
    Live, MigrateError, Moved, Part, Target, Wanted, backend_of, in_parts, is_sparse,
};
use quayfs_restart::{MoveOutcome, Moves};
use quayfs_shown::progress::{Meter, Unit};
use rustix::fs::{major, minor};
use serde_json::Value;

use super::failed;
use crate::cli::asking;
use crate::cli::daemon::{FINISH, WATCH};
use crate::cli::exit::{FAILED, Failure};
use crate::cli::restart::{Job, expect_successor, replace_with};
use crate::mount::server::PATIENCE;
use crate::mount::table::{self, Entry};

/// As little may be left for the time in which programs wait,
const LITTLE: u64 = (64 << 20) / BLOCK as u64;
/// but more, if what is copied again does not become less, or after so many rounds.
const ROUNDS: u32 = 10;
/// How long a daemon may take to serve, and how much more for each so many bytes that it has to copy.
const WITHIN: Duration = Duration::from_secs(60);
const BYTES_IN_A_SECOND: u64 = 10 << 20;
/// How often to look how far it is.
const LOOK: Duration = Duration::from_millis(100);

/// What has become of the volume, and how many milliseconds programs have waited at the end, if that is known.
pub(super) struct MovedLive {
    pub(super) moved: Moved,
    pub(super) pause: Option<u64>,
}

/// Moves a part of a volume that is mounted.
pub(super) fn run(
    entry: &Entry,
    part: Part,
    (new, force): (&Path, bool),
    meter: &Meter,
) -> Result<MovedLive, Failure> {
    let status = asking::status(entry, PATIENCE, FAILED)?;
    let volume = movable(entry, &status)?;
    // Before the media are looked at here: they may not answer.
    expect_successor(entry, &status).map_err(Failure::with(FAILED))?;
    let place = in_parts(&volume).map_err(failed)?;
    refuse_inside(entry, new)?;
    let config = config_of(&volume).map_err(|e| failed(e.into()))?;
    let blocks = part.blocks(&config.geometry);
    let wanted = Wanted {
        path: new,
        force,
        blocks,
        sparse: is_sparse(part.of(&place)),
    };
    let target = Target::prepare(&place, part, &wanted).map_err(failed)?;
    if part == Part::Pmem {
        let backend = backend_of(target.path(), blocks).map_err(failed)?;
        if status["backend"].as_str() != Some(&backend.to_string()) {
            return Err(failed(MigrateError::Unlike(target.path().into())));
        }
    }
    let moved = Moved::of(&place, part, &target, blocks).map_err(failed)?;
    let moves = Moves::new(part.word(), blocks, target.path(), target.number());
    let moves = moves.map_err(Failure::with(FAILED))?;
    let pause = carry_out(entry, &place, target, &moves, meter);
    if let Err(failure) = &pause {
        // What writes has nothing to note any more.
        moves.conclude(&MoveOutcome::Failed(failure.line.clone()));
    }
    moves.clear();
    Ok(MovedLive {
        moved,
        pause: pause?,
    })
}

/// The volume, if its mount can go on with another daemon.
fn movable(entry: &Entry, status: &Value) -> Result<PathBuf, Failure> {
    let shown = quayfs_shown::argument(&entry.target);
    let refuse = |why: &str| {
        Err(Failure::new(
            FAILED,
            format_args!("{shown}: {why}: `quayfs umount {shown}` first"),
        ))
    };
    if let Some(why) = asking::irreplaceable(status, &shown) {
        return Err(Failure::new(FAILED, why));
    }
    if let Some(why) = status["ends_with_daemon"].as_str() {
        return refuse(&format!("the mount ends with its daemon ({why})"));
    }
    if status["moving"].as_bool() == Some(true) {
        return Err(Failure::new(
            FAILED,
            format_args!(
                "{shown}: a part of the volume is being moved already, by another `quayfs migrate`"
            ),
        ));
    }
    if status["read_only"].as_bool() != Some(false) {
        return refuse("it is mounted read-only");
    }
    match status["volume"].as_str() {
        Some(volume) => Ok(volume.into()),
        None => refuse("its daemon does not say which volume it has"),
    }
}

/// A file in the volume itself would wait for its own daemon.
fn refuse_inside(entry: &Entry, new: &Path) -> Result<(), Failure> {
    let new = std::path::absolute(new).unwrap_or_else(|_| new.into());
    let dev = |path: &Path| {
        let dev = fs::metadata(path).ok()?.dev();
        Some(format!("{}:{}", major(dev), minor(dev)))
    };
    let found = dev(&new).or_else(|| dev(new.parent()?));
    match found.is_some_and(|dev| dev == entry.device) {
        false => Ok(()),
        true => Err(Failure::new(
            FAILED,
            format_args!(
                "{}: lies in the volume itself",
                quayfs_shown::argument(&new)
            ),
        )),
    }
}

/// How many milliseconds programs have waited at the end, if that is known.
fn carry_out(
    entry: &Entry,
    place: &Place,
    target: Target,
    moves: &Moves,
    meter: &Meter,
) -> Result<Option<u64>, Failure> {
    let mut left = moves.blocks();
    if is_data(moves) {
        meter.begin("preparing", 0, Unit::Bytes);
        let watch = Job {
            name: WATCH,
            file: moves.file().as_fd(),
            still: false,
        };
        replace_with(entry, watch, WITHIN)
            .and_then(|served| served.map(drop))
            .map_err(Failure::with(FAILED))?;
        if !moves.is_attached() {
            let why = "its daemon does not note what it writes: the program is too old";
            return Err(Failure::new(FAILED, why));
        }
        left = copy(place, &target, moves, meter).map_err(failed)?;
    }
    let made = target.is_blank().then(|| target.path().to_path_buf());
    // The daemon opens and locks it.
    target.keep();
    let pause = finish((entry, place), moves, left * BLOCK as u64, meter);
    if let (Err(_), Some(made)) = (&pause, made)
        && moves.outcome() != MoveOutcome::Moved
        && !leads_to(place, moves)
    {
        // It was made for this alone.
        let _ = fs::remove_file(made);
    }
    pause
}

fn is_data(moves: &Moves) -> bool {
    moves.part() == Part::Data.word()
}

fn leads_to(place: &Place, moves: &Moves) -> bool {
    let part = match is_data(moves) {
        true => Part::Data,
        false => Part::Pmem,
    };
    // When in doubt it does.
    let number = quayfs_migrate::Number::at(part.of(place));
    number.map_or(true, |number| number.words() == moves.number())
}

/// Copies until little has been written since; how many blocks these are.
fn copy(place: &Place, target: &Target, moves: &Moves, meter: &Meter) -> Result<u64, MigrateError> {
    let live = Live::new(place, target, moves)?;
    let mut before = u64::MAX;
    for round in 0..ROUNDS {
        live.round(round == 0, meter)?;
        let left = moves.marked();
        if left <= LITTLE || left > before / 4 * 3 {
            break;
        }
        before = left;
    }
    Ok(moves.marked())
}

/// Has the next daemon copy the rest and go on from the new place.
fn finish(
    (entry, place): (&Entry, &Place),
    moves: &Moves,
    bytes: u64,
    meter: &Meter,
) -> Result<Option<u64>, Failure> {
    let what = match is_data(moves) {
        true => "copying the rest, while programs wait",
        false => "copying, while programs wait",
    };
    meter.begin(what, bytes, Unit::Bytes);
    let within = WITHIN + Duration::from_secs(bytes / BYTES_IN_A_SECOND);
    let over = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let (done, total) = moves.told();
                if total > 0 {
                    meter.set(done, total);
                }
                thread::sleep(LOOK);
            }
        });
        let job = Job {
            name: FINISH,
            file: moves.file().as_fd(),
            // What a daemon has written that did not note it is missing.
            still: is_data(moves),
        };
        let served = replace_with(entry, job, within);
        over.store(true, Ordering::Relaxed);
        served
    });
    let is_there = || {
        table::mount_for(&entry.target).is_ok_and(|found| found.is_some_and(|e| e.id == entry.id))
    };
    let stays = |why: String| {
        let line = match (leads_to(place, moves), is_data(moves)) {
            (false, true) if !is_there() => {
                "the data stay where they are: the volume was unmounted meanwhile".into()
            }
            (false, false) if !is_there() => {
                "the region stays where it is: the volume was unmounted meanwhile".into()
            }
            // It may not be durable that it does.
            (true, _) => why,
            (false, true) => format!("the data stay where they are, and the mount goes on: {why}"),
            (false, false) => format!("the region stays where it is, and the mount goes on: {why}"),
        };
        Failure::new(FAILED, line)
    };
    match (served, moves.outcome()) {
        (Ok(Ok(served)), MoveOutcome::Moved) => Ok(Some(served.pause)),
        // By a daemon that has died then.
        (_, MoveOutcome::Moved) => Ok(None),
        (_, MoveOutcome::Failed(why)) => Err(stays(why)),
        (Ok(Err(why)) | Err(why), MoveOutcome::Open) => Err(stays(why)),
        (Ok(Ok(_)), MoveOutcome::Open) => Err(stays("the daemon does not say why".into())),
    }
}
