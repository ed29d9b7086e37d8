//! What is known of a volume, from its daemon or from its media. `docs/status.md` describes it as JSON.

use super::below::Below;
use super::full::{self, Obstacle};
use super::health::{Health, judge};
use super::logged::{Logged, is_shared};
pub use super::parts::{B, Daemon, Data, Errors, Inodes, Region, Scrub, Staged};
use super::said::{daemon, data, data_file, errors, inodes, region, scrub, staged, uncommitted};
use crate::cli::advice::advice;
use crate::cli::asking;
use crate::cli::draining::Closing;
use crate::cli::handover::{MANAGER_GONE, SUPERVISOR_GONE};
use crate::cli::unserved;
use crate::cli::{log, media};
use crate::mount::server::Server;
use crate::mount::superblock::{Elsewhere, Superblock, users_of};
use quayfs_fs::uuid_text;
use quayfs_fs::volume::{Glance, locate};
use quayfs_layout::jsb::Mode;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

mod ahead;
mod unserved_mount;

/// Where a volume is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A daemon serves it.
    Mounted,
    /// It is not mounted.
    Unmounted,
    /// It was unmounted, and its daemon is closing it.
    Closing,
    /// A process uses it that cannot be seen from here.
    InUse,
    /// Its daemon is stopped.
    Stopped,
    /// Its daemon does not answer.
    Silent,
    /// Its daemon cannot even read the root directory.
    Broken,
    /// Its daemon has died.
    Dead,
}

impl State {
    fn of(closing: Closing) -> Self {
        match closing {
            Closing::Left(_) | Closing::Untold => Self::Closing,
            Closing::Stopped(_) => Self::Stopped,
            Closing::Silent(_) => Self::Silent,
        }
    }
}

/// What is known of a volume; `None` where it is not. Sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub volume: String,
    pub mountpoint: Option<String>,
    pub uuid: Option<String>,
    pub label: Option<String>,
    pub health: Health,
    pub reasons: Vec<String>,
    pub advice: Option<String>,
    /// What to do about each reason.
    pub todo: Vec<Option<String>>,
    pub state: State,
    /// A daemon that does not answer was at work.
    #[serde(skip)]
    pub is_busy: bool,
    pub clean: Option<bool>,
    pub repairing: bool,
    /// Why it cannot be mounted: one of the reasons.
    #[serde(skip)]
    pub unmountable: Option<Obstacle>,
    pub read_only: bool,
    pub read_only_reason: Option<String>,
    pub shut_down: bool,
    pub backend: Option<String>,
    pub durability: Option<String>,
    pub options: Option<String>,
    pub data: Option<Data>,
    pub inodes: Option<Inodes>,
    pub region: Option<Region>,
    pub staged: Option<Staged>,
    pub last_commit_seconds: Option<u64>,
    pub uncommitted: Option<bool>,
    pub device_silent_seconds: Option<u64>,
    /// Bytes at its end that are not there any more.
    #[serde(skip)]
    pub device_missing_bytes: u64,
    /// How long it has to be.
    #[serde(skip)]
    pub device_needs_bytes: Option<u64>,
    /// Its path, if it is a file.
    #[serde(skip)]
    pub data_file: Option<String>,
    /// A daemon serves it, and no mount is in sight.
    #[serde(skip)]
    pub is_served: bool,
    /// What is to put on the media what the last daemon had stored, while the mount is gone.
    #[serde(skip)]
    pub stored_by: Option<i32>,
    /// Where that is mounted: in another mount namespace.
    #[serde(skip)]
    pub elsewhere: Option<String>,
    /// The mount is neither this user's nor root's: what its daemon and its user name is put into no command.
    #[serde(skip)]
    pub is_foreign: bool,
    /// Room in the file system that files with holes lie on.
    #[serde(skip)]
    pub below: Option<Below>,
    /// Whether the region is a file, if that was looked at.
    #[serde(skip)]
    pub is_region_file: Option<bool>,
    /// A failure has ended writing, and the next daemon would not go on.
    #[serde(skip)]
    pub has_failed: bool,
    /// Bytes at the end of the region that are not there any more.
    #[serde(skip)]
    pub region_missing_bytes: u64,
    /// Why another daemon could not open the volume now.
    #[serde(skip)]
    pub hindrance: Option<String>,
    /// The process that is to start the next daemon, if that is stopped.
    #[serde(skip)]
    pub stopped_supervisor: Option<i32>,
    /// Damage that a mount for reading only has passed over: what it counts is not what there is.
    #[serde(skip)]
    pub passed_over: Option<String>,
    /// Places of the inode table.
    #[serde(skip)]
    pub inode_table: Option<u64>,
    /// The parts whose files were removed while they were mounted.
    pub unlinked: Vec<String>,
    pub scrub: Option<Scrub>,
    pub errors: Errors,
    pub log: Option<Logged>,
    pub daemon: Option<Daemon>,
    /// Another daemon goes on with the mount if this one dies; this one may be too old to say so.
    #[serde(skip)]
    pub goes_on: Option<bool>,
    /// What would have started that one cannot any more: what has become of it.
    #[serde(skip)]
    pub successor_lost: Option<String>,
}

