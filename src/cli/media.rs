//! The media of a volume, which may lie on what does not answer: a disk, a server, another file system. They are looked at
//! by processes of their own first, for which nothing waits for ever.

use super::exit::warn;
use super::status::{self, Below, Logged};
use super::unserved::means_the_same;
use crate::mount::probe::{Question, look};
use crate::mount::table;
use quayfs_fs::volume::{Glance, VolumeError, glance, is_device_path, touch};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long they may take where something else is told of the volume too.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// And where nothing can be told without them: a disk may have to spin up.
pub const LONG: Duration = Duration::from_secs(20);
/// What goes before the places of the two parts of a volume.
const REGION: &str = "region ";
const DATA: &str = ", data ";
/// What a process says once it has read something.
const READ: &str = "read";

/// What a volume says of itself; `None` if its media do not answer within `patience`. They are read by this process once
/// they have answered another one.
pub fn glance_within(volume: &Path, patience: Duration) -> Option<Result<Glance, VolumeError>> {
    // Where no process can be started, nothing is known against them.
    let answered = look(volume, Question::Media, patience).map_or(true, |said| said.is_some());
    answered.then(|| glance(volume))
}

/// What a log has of the volume with this UUID: [`Logged::read`]. One that does not answer in time cannot be read.
pub fn log_in_time(path: &Path, uuid: Option<&str>) -> Logged {
    let answered = look(path, Question::Log, PATIENCE).map_or(true, |said| said.is_some());
    match answered {
        true => Logged::read(path, uuid),
        false => Logged {
            path: path.display().to_string(),
            unreadable: Some(silence(PATIENCE)),
            ..Logged::default()
        },
    }
}

/// Makes sure that a path can be followed to its end, or to where it has one.
///
/// # Errors
/// What it leads to has not answered: what to say of that.
pub fn expect_reached(path: &Path) -> Result<(), String> {
    expect(path, Question::Path)
}

/// Makes sure that the media of a volume can be read, or that something says why not.
///
/// # Errors
/// They have not answered: what to say of that.
pub fn expect_answers(volume: &Path) -> Result<(), String> {
    expect(volume, Question::Media)
}

fn expect(path: &Path, question: Question) -> Result<(), String> {
    // The process has another working directory.
    let path = std::path::absolute(path).unwrap_or(path.into());
    match look(&path, question, LONG) {
        Ok(None) => {
            let shown = quayfs_shown::argument(&path);
            Err(format!("{shown}: {}", silence(LONG)))
        }
        // Where no process can be started, nothing is known against it.
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Says so, once, where something goes on waiting for what a volume lies on.
#[derive(Debug)]
pub struct Watch {
    /// Whose end is the end of waiting.
    _over: Option<Sender<()>>,
}

impl Watch {
    /// From now on, as long as this lives.
    pub fn of(path: &Path) -> Self {
        let line = format!(
            "{}: {}, and is waited for",
            quayfs_shown::argument(path),
            silence(LONG)
        );
        let (sender, over) = channel();
        let wait = move || {
            if over.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                warn(line);
            }
        };
        // Without a thread it is waited for all the same.
        let begun = thread::Builder::new().name("watch".into()).spawn(wait);
        Self {
            _over: begun.is_ok().then_some(sender),
        }
    }
}

/// Whether what is shown of a path is the path: nothing of it was left out or written otherwise, and no other name was chosen
/// for it (`fsname=`).
pub fn names_itself(shown: &Path) -> bool {
    let text = shown.to_str().unwrap_or("\\");
    shown.is_absolute() && !text.contains(['\\', '\u{fffd}'])
}

/// What there is to say of media that have not answered within `patience`.
pub fn silence(patience: Duration) -> String {
    format!(
        "what it lies on has not answered within {} s",
        patience.as_secs()
    )
}

/// The media have not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent;

/// What is in the way of another daemon that is to open a volume now, as far as the names, the owners and the beginning of its
/// media tell.
///
/// # Errors
/// That cannot be told in time.
pub fn hindrance(volume: &Path) -> Result<Option<String>, Silent> {
    match look(volume, Question::Names, PATIENCE) {
        Ok(None) => Err(Silent),
        Ok(Some(said)) => Ok(said_of(&said)),
        // Nothing is known where no process can be started.
        Err(_) => Ok(None),
    }
}

/// [`hindrance`] of the volume of a daemon, by the name that the daemon says; `None` also if that name means something here
/// that it need not mean there.
///
/// # Errors
/// Those of [`hindrance`].
pub fn ahead(pid: Option<i32>, volume: &Path) -> Result<Option<String>, Silent> {
    match pid.is_some_and(means_the_same) && names_itself(volume) {
        true => hindrance(volume),
        false => Ok(None),
    }
}

/// [`Below::seen`] of the volume of a daemon; `None` also where that cannot be told in time, or where its name need not mean
/// the same there.
pub fn room_below(pid: Option<i32>, volume: &Path) -> Option<Below> {
    match pid.is_some_and(means_the_same) && names_itself(volume) {
        true => serde_json::from_str(&look(volume, Question::Room, PATIENCE).ok()??).ok(),
        false => None,
    }
}

/// Whether the region of a volume is a file, by its name; `None` where that cannot be told in time.
pub fn is_region_file(volume: &Path) -> Option<bool> {
    let parts = parts_in_time(volume);
    let region = match &parts {
        Some(parts) => parts.strip_prefix(REGION)?.split_once(DATA)?.0.as_ref(),
        None => volume,
    };
    Some(!is_device_path(region))
}

/// A line, if there is one.
fn said_of(said: &str) -> Option<String> {
    Some(said.trim_end().to_string()).filter(|line| !line.is_empty())
}

/// [`parts`]; `None` also where that cannot be told in time.
pub fn parts_in_time(volume: &Path) -> Option<String> {
    said_of(&look(volume, Question::Parts, PATIENCE).ok()??)
}

/// Where region and data lie, if they are two: what the names in the directory of the volume say. What they lie on is not
/// looked at.
pub fn parts(volume: &Path) -> Option<String> {
    let part = |name: &str| {
        let path = volume.join(name);
        let to = path.read_link();
        match (&to, path.symlink_metadata()) {
            (Ok(to), _) => Some(volume.join(to)),
            (Err(_), Ok(_)) => Some(path),
            (Err(_), Err(_)) => None,
        }
    };
    let (pmem, data) = (part("pmem")?, part("data")?);
    let (pmem, data) = (pmem.to_string_lossy(), data.to_string_lossy());
    Some(format!("{REGION}{pmem}{DATA}{data}"))
}

/// The answer to [`Question::Names`].
pub fn names(volume: &Path) -> String {
    status::hindrance(volume).unwrap_or_default()
}

/// The answer to [`Question::Room`].
pub fn room(volume: &Path) -> String {
    let below = Below::seen(volume);
    below
        .and_then(|below| serde_json::to_string(&below).ok())
        .unwrap_or_default()
}

/// The answer to [`Question::Media`], when they have been read. What is wrong with them, [`glance`] finds out again.
pub fn read(volume: &Path) -> String {
    let _ = touch(volume);
    READ.into()
}

/// The answer to [`Question::Log`], when it has been read.
pub fn log(path: &Path) -> String {
    let _ = Logged::read(path, None);
    READ.into()
}

/// The answer to [`Question::Path`], when it has been followed.
pub fn reach(path: &Path) -> String {
    let _ = table::resolve(path);
    READ.into()
}
