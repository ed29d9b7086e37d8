//! What the log of a volume has kept: errors, scrubs and checks, of earlier mounts too.
//!
//! The log is the record that outlives a mount: nothing of this is on the media, which a mount that has failed must not
//! change any more.

use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Read of the end of each file: it is an answer within a second that is wanted, and a log is at most 8 MiB long.
const TAIL: u64 = 8 << 20;

/// What a mount says of a data device that is shorter than it was: one that serves, and one that is refused.
const CUT_SHORT: [(&str, &str); 2] = [
    (": cut short: its last ", " bytes are not there any more"),
    (": truncated: ", "what was behind the cut is lost"),
];
/// Of blocks, what a check says that has not looked at them, and what one says that knows of some.
const NOT_READ: &str = "not read";
const AT_LEAST: &str = "at least ";
/// How lines begin of mounts that have met damaged metadata, and of those that were closed, or not, with them.
const MET: [&str; 2] = [
    "damaged metadata: ",
    "unmounted, but the volume is not closed: damaged metadata: ",
];
/// How a line begins of a daemon that goes on where another one has ended, and how one of the end of a mount.
pub const LAST_DAEMON: &str = "the last daemon of this mount: ";
const UNMOUNTED: &str = "unmounted, ";
/// How one begins of a daemon that serves.
const MOUNTED: &str = "mounted ";
/// How a line ends about pages that a scrub has mended.
const MENDED: &str = ": they are written again";
/// How lines begin about mounts that could not be made for their mount point.
const OF_PLACE: [&str; 2] = ["cannot mount on ", "fusermount3: "];
/// Where logs of devices lie, which take names again, and of volumes whose place is gone.
const SHARED: &str = "/var/log";
/// Why a log cannot be read that does not exist.
const ABSENT: &str = "there is none";
/// Begins a line about a repair.
const REPAIR: &str = "repair: ";
/// Begins a line that names the volume that those after it are about.
pub const ABOUT: &str = "volume ";

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// When it was written, in seconds since 1970.
    pub time: u64,
    /// What it says.
    pub what: String,
}

/// What a log and the one before it have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Logged {
    /// The file.
    pub path: String,
    /// Why it cannot be read.
    pub unreadable: Option<String>,
    /// How many errors are in it.
    pub errors: u64,
    /// The last one.
    pub last_error: Option<Line>,
    /// How the last scrub ended.
    pub last_scrub: Option<Line>,
    /// What the last repair has done, and what it could not keep.
    pub last_repair: Option<Line>,
    /// Repairs that could not keep everything.
    #[serde(skip)]
    pub losses: Vec<Line>,
    /// A repair that has begun and not ended.
    #[serde(skip)]
    pub begun_repair: Option<Line>,
    /// Why the last one could not be done, or not be finished.
    #[serde(skip)]
    pub failed_repair: Option<String>,
    /// One did not, and none has since.
    #[serde(skip)]
    pub untold: bool,
    /// How the last daemon ended that died in the last mount, if one did.
    #[serde(skip)]
    pub last_death: Option<Line>,
    /// The same of before the last daemon began, which counts if that has replaced one of the same mount.
    #[serde(skip)]
    pub earlier_death: Option<Line>,
    /// What is damaged and has not been found whole since.
    #[serde(skip)]
    pub damage: Damage,
    /// The last line was about a repair: what follows is its check.
    #[serde(skip)]
    pub repaired: bool,
    /// The daemon cannot write it: it is another user's.
    #[serde(skip)]
    pub is_others_file: bool,
    /// The user whose file it is, if it could be read.
    #[serde(skip)]
    pub owner: Option<u32>,
    /// The lines are about another volume: one that was there before, or in a device of that name.
    #[serde(skip)]
    pub others: bool,
}

/// What nothing in the log has taken back since it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Blocks and pages that the last scrub that came to its end has found, or the last check that has read everything,
    /// and what a scrub after it has found before it was stopped.
    pub blocks: u64,
    /// What the last check has against the structure.
    pub structure: u64,
    /// A mount has met damaged metadata, and no check has followed.
    pub met: bool,
    /// Reads of files have failed, and nothing has read everything since.
    pub reads: bool,
    /// The last check was that of a repair, which had to leave something.
    pub beyond_repair: bool,
    /// The data device was cut short, and nothing has read all of it since.
    pub cut_short: bool,
    /// The last scrub that came to its end has written pages again that were damaged on the disk only, or one after it has,
    pub mended: bool,
    /// and so has the one that is not over yet.
    pub mending: bool,
}

impl Damage {
    /// What is wrong with blocks does not take back what is wrong with the structure.
    fn scrubbed(&mut self, what: &str) {
        let count = what.rsplit_once(": ").and_then(|(_, n)| n.parse().ok());
        let count: u64 = count.unwrap_or_default();
        let mended = std::mem::take(&mut self.mending);
        self.mended = mended || self.mended && !what.starts_with("Finished");
        match what.starts_with("Finished") {
            true => self.all_read(count),
            // One that was stopped has not seen all.
            false => self.blocks = self.blocks.max(count),
        }
    }