impl Report {
    fn empty(volume: String, state: State) -> Self {
        Self {
            volume,
            mountpoint: None,
            uuid: None,
            label: None,
            health: Health::Ok,
            reasons: Vec::new(),
            advice: None,
            todo: Vec::new(),
            state,
            is_busy: false,
            clean: None,
            repairing: false,
            unmountable: None,
            read_only: false,
            read_only_reason: None,
            shut_down: false,
            backend: None,
            durability: None,
            options: None,
            data: None,
            inodes: None,
            region: None,
            staged: None,
            last_commit_seconds: None,
            uncommitted: None,
            device_silent_seconds: None,
            device_missing_bytes: 0,
            device_needs_bytes: None,
            data_file: None,
            is_foreign: false,
            is_served: false,
            stored_by: None,
            elsewhere: None,
            below: None,
            is_region_file: None,
            has_failed: false,
            region_missing_bytes: 0,
            hindrance: None,
            stopped_supervisor: None,
            passed_over: None,
            inode_table: None,
            unlinked: Vec::new(),
            scrub: None,
            errors: Errors::default(),
            log: None,
            daemon: None,
            goes_on: None,
            successor_lost: None,
        }
    }

    /// What the daemon of a mount says. It may be of another version than this program: what it does not say is not known.
    /// `is_read_only`: the kernel lets nothing be written, of which it tells no daemon.
    pub fn live(mountpoint: &Path, is_read_only: bool, s: &Value) -> Self {
        let text = |key: &str| s[key].as_str().map(str::to_string);
        let mut r = Self {
            mountpoint: Some(mountpoint.to_string_lossy().into_owned()),
            uuid: text("uuid"),
            label: text("label").filter(|label| !label.is_empty()),
            advice: advice(s).into_iter().next(),
            read_only: is_read_only || s["read_only"].as_bool().unwrap_or_default(),
            read_only_reason: text("read_only_reason"),
            shut_down: s["shut_down"].as_bool().unwrap_or_default(),
            backend: text("backend"),
            durability: text("durability"),
            options: text("options"),
            data: data(s),
            inodes: inodes(s),
            inode_table: s["inodes"].as_u64(),
            region: region(s),
            staged: staged(s),
            last_commit_seconds: s["commit_age_ms"].as_u64().map(|ms| ms / 1000),
            uncommitted: uncommitted(s),
            device_silent_seconds: s["device_silent_ms"].as_u64().map(|ms| ms / 1000),
            device_missing_bytes: s["device_missing_bytes"].as_u64().unwrap_or_default(),
            device_needs_bytes: s["device_needs_bytes"].as_u64(),
            data_file: data_file(s),
            has_failed: s["has_failed"].as_bool().unwrap_or_default(),
            region_missing_bytes: s["region_missing_bytes"].as_u64().unwrap_or_default(),
            unlinked: asking::unlinked(s),
            scrub: scrub(&s["scrub"]),
            errors: errors(s),
            daemon: daemon(s),
            goes_on: s.get("ends_with_daemon").map(Value::is_null),
            successor_lost: text("ends_with_daemon")
                .filter(|why| [SUPERVISOR_GONE, MANAGER_GONE].contains(&&**why)),
            ..Self::empty(text("volume").unwrap_or_default(), State::Mounted)
        };
        r.passed_over = text("passed_over");
        if r.passed_over.is_some() {
            (r.data, r.inodes, r.region) = (None, None, None);
        }
        // A daemon that is older does not say where it logs.
        let path = text("log").map(PathBuf::from);
        r.log = path.map(|path| media::log_in_time(&path, r.uuid.as_deref()));
        judge(&mut r);
        r
    }

    /// A volume that no mount in sight serves. `closing`: how the daemon is that closes it, if one does.
    pub fn at_rest(volume: &Glance, closing: Option<Closing>) -> Self {
        let state = match (volume.in_use, closing) {
            (true, Some(closing)) => State::of(closing),
            (true, None) => State::InUse,
            (false, _) => State::Unmounted,
        };
        let mut r = Self::empty(volume.path.to_string_lossy().into_owned(), state);
        r.know(volume);
        r.staged = match closing {
            Some(Closing::Left(left)) => Some(Staged::of_left(left)),
            // A daemon that uses it has more, or less by now.
            _ if volume.in_use => None,
            _ => volume
                .left
                .and_then(|left| left.staged)
                .map(Staged::at_rest),
        };
        if state == State::Unmounted && r.clean.is_some() && !r.repairing {
            let (full, obstacle) = full::status(&volume.path);
            let full = full.unwrap_or_default();
            r.unmountable = obstacle;
            (r.data, r.inodes, r.region) = (data(&full), inodes(&full), region(&full));
            r.inode_table = full["inodes"].as_u64();
        }
        if state == State::Unmounted {
            r.below = Below::of(&volume.path);
            let place = locate(&volume.path).ok();
            r.is_region_file = place.map(|place| place.pmem.is_file());
        }
        let process = closing.and_then(Closing::pid);
        r.daemon = process.and_then(unserved::by_proc);
        judge(&mut r);
        r
    }

