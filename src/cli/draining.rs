//! Watching a daemon that closes its volume.

use quayfs_fs::uuid_text;
use quayfs_fs::volume::glance;
use quayfs_shown::progress::{Meter, Unit};

use super::exit::{Failure, MOUNT_FAILED};
use super::progress::Progress;
use super::units::left_text;
use crate::mount::server::{Left, PROGRESS, Server};
use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often to look at it.
const LOOK: Duration = Duration::from_millis(250);
/// What gets no further for so long is stuck; a flush of a slow disk may take a minute.
const STUCK: Duration = Duration::from_secs(120);
/// How soon a daemon says something that has been asked.
const FIRST_WORD: Duration = Duration::from_millis(800);

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
pub fn closing(volume: &Path) -> Option<Server> {
    let glance = glance(volume).ok().filter(|volume| volume.in_use)?;
    let owner = std::fs::metadata(&glance.path).ok()?.uid();
    let server = Server::closing(&uuid_text(glance.config.uuid), owner)?;
    server.ask_for(PROGRESS).then_some(server)
}

/// What the daemon has still to do that closes the volume at a path, if there is one that says so at once.
pub fn left(volume: &Path) -> Option<Left> {
    let server = closing(volume)?;
    let until = Instant::now() + FIRST_WORD;
    while server.left().is_none() {
        let patience = until.saturating_duration_since(Instant::now());
        if patience.is_zero() || !server.speaks_within(patience).ok()? {
            return None;
        }
        if server.ends_within(Duration::ZERO).ok()? {
            break;
        }
    }
    server.left()
}

/// Waits while another daemon closes the volume, as long as that gets on, and shows how far it is.
///
/// # Errors
/// It does not get on.
pub fn wait_while_closing(volume: &Path) -> Result<(), Failure> {
    let Some(server) = closing(volume) else {
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
