//! A mount whose daemon does not answer: why, and what is known of it all the same, from the volume, from the process
//! that started the daemon, and from `/proc`.

use quayfs_fs::uuid_text;
use quayfs_fs::volume::{Glance, VolumeError};
use quayfs_layout::jsb::Mode;
use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::args::{Cli, Command};
use super::handover::{CAUSE, DEATHS, REPLACED};
use super::media::{PATIENCE, found_in_time, glance_within, is_believed, is_of_user, names_itself};
use super::restart;
use super::status::Daemon;
use crate::mount::control::{left_alone, supervisor};
use crate::mount::server::Server;
use crate::mount::table::Entry;
use clap::Parser;
use procfs::process::Process;
use procfs::{Current, Uptime};
use rustix::process::geteuid;

/// How long a supervisor may take to say what it knows; it does little else.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// Why a mount is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The daemon has died.
    Dead,
    /// It is stopped.
    Stopped,
    /// It does not answer.
    Silent,
    /// Not even the root directory can be read.
    Broken,
}

impl Unserved {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
            Self::Broken => "broken",
        }
    }

    /// The same where the mount is named already. `facts` are those of [`facts`].
    pub fn short(self, facts: &Value) -> String {
        match (self, facts["pid"].as_u64()) {
            (Self::Dead, _) => "the daemon is gone".into(),
            (Self::Silent, _) => "the daemon does not answer".into(),
            (Self::Broken, _) => "the root directory cannot be read".into(),
            (Self::Stopped, None) => "the daemon is stopped (SIGSTOP or a debugger)".into(),
            (Self::Stopped, Some(pid)) => {
                format!("the daemon is stopped (SIGSTOP or a debugger): `kill -CONT {pid}`")
            }
        }
    }

    /// What there is to say, and to do about it.
    pub fn line(self, entry: &Entry) -> String {
        let shown = quayfs_shown::argument(&entry.target);
        match self {
            Self::Dead => {
                format!("the daemon of {shown} is gone: `quayfs umount {shown}`, then mount again")
            }
            Self::Stopped => {
                let pid = Server::of(entry).and_then(|server| server.pid());
                let go_on = pid.map_or("SIGCONT".into(), |pid| format!("`kill -CONT {pid}`"));
                format!(
                    "the daemon of {shown} is stopped (SIGSTOP or a debugger): {go_on} lets it go on"
                )
            }
            Self::Silent => {
                format!("the daemon of {shown} does not answer: `quayfs status {shown}`")
            }
            Self::Broken => {
                format!("the root directory of {shown} cannot be read: `quayfs status {shown}`")
            }
        }
    }
}

/// The daemon of a mount, as far as it is known without its help.
pub fn daemon(entry: &Entry) -> Option<Daemon> {
    let mut daemon = by_proc(Server::of(entry)?.pid()?)?;
    daemon.version = restart::version_of(entry, FIRST_WORD);
    Some(daemon)
}

/// The parent of a daemon, which is to start the next one, if a signal or a debugger has stopped it.
pub fn stopped_parent(pid: i32) -> Option<i32> {
    let parent = Process::new(pid).ok()?.stat().ok()?.ppid;
    is_stopped(parent).then_some(parent)
}

/// What is to start the next daemon of a mount, whether there is one now or not, if that is stopped.
pub fn stopped_supervisor(entry: &Entry) -> Option<i32> {
    supervisor(entry).filter(|pid| is_stopped(*pid))
}

fn is_stopped(pid: i32) -> bool {
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| matches!(stat.state, 'T' | 't'))
}

/// Whether paths mean the same to a process and to this one: it is in this mount namespace, and has this root directory.
/// `None` where this user cannot tell.
pub fn sees_the_same(pid: i32) -> Option<bool> {
    let namespace = |of: &Process| Some(of.namespaces().ok()?.0.get(OsStr::new("mnt"))?.identifier);
    let root = |of: &Process| of.root().ok();
    let (theirs, own) = (Process::new(pid).ok()?, Process::myself().ok()?);
    let found = namespace(&theirs)?;
    Some(Some(found) == namespace(&own) && root(&theirs)? == root(&own)?)
}

/// [`sees_the_same`], which users other than root cannot tell of their daemons either: those are taken to be here.
pub fn means_the_same(pid: i32) -> bool {
    let is_own = || {
        let status = Process::new(pid).and_then(|process| process.status());
        status.is_ok_and(|status| status.ruid == geteuid().as_raw())
    };
    sees_the_same(pid).unwrap_or_else(is_own)
}

/// The volume that a daemon of this mount namespace was started for, by its arguments. Users other than root cannot see the
/// namespace of their daemons: it is taken for this one.
pub fn volume_of(pid: i32) -> Option<PathBuf> {
    let process = Process::new(pid).ok()?;
    if sees_the_same(pid) == Some(false) {
        return None;
    }
    let Command::Mount(args) = Cli::try_parse_from(process.cmdline().ok()?).ok()?.command else {
        return None;
    };
    match args.volume.is_absolute() {
        true => Some(args.volume),
        false => Some(process.cwd().ok()?.join(args.volume)),
    }
}

