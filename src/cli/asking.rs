//! Asking the daemon of a mount how it is, for commands that show that.

use super::exit::{FAILED, Failure, OK, say};
use super::unopened::unreached;
use super::unserved::Unserved;
use super::{args, media, restart, status, trace};
use crate::mount::probe::{self, Question};
use crate::mount::server;
use crate::mount::table::{self, Entry};
use rustix::io::Errno;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A path as the mount table has it, and the mount that it means, if it does: a mount point, or a volume that is mounted.
/// Failures have the exit code `code`.
pub fn find(target: &Path, code: u8) -> Result<(PathBuf, Option<Entry>), Failure> {
    let path = match as_mounted(target).map_err(mount_table(code))? {
        Some(path) => path,
        None => {
            media::expect_reached(target).map_err(Failure::with(code))?;
            table::resolve(target).map_err(|e| unreached(code, target, &e))?
        }
    };
    let entry = table::mount_for(&path).map_err(mount_table(code))?;
    Ok((path, entry))
}

/// A path that is in the mount table, of a mount or of a volume, as it is there; `None` if it is not. It is not followed: what
/// it lies on may not answer.
fn as_mounted(target: &Path) -> io::Result<Option<PathBuf>> {
    // Without a slash at the end, as the table has it.
    let named: PathBuf = target.components().collect();
    let is_believed = |e: &Entry| e.user_id().is_some_and(table::is_believed_at_once);
    let is_it = |e: &Entry| {
        named.is_absolute()
            && e.is_quayfs()
            && (e.target == named || e.source == named && is_believed(e))
    };
    let is_there = table::read()?.iter().any(is_it);
    Ok(is_there.then_some(named))
}

/// As [`find`], where there is to be a mount.
pub fn mount_at(target: &Path, code: u8) -> Result<Entry, Failure> {
    let (path, entry) = find(target, code)?;
    let shown = quayfs_shown::path(&path);
    entry.ok_or_else(|| Failure::new(code, format_args!("{shown} is not mounted")))
}

/// Adapter for `map_err`: the mount table cannot be read.
pub fn mount_table(code: u8) -> impl FnOnce(io::Error) -> Failure {
    move |e| Failure::new(code, format_args!("mount table: {e}"))
}

/// The mount on a path, of whatever type, or else the newest one of the volume there; why there is none.
pub fn mounted_at(target: &Path) -> Result<Entry, String> {
    let shown = quayfs_shown::path(target);
    let unread = |e| format!("cannot read the mount table: {e}");
    let path = match as_mounted(target).map_err(unread)? {
        Some(path) => path,
        None => {
            media::expect_reached(target)?;
            table::resolve(target).map_err(|e| format!("{shown}: {e}"))?
        }
    };
    // A device may be mounted on its own name, as in a container.
    let mounted = match table::mounted_on(&path).map_err(unread)? {
        Some(entry) if entry.is_fuse() => Some(entry),
        other => table::mount_of(&path).map_err(unread)?.or(other),
    };
    mounted.ok_or_else(|| format!("{shown} is not a mount point: `findmnt` lists them"))
}

/// What is said of parts of a mounted volume whose files have no name any more.
pub const UNLINKED: &str =
    "removed while it was mounted, and what is in there ends with the daemon";

/// Those parts, of what a daemon says of itself.
pub fn unlinked(status: &Value) -> Vec<String> {
    let parts = status["unlinked"].as_array().into_iter().flatten();
    parts
        .filter_map(|part| part.as_str().map(str::to_string))
        .collect()
}

/// Why nothing is to be done that ends a daemon, where that ends its volume.
pub fn irreplaceable(status: &Value, shown: &str) -> Option<String> {
    let parts = unlinked(status);
    (!parts.is_empty()).then(|| {
        let parts = parts.join(" and ");
        format!("{shown}: {parts}: {UNLINKED}: copy what is on the mount to another volume")
    })
}

/// The one mount of QuayFS that there is.
pub fn only_mount(code: u8) -> Result<Entry, Failure> {
    let table = table::read().map_err(mount_table(code))?;
    let ours = table::each_once(&table);
    match ours.len() {
        1 => Ok(ours[0].clone()),
        0 => Err(Failure::new(code, "no volume is mounted")),
        n => Err(Failure::new(
            code,
            format_args!("{n} volumes are mounted: name one, `quayfs status` lists them"),
        )),
    }
}

/// What its daemon says, or why it says nothing.
#[derive(Debug)]
pub enum Heard {
    /// Its status.
    Status(Value),
    /// It does not answer.
    Nothing(Unserved),
}

/// Asks a mount how it is, no longer than `patience`. Failures have the exit code `code`.
///
/// # Errors
/// It may not be asked, or is none of ours.
pub fn hear(entry: &Entry, patience: Duration, code: u8) -> Result<Heard, Failure> {
    heard(entry, probe::ask(entry, patience), code)
}

