//! The media of a volume, which may lie on what does not answer: a disk, a server, another file system. They are looked at
//! by processes of their own first, for which nothing waits for ever.

use super::exit::warn;
use super::status::{self, Below, Logged};
use super::unserved::means_the_same;
use crate::mount::probe::{Question, look, look_as_daemon};
use crate::mount::server::Server;
use crate::mount::table::{self, Entry};
use quayfs_fs::volume::{Glance, VolumeError, glance, is_device_path, touch};
use std::os::unix::fs::MetadataExt;
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

/// [`hindrance`] of the volume that a daemon of this mount was given, looked for as its user, whose daemons they all are. Where
/// that user is neither this one nor root, what is said has no commands.
///
/// # Errors
/// Those of [`hindrance`].
pub fn hindrance_of(entry: &Entry, volume: &Path) -> Result<Option<String>, Silent> {
    let said = match look_as_daemon(entry, volume, Question::Names, PATIENCE) {
        Ok(None) => return Err(Silent),
        Ok(Some(said)) => said_of(&said),
        Err(_) => None,
    };
    Ok(match is_believed(entry) {
        true => said,
        false => said.map(|why| without_commands(&why)),
    })
}

/// Whether what the daemon of a mount says of itself, and the name that its user gave the volume, may be put into commands.
pub fn is_believed(entry: &Entry) -> bool {
    entry.user_id().is_some_and(table::is_believed_at_once)
}

/// What is said without what would be done about it: the path there may be one that another user chose.
pub fn without_commands(said: &str) -> String {
    let mut begins = 0;
    for (n, part) in said.split('`').enumerate() {
        // Every other part lies between two of them; one word is a name.
        if n % 2 == 1 && part.contains(' ') {
            let before = &said[..begins - 1];
            return before.trim_end_matches([' ', ':', ';', ',']).into();
        }
        begins += part.len() + 1;
    }
    said.into()
}

/// The daemon of a mount, by the kernel's word where its own is not believed, if names mean the same to it.
fn is_here(entry: &Entry, pid: Option<i32>) -> bool {
    let pid = match is_believed(entry) {
        true => pid,
        false => Server::of(entry).and_then(|server| server.pid()),
    };
    pid.is_some_and(means_the_same)
}

/// [`hindrance_of`] the volume of a daemon, by the name that the daemon says; `None` also if that name means something here
/// that it need not mean there.
///
/// # Errors
/// Those of [`hindrance`].
pub fn ahead(entry: &Entry, pid: Option<i32>, volume: &Path) -> Result<Option<String>, Silent> {
    match is_here(entry, pid) && names_itself(volume) {
        true => hindrance_of(entry, volume),
        false => Ok(None),
    }
}

/// [`Below::seen`] of the volume of a daemon; `None` also where that cannot be told in time, or where its name need not mean
/// the same there.
pub fn room_below(entry: &Entry, pid: Option<i32>, volume: &Path) -> Option<Below> {
    if !is_here(entry, pid) || !names_itself(volume) {
        return None;
    }
    let said = look_as_daemon(entry, volume, Question::Room, PATIENCE);
    serde_json::from_str(&said.ok()??).ok()
}

/// Whether the region of a volume is a file, by its name; `None` where that cannot be told in time.
pub fn is_region_file(entry: &Entry, volume: &Path) -> Option<bool> {
    let said = look_as_daemon(entry, volume, Question::Parts, PATIENCE);
    let parts = said_of(&said.ok()??);
    let region = match &parts {
        Some(parts) => parts.strip_prefix(REGION)?.split_once(DATA)?.0.as_ref(),
        None => volume,
    };
    Some(!is_device_path(region))
}

/// Whether what has this name belongs to the user of a mount, and is no link to something else; looked at as that user.
pub fn is_of_user(entry: &Entry, path: &Path) -> bool {
    let said = look_as_daemon(entry, path, Question::Path, PATIENCE);
    let said = said.ok().flatten();
    let found = said.and_then(|said| Found::read(&said));
    found.is_some_and(|found| found.owner.is_some() && found.owner == entry.user_id())
}

/// What a path leads to: the numbers of its device and its inode; `None` also if that cannot be told in time.
pub fn found_in_time(path: &Path) -> Option<(u64, u64)> {
    let said = look(path, Question::Path, PATIENCE).ok()??;
    Some(Found::read(&said)?.target)
}

/// The answer to [`Question::Path`] of one that leads somewhere.
struct Found {
    /// Whose it is; `None` of a link.
    owner: Option<u32>,
    /// What it leads to: a device, and an inode there.
    target: (u64, u64),
}

impl Found {
    fn at(path: &Path) -> Option<Self> {
        let (itself, target) = (path.symlink_metadata().ok()?, path.metadata().ok()?);
        Some(Self {
            owner: (!itself.is_symlink()).then(|| itself.uid()),
            target: (target.dev(), target.ino()),
        })
    }

    fn said(&self) -> String {
        let (device, inode) = self.target;
        let owner = self.owner.map_or("link".into(), |owner| owner.to_string());
        format!("{READ} {owner} {device} {inode}")
    }

    fn read(said: &str) -> Option<Self> {
        let mut words = said.trim_end().strip_prefix(READ)?.split_whitespace();
        Some(Self {
            owner: words.next()?.parse().ok(),
            target: (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
        })
    }
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
    Found::at(path).map_or(READ.into(), |found| found.said())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_out_of_what_is_said() {
        for (said, left) in [
            ("/v: closed: `chmod 600 /v`, if it is yours", "/v: closed"),
            (
                "/v: open (mode 0644); `chmod 600 /v`",
                "/v: open (mode 0644)",
            ),
            ("`pmem` is missing; `ln -s a b`", "`pmem` is missing"),
            ("'/a`rm b`c': open", "'/a"),
            ("`quayfs x`", ""),
            ("`pmem` is missing", "`pmem` is missing"),
            ("no `end of it", "no"),
            ("", ""),
        ] {
            assert_eq!(without_commands(said), left, "{said}");
        }
    }

    #[test]
    fn what_a_path_leads_to_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let meta = file.metadata().unwrap();
        for path in [&file, &link] {
            let found = Found::read(&reach(path)).unwrap();
            assert_eq!(found.target, (meta.dev(), meta.ino()));
            assert_eq!(found.owner, (path == &file).then_some(meta.uid()));
        }
        assert!(Found::read(&reach(&dir.path().join("none"))).is_none());
    }
}
