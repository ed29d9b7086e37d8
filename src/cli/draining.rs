//! Daemons that close their volumes, and how far they are.

use quayfs_fs::uuid_text;
use quayfs_fs::volume::{Glance, glance};
use quayfs_shown::progress::{Meter, Unit};

use super::exit::{Failure, MOUNT_FAILED};
use super::media::{PATIENCE, glance_within};
use super::progress::Progress;
use super::units::left_text;
use crate::mount::server::{Closer, Left, PROGRESS, Server, VOLUME};
use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often to look at it.
const LOOK: Duration = Duration::from_millis(250);
/// What gets no further for so long is stuck; a flush of a slow disk may take a minute.
const STUCK: Duration = Duration::from_secs(120);
/// How soon a daemon closes its volume whose tree is gone.
const JUST_UNMOUNTED: Duration = Duration::from_millis(400);
/// How soon a daemon says something that has been asked.
const FIRST_WORD: Duration = Duration::from_millis(800);

/// How a daemon is that closes a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It has so much to do still.
    Left(Left),
    /// It says nothing to this user.
    Untold,
    /// A signal or a debugger has stopped it, the process with this number.
    Stopped(i32),
    /// It should have said something by now. Its process id, if that can be seen from here.
    Silent(Option<i32>),
}

impl Closing {
    /// The process that does not say how far it is, if that can be seen from here.
    pub fn pid(self) -> Option<i32> {
        match self {
            Self::Left(_) | Self::Untold => None,
            Self::Stopped(pid) => Some(pid),
            Self::Silent(pid) => pid,
        }
    }
}

/// A volume that is being closed: as it can be seen, or its UUID where the daemon does not say which one it is.
pub type Found = Result<Glance, String>;

/// What a daemon says of how far it is, shown.
pub struct Draining {
    meter: Arc<Meter>,
    /// What there was to do at first.
    all: Cell<u64>,
    _shown: Progress,
}

impl Draining {
    /// Begins to show it, unless it is to be `quiet`.
    pub fn shown(quiet: bool) -> Self {
        let meter = Arc::new(Meter::default());
        Self {
            _shown: Progress::of(&meter, quiet),
            meter,
            all: Cell::new(0),
        }
    }

    /// What the daemon has said last.
    pub fn look(&self, server: &Server) -> Option<Left> {
        let left = server.left()?;
        if self.all.get() == 0 && left.bytes > 0 {
            self.all.set(left.bytes);
            self.meter.begin("draining", left.bytes, Unit::Bytes);
        }
        let all = self.all.get();
        self.meter.set(all.saturating_sub(left.bytes), all);
        Some(left)
    }
}

/// The daemon that closes the volume at a path, whose file system is gone already, if that can be seen from here.
fn closer(volume: &Path) -> Option<Closer> {
    let glance = glance(volume).ok().filter(|volume| volume.in_use)?;
    Server::closing(&uuid_text(glance.config.uuid), owner(&glance)?)
}

fn owner(volume: &Glance) -> Option<u32> {
    Some(std::fs::metadata(&volume.path).ok()?.uid())
}

/// How the daemon is that closes the volume at a path, if there is one: as it says at once.
pub fn state(volume: &Path) -> Option<Closing> {
    let closer = closer(volume)?;
    closer.server.ask_for(PROGRESS);
    hear(&closer, Instant::now() + FIRST_WORD)
}

/// As [`state`]; a daemon whose mount has just gone says so a moment later, and until then nothing does.
pub fn state_soon(volume: &Path) -> Option<Closing> {
    let until = Instant::now() + JUST_UNMOUNTED;
    loop {
        if let Some(closing) = state(volume) {
            return Some(closing);
        }
        // By now it may be closed.
        let in_use = glance(volume).is_ok_and(|volume| volume.in_use);
        if !in_use || Instant::now() >= until {
            return None;
        }
        std::thread::sleep(JUST_UNMOUNTED / 20);
    }
}

/// All volumes that are being closed by daemons that would say so to this user, and how these daemons are.
pub fn all() -> Vec<(Found, Closing)> {
    let closers = Server::all_closing();
    for closer in &closers {
        closer.server.ask_for(VOLUME);
        closer.server.ask_for(PROGRESS);
    }
    // One time for all of them: names are free for all, and a thousand may be listening.
    let until = Instant::now() + FIRST_WORD;
    let looked = until + PATIENCE;
    let found = closers.iter().filter_map(|closer| {
        let closing = hear(closer, until)?;
        let Some(path) = closer.server.volume() else {
            return Some((Err(closer.uuid.clone()), closing));
        };
        let left = looked.saturating_duration_since(Instant::now());
        let glance = (!left.is_zero())
            .then(|| glance_within(&path, left))
            .flatten();
        let Some(volume) = glance else {
            let is_believed = closer.user == 0 || closer.is_mine();
            return is_believed.then(|| (Err(closer.uuid.clone()), closing));
        };
        let volume = volume.ok()?;
        let is_so = volume.in_use
            && uuid_text(volume.config.uuid) == closer.uuid
            && (closer.user == 0 || owner(&volume) == Some(closer.user) || closer.is_mine());
        is_so.then_some((Ok(volume), closing))
    });
    found.collect()
}

/// What a daemon says that has been asked; `None` if it has ended.
fn hear(closer: &Closer, until: Instant) -> Option<Closing> {
    let server = &closer.server;
    while server.left().is_none() {
        if let Some(pid) = server.pid().filter(|_| server.is_stopped()) {
            return Some(Closing::Stopped(pid));
        }
        if !closer.tells() {
            return Some(Closing::Untold);
        }
        let patience = until.saturating_duration_since(Instant::now());
        if !server.speaks_within(patience).ok()? {
            return Some(Closing::Silent(server.pid()));
        }
        if server.ends_within(Duration::ZERO).ok()? {
            return None;
        }
    }
    server.left().map(Closing::Left)
}

/// Waits while another daemon closes the volume, as long as that gets on, and shows how far it is.
///
/// # Errors
/// It does not get on.
pub fn wait_while_closing(volume: &Path) -> Result<(), Failure> {
    let asked = closer(volume).filter(|closer| closer.server.ask_for(PROGRESS));
    let Some(Closer { server, .. }) = asked else {
        return Ok(());
    };
    let draining = Draining::shown(false);
    let failed = |why: String| {
        let shown = quayfs_shown::path(volume);
        Failure::new(
            MOUNT_FAILED,
            format!("{shown}: its last mount is still being closed: {why}"),
        )
    };
    let (mut last, mut since) = (None, Instant::now());
    while !server
        .ends_within(LOOK)
        .map_err(|e| failed(e.to_string()))?
    {
        let now = draining.look(&server);
        if now.map(|left| left.bytes) != last {
            (last, since) = (now.map(|left| left.bytes), Instant::now());
        } else if since.elapsed() >= STUCK {
            let said = now.map_or("nothing is known of how far it is".into(), left_text);
            return Err(failed(format!(
                "{said}, and it makes no progress; its log says more"
            )));
        }
    }
    Ok(())
}