    fn checked(&mut self, checked: Checked, repaired: bool) {
        (self.structure, self.met) = (checked.structure, false);
        self.beyond_repair = repaired && checked.structure > 0;
        match checked.blocks {
            Blocks::All(count) => self.all_read(count),
            Blocks::Some(count) => self.blocks = self.blocks.max(count),
        }
    }

    fn all_read(&mut self, blocks: u64) {
        (self.blocks, self.cut_short, self.reads) = (blocks, false, false);
    }
}

/// What a check or a repair leaves, as a line of the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Findings about the structure.
    pub structure: u64,
    /// Damaged blocks of files.
    pub blocks: Blocks,
}

/// How many blocks of files are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// All were read.
    All(u64),
    /// At least so many: not all were read.
    Some(u64),
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fsck: structure: {}, blocks: ", self.structure)?;
        match self.blocks {
            Blocks::All(n) => write!(f, "{n}"),
            Blocks::Some(0) => f.write_str(NOT_READ),
            Blocks::Some(n) => write!(f, "{AT_LEAST}{n}"),
        }
    }
}

impl Checked {
    /// The reverse of `Display`.
    fn parse(line: &str) -> Option<Self> {
        let (structure, blocks) =
            (line.strip_prefix("fsck: structure: ")?).split_once(", blocks: ")?;
        Some(Self {
            structure: structure.parse().ok()?,
            blocks: match (blocks, blocks.strip_prefix(AT_LEAST)) {
                (NOT_READ, _) => Blocks::Some(0),
                (_, Some(n)) => Blocks::Some(n.parse().ok()?),
                (n, None) => Blocks::All(n.parse().ok()?),
            },
        })
    }
}

/// What a repair has done, as a line of the log has it.
pub struct Repaired {
    /// Findings before.
    pub found: u64,
    /// What it could not keep.
    pub losses: Option<String>,
}

/// A repair begins, as a line of the log has it: how much is wrong.
pub struct RepairBegins(pub u64);

/// Goes before how much is wrong as a repair begins.
const BEGUN: &str = "begun: ";

/// A repair could not be done, or not be finished, as a line of the log has it: why.
pub struct RepairFailed(pub String);

/// Goes before why.
const FAILED: &str = "failed: ";

impl fmt::Display for RepairFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{REPAIR}{FAILED}{}", self.0)
    }
}

impl fmt::Display for RepairBegins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = quayfs_shown::count(self.0, "finding");
        write!(f, "{REPAIR}{BEGUN}{found}")
    }
}

/// What a repair could not keep that goes on where another one was interrupted.
const UNTOLD: &str = "what was not kept before, by a repair that was interrupted";

/// Goes before what a repair could not keep.
pub const LOSSES: &str = "; losses: ";

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = quayfs_shown::count(self.found, "finding");
        match &self.losses {
            Some(losses) => write!(f, "{REPAIR}{found}{LOSSES}{losses}"),
            None => write!(f, "{REPAIR}{found}, nothing lost"),
        }
    }
}

impl Logged {
    /// Reads what the log with this name has of the volume with this UUID. Lines of before there were such that name it
    /// count for each, but in a directory that has logs of all volumes.
    pub fn read(path: &Path, uuid: Option<&str>) -> Self {
        let mut logged = Self {
            path: path.display().to_string(),
            others: uuid.is_some() && is_shared(path),
            ..Self::default()
        };
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        // Mostly there is none.
        if let Ok((text, _)) = tail(Path::new(&old)) {
            logged.take(&text, uuid);
        }
        match tail(path) {
            Ok((text, owner)) => {
                logged.take(&text, uuid);
                logged.owner = Some(owner);
            }
            Err(e) => logged.unreadable = Some(unreadable(&e)),
        }
        logged
    }

    /// Whether there is one, and this user cannot read it.
    pub fn is_hidden(&self) -> bool {
        self.unreadable.as_deref().is_some_and(|why| why != ABSENT)
    }

    /// Takes down whether the daemon of this user can write it.
    pub fn written_by(&mut self, user: Option<u32>) {
        let is_theirs = |owner: u32| user.is_none_or(|user| [0, owner].contains(&user));
        self.is_others_file = self.owner.is_some_and(|owner| !is_theirs(owner));
    }