    /// Adds what serves it out of sight, and where that is mounted.
    pub fn served_elsewhere(mut self, device: &str, server: &Server) -> Self {
        let places = Superblock::with_device(device).places();
        let shown = |at: &Elsewhere| {
            let pid = at.namespace?;
            let target = quayfs_shown::argument(&at.target);
            Some(format!(
                "mounted on {target} in the mount namespace of process {pid}"
            ))
        };
        self.elsewhere = places.iter().find_map(shown).or_else(|| used_by(device));
        self.is_served = true;
        self.daemon = server.pid().and_then(unserved::by_proc);
        judge(&mut self);
        self
    }

    /// Adds that its mount is gone, and that this process, which has started its daemons, still keeps it.
    pub fn stored_by(mut self, supervisor: i32) -> Self {
        self.stored_by = Some(supervisor);
        judge(&mut self);
        self
    }

    /// A volume at this path that cannot even be looked at.
    pub fn unmountable(path: &Path, why: Obstacle) -> Self {
        let mut r = Self::empty(path.to_string_lossy().into_owned(), State::Unmounted);
        r.unmountable = Some(why);
        r.read_log(path);
        judge(&mut r);
        r
    }

    /// A volume that a daemon serves ([`Self::served_elsewhere`]), and whose mount is not to be seen.
    pub fn out_of_sight(path: &Path, is_stopped: bool) -> Self {
        let state = match is_stopped {
            true => State::Stopped,
            false => State::InUse,
        };
        Self::empty(path.to_string_lossy().into_owned(), state)
    }

    /// A volume that is being closed by a daemon that does not say which one it is, but for its UUID.
    pub fn unseen(uuid: String, closing: Closing) -> Self {
        let mut r = Self::empty(format!("UUID={uuid}"), State::of(closing));
        r.uuid = Some(uuid);
        if let Closing::Left(left) = closing {
            r.staged = Some(Staged::of_left(left));
        }
        r.daemon = closing.pid().and_then(unserved::by_proc);
        judge(&mut r);
        r
    }

    /// Adds what the media say.
    fn know(&mut self, volume: &Glance) {
        let label = String::from_utf8_lossy(&volume.config.label);
        let label = label.trim_end_matches('\0');
        self.uuid = Some(uuid_text(volume.config.uuid));
        self.label = Some(label.to_string()).filter(|label| !label.is_empty());
        self.backend = Some(volume.backend.to_string());
        self.clean = volume.left.map(|left| left.clean);
        self.repairing = volume.left.is_some_and(|left| left.repairing);
        // In the life of mkfs nothing was mounted.
        let mounted = volume.left.filter(|left| left.epoch > 1);
        self.durability = mounted.map(|left| match left.mode {
            Mode::Op => "op".into(),
            Mode::Commit => "commit".into(),
        });
        // That of another user is read where it is known whose it is.
        if !self.is_foreign {
            self.read_log(&volume.path);
        }
    }

    fn read_log(&mut self, volume: &Path) {
        let to = log::destination(volume, None).ok();
        // Whose lines those are in a log that volumes share, only a UUID tells.
        let may_be_its = |path: &PathBuf| self.uuid.is_some() || !is_shared(path);
        let path = to.and_then(|to| to.path()).filter(may_be_its);
        self.log = path.map(|path| Logged::read(&path, self.uuid.as_deref()));
    }

    /// The mount point as messages name it.
    pub fn shown_mountpoint(&self) -> String {
        let path = self.mountpoint.as_deref().unwrap_or_default();
        quayfs_shown::argument(Path::new(path))
    }

    /// The volume as messages name it.
    pub fn shown_volume(&self) -> String {
        quayfs_shown::argument(Path::new(&self.volume))
    }

    /// The volume as commands name it. A name that another user chose may be that of anything.
    pub fn volume_to_name(&self) -> String {
        match self.is_foreign {
            true => "VOLUME".into(),
            false => self.shown_volume(),
        }
    }
}

/// What uses a tree that is mounted nowhere any more.
fn used_by(device: &str) -> Option<String> {
    let users = users_of(device);
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let (first, name) = users.iter().find_map(|pid| Some((pid, name(pid)?)))?;
    let more = match users.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let name = quayfs_shown::text(name.trim_end());
    Some(format!(
        "unmounted with -l, and used by process {first} ({name}){more}"
    ))
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub mod tests;