/// That a mount is hidden: what has its name is another one.
fn covered(entry: &Entry) -> String {
    let volume = quayfs_shown::path(Path::new(&entry.source));
    let shown = quayfs_shown::path(&entry.target);
    let table = table::read().unwrap_or_default();
    match table::covering(&table, entry) {
        Some(over) => {
            let over = quayfs_shown::argument(&over.target);
            format!(
                "{volume} is mounted on {shown}, but something else is mounted over it: `umount {over}` takes that away"
            )
        }
        None => format!("{volume} is mounted on {shown}, but something else is found there"),
    }
}

/// Refuses to ask for anything by the name of a mount that is hidden.
///
/// # Errors
/// It is.
pub fn expect_visible(entry: &Entry) -> Result<(), String> {
    match probe::ask(entry, server::PATIENCE) {
        Err(Errno::XDEV) => Err(covered(entry)),
        _ => Ok(()),
    }
}

fn heard(entry: &Entry, said: Result<String, Errno>, code: u8) -> Result<Heard, Failure> {
    let shown = quayfs_shown::path(&entry.target);
    let why = match said {
        Ok(text) => match serde_json::from_str(&text) {
            Ok(status) => return Ok(Heard::Status(status)),
            Err(e) => format!("{shown} answers nonsense about itself: {e}"),
        },
        Err(Errno::TIMEDOUT) if !entry.is_quayfs() && server::Server::of(entry).is_none() => {
            format!(
                "{shown} does not answer, and is {}, which may not be QuayFS",
                entry.fstype
            )
        }
        Err(Errno::NOTCONN) => return Ok(Heard::Nothing(Unserved::Dead)),
        Err(Errno::TIMEDOUT) => {
            let server = server::Server::of(entry);
            return Ok(Heard::Nothing(
                match server.is_some_and(|s| s.is_stopped()) {
                    true => Unserved::Stopped,
                    false => Unserved::Silent,
                },
            ));
        }
        Err(Errno::IO) => return Ok(Heard::Nothing(Unserved::Broken)),
        Err(Errno::ACCESS | Errno::PERM) => format!(
            "permission denied: {shown} was mounted by another user, for that user alone (no allow_other)"
        ),
        Err(Errno::XDEV | Errno::NODATA | Errno::OPNOTSUPP) if table::is_gone(entry) => {
            format!("{shown} is not mounted any more")
        }
        Err(Errno::XDEV) => covered(entry),
        Err(Errno::NODATA | Errno::OPNOTSUPP)
            if entry.is_quayfs() && entry.root != Path::new("/") =>
        {
            let volume = quayfs_shown::argument(Path::new(&entry.source));
            format!(
                "{shown} shows a part of {volume}, by which only root may ask, and only if root has mounted it: name a mount point that shows all of it"
            )
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            format!("{shown} is {}, not QuayFS", entry.fstype)
        }
        Err(e) => format!("{shown} does not answer: {e}"),
    };
    Err(Failure::new(code, why))
}

/// What its daemon says.
///
/// # Errors
/// Those of [`hear`]; it says nothing.
pub fn status(entry: &Entry, patience: Duration, code: u8) -> Result<Value, Failure> {
    match hear(entry, patience, code)? {
        Heard::Status(status) => Ok(status),
        Heard::Nothing(why) => Err(Failure::new(code, why.line(entry))),
    }
}

/// What a process answers that has been asked by [`crate::mount::probe`].
pub fn answer(args: &args::Probe) -> u8 {
    if let Err(e) = probe::become_user(args.user, &args.groups) {
        say(probe::failed(e));
        return FAILED;
    }
    say(match args.of {
        Question::Program => return restart::answer(&args.target),
        Question::Open => return probe::open_for_others(&args.target).map_or(FAILED, |()| OK),
        Question::Trace => return trace::probe(&args.target),
        Question::Status => probe::probe(&args.target, args.device.as_deref()),
        Question::Names => media::names(&args.target),
        Question::Parts => media::parts(&args.target).unwrap_or_default(),
        Question::Room => media::room(&args.target),
        Question::Media => media::read(&args.target),
        Question::Tables => status::beheaded(&args.target),
        Question::Log => media::log(&args.target),
        Question::Path => media::reach(&args.target),
    });
    OK
}

/// Refuses to ask anything else of a mount that does not answer: such a request could not even be interrupted.
///
/// # Errors
/// It says nothing. That this user may not ask, the request itself will say.
pub fn expect_answers(entry: &Entry, code: u8) -> Result<(), Failure> {
    let said = probe::ask(entry, server::PATIENCE);
    if said == Err(Errno::XDEV) {
        return Err(Failure::new(code, covered(entry)));
    }
    match heard(entry, said, code) {
        Ok(Heard::Nothing(why)) => Err(Failure::new(code, why.line(entry))),
        Ok(Heard::Status(_)) | Err(_) => Ok(()),
    }
}