    fn take(&mut self, text: &str, uuid: Option<&str>) {
        for line in text.lines() {
            let Some((time, rest)) = line.trim_start().split_once(' ') else {
                continue;
            };
            let found = |what: &str| Line {
                time: seconds(time).unwrap_or_default(),
                what: what.to_string(),
            };
            let rest = rest.trim_start();
            if let Some(named) = rest.strip_prefix("INFO ").and_then(about) {
                self.others = uuid.is_some_and(|uuid| uuid != named);
            } else if self.others {
                continue;
            } else if let Some(what) = rest
                .strip_prefix("ERROR ")
                .filter(|what| !is_of_place(what))
            {
                self.errors += 1;
                self.last_error = Some(found(what));
                self.damage.cut_short |= tells_of_a_cut(what);
                self.damage.met |= MET.into_iter().any(|begin| what.starts_with(begin));
                self.damage.reads |= tells_of_a_read(what);
                self.may_end(what);
            } else if let Some(what) = rest.strip_prefix("WARN ") {
                self.damage.mending |= what.starts_with("scrub: ") && what.ends_with(MENDED);
                let how = what.strip_prefix(LAST_DAEMON);
                let how = how.and_then(|how| how.split(';').next());
                self.last_death = how.map(found).or(self.last_death.take());
            } else if let Some(what) = rest.strip_prefix("INFO scrub: ") {
                self.last_scrub = Some(found(what));
                self.damage.scrubbed(what);
            } else if let Some(what) = rest.strip_prefix("INFO ") {
                if let Some(checked) = Checked::parse(what) {
                    self.damage.checked(checked, self.repaired);
                    self.failed_repair = None;
                }
                let repair = what.strip_prefix(REPAIR);
                let has_ended = |what: &str| ![BEGUN, FAILED].iter().any(|w| what.starts_with(w));
                self.repaired = repair.is_some_and(has_ended);
                if let Some(repair) = repair {
                    self.repair(found(repair));
                }
                self.may_end(what);
            }
        }
    }

    /// A line about a repair: it begins, or has ended.
    fn repair(&mut self, line: Line) {
        self.failed_repair = line.what.strip_prefix(FAILED).map(str::to_string);
        if self.failed_repair.is_some() {
            return;
        }
        if line.what.starts_with(BEGUN) {
            self.untold |= self.begun_repair.is_some();
            self.begun_repair = Some(line);
            return;
        }
        let mut lost = line.clone();
        let all_told = !std::mem::take(&mut self.untold);
        match (all_told, line.what.contains(LOSSES)) {
            (true, _) => {}
            (false, true) => lost.what += &format!("; and {UNTOLD}"),
            (false, false) => lost.what += &format!("{LOSSES}{UNTOLD}"),
        }
        if lost.what.contains(LOSSES) {
            self.losses.push(lost);
        }
        self.begun_repair = None;
        self.last_repair = Some(line);
    }

    /// The daemons of a mount that has ended do not count any more. Each daemon says that it has mounted, and then that it
    /// goes on where another one has ended, if it does.
    fn may_end(&mut self, what: &str) {
        if what.starts_with(UNMOUNTED) {
            (self.last_death, self.earlier_death) = (None, None);
        } else if what.starts_with(MOUNTED) {
            self.earlier_death = self.last_death.take();
        } else if what.starts_with(LAST_DAEMON) {
            self.last_death = self.earlier_death.take();
        }
    }
}

/// Why a log cannot be read.
fn unreadable(e: &std::io::Error) -> String {
    match e.kind() {
        ErrorKind::NotFound => ABSENT.into(),
        ErrorKind::PermissionDenied => {
            "only root, and the user whose daemon writes it, may read it".into()
        }
        _ => e.to_string(),
    }
}

/// Whether a log lies where volumes of one name share one.
pub fn is_shared(log: &Path) -> bool {
    log.parent() == Some(Path::new(SHARED))
}

/// Whether an error is about where a volume was to be mounted, and not about the volume.
fn is_of_place(error: &str) -> bool {
    OF_PLACE.into_iter().any(|begin| error.starts_with(begin))
}

/// The UUID that a line of the log names.
fn about(line: &str) -> Option<&str> {
    line.strip_prefix(ABOUT)?.split([' ', ',']).next()
}

/// Names of files are part of what a scrub says.
fn tells_of_a_cut(error: &str) -> bool {
    let says = |(begin, end): (&str, &str)| error.contains(begin) && error.ends_with(end);
    !error.starts_with("scrub: ") && CUT_SHORT.into_iter().any(says)
}

/// As a mount says it of a read that has failed: `inode 7: ` and why.
fn tells_of_a_read(error: &str) -> bool {
    let number = error
        .strip_prefix("inode ")
        .and_then(|rest| rest.split_once(": "));
    number.is_some_and(|(number, _)| number.parse::<u64>().is_ok())
}

fn seconds(time: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(time).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

fn tail(path: &Path) -> std::io::Result<(String, u32)> {
    // Others may own the directory: nothing that is there may keep us waiting, or lead elsewhere.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), meta.uid()))
}

#[cfg(test)]
impl Logged {
    /// A log with these lines.
    pub fn of(lines: &[&str]) -> Self {
        let mut logged = Self::default();
        for line in lines {
            logged.take(&format!("1970-01-01T00:00:01Z  {line}\n"), Some("u-1"));
        }
        logged
    }
}

#[cfg(test)]
#[path = "logged_tests.rs"]
mod tests;