/// The daemon of this user, of root or of the owner of a volume that serves it where no mount is seen, and the number of its file
/// system.
pub fn server_of(volume: &Path) -> Option<(String, Server)> {
    let is_meant = meant(volume)?;
    let mut found = Server::all_serving().into_iter();
    found
        .find(|(_, server, user)| is_meant(server.pid(), *user))
        .map(|(device, server, _)| (device, server))
}

/// What would start the next daemon of a volume whose mount is gone; of the same users.
pub fn supervisor_left(volume: &Path) -> Option<i32> {
    let is_meant = meant(volume)?;
    let mut found = left_alone().into_iter();
    let (pid, _) = found.find(|(pid, user)| is_meant(Some(*pid), *user))?;
    Some(pid)
}

/// Whether a process of some user was started for this volume: one of this user, of root or of the owner of the volume. The path
/// that it was given may lead to what does not answer.
fn meant(volume: &Path) -> Option<impl Fn(Option<i32>, u32) -> bool> {
    let meta = std::fs::metadata(volume).ok()?;
    let (itself, owner) = ((meta.dev(), meta.ino()), meta.uid());
    let users = [0, geteuid().as_raw(), owner];
    Some(move |pid: Option<i32>, user: u32| {
        users.contains(&user)
            && pid
                .and_then(volume_of)
                .is_some_and(|named| found_in_time(&named) == Some(itself))
    })
}

/// A daemon, as far as `/proc` knows it.
pub fn by_proc(pid: i32) -> Option<Daemon> {
    let process = Process::new(pid).ok()?;
    let since_boot = process.stat().ok()?.starttime / procfs::ticks_per_second();
    let uptime_seconds = (Uptime::current().ok()?.uptime as u64).saturating_sub(since_boot);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // What it was told when it was started; others may not look.
    let told = process.environ().unwrap_or_default();
    let word = |name: &str| {
        Some(
            told.get(name.as_ref() as &std::ffi::OsStr)?
                .to_str()?
                .to_string(),
        )
    };
    let number = |name: &str| word(name)?.parse::<u64>().ok();
    let restarts = number(DEATHS).zip(number(REPLACED));
    Some(Daemon {
        pid: pid.unsigned_abs().into(),
        version: None,
        started: now.ok().map(|now| now.as_secs() - uptime_seconds),
        uptime_seconds,
        restarts: restarts.map(|(died, replaced)| died + replaced),
        last_death: word(CAUSE).filter(|cause| !cause.is_empty()),
    })
}

/// The volume of a mount, looked at; `None` if its media do not answer. Any user can have the mount table show any name: what
/// has it is looked at if it belongs to that user.
pub fn glance_of(entry: &Entry) -> Option<Result<Glance, VolumeError>> {
    let source = Path::new(&entry.source);
    match names_itself(source) && (is_believed(entry) || is_of_user(entry, source)) {
        true => glance_within(source, PATIENCE),
        // Nothing is known of it.
        false => Some(Err(VolumeError::Missing(source.into()))),
    }
}

/// What is known of a mount without its daemon, by the names that the daemon would use for it.
pub fn facts(entry: &Entry) -> Value {
    let mut facts = Map::from_iter([
        ("volume".to_string(), json!(entry.source.to_string_lossy())),
        ("mountpoint".into(), json!(entry.target.to_string_lossy())),
    ]);
    if let Some(Ok(volume)) = glance_of(entry) {
        facts.append(&mut of_volume(&volume));
    }
    if let Some(daemon) = daemon(entry) {
        let uptime_ms = daemon.uptime_seconds * 1000;
        facts.insert("pid".into(), json!(daemon.pid));
        facts.insert("version".into(), json!(daemon.version));
        facts.insert("started".into(), json!(daemon.started));
        facts.insert("uptime_ms".into(), json!(uptime_ms));
        facts.insert("restarts".into(), json!(daemon.restarts));
        facts.insert("last_death".into(), json!(daemon.last_death));
    }
    Value::Object(facts)
}

fn of_volume(volume: &Glance) -> Map<String, Value> {
    let (config, g) = (&volume.config, &volume.config.geometry);
    let durability = volume.left.map(|left| match left.mode {
        Mode::Op => "op",
        Mode::Commit => "commit",
    });
    Map::from_iter([
        ("volume".to_string(), json!(volume.path.to_string_lossy())),
        ("uuid".into(), json!(uuid_text(config.uuid))),
        ("label".into(), json!(config.label())),
        ("created".into(), json!(config.created)),
        ("stored_options".into(), json!(config.options())),
        ("backend".into(), json!(volume.backend.to_string())),
        ("durability".into(), json!(durability)),
        ("pmem_bytes".into(), json!(g.pmem_len)),
        ("blocks".into(), json!(g.visible_blocks())),
        ("inodes".into(), json!(g.inodes())),
        ("buffers".into(), json!(g.buffers)),
        ("slots".into(), json!(g.buffers * g.slots_per_buffer)),
        ("node_pages".into(), json!(g.node_pages)),
    ])
}
