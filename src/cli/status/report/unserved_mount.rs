//! What is known of a mount whose daemon does not answer.

use super::super::full::{self, Obstacle};
use super::super::health::judge;
use super::super::next;
use super::{Report, State};
use crate::cli::unserved::{self, Unserved};
use crate::cli::{log, media};
use crate::mount::table::Entry;
use quayfs_fs::volume::{Glance, VolumeError};
use rustix::process::geteuid;
use std::path::Path;

impl Report {
    /// A mount without an answer; `volume`: what is on the media, or why that cannot be told, if they answer.
    /// `is_busy`: it worked all the same while it was asked.
    pub fn unserved(
        entry: &Entry,
        (why, is_busy): (Unserved, bool),
        volume: Option<Result<Glance, VolumeError>>,
    ) -> Self {
        let state = match why {
            Unserved::Dead => State::Dead,
            Unserved::Stopped => State::Stopped,
            Unserved::Silent => State::Silent,
            Unserved::Broken => State::Broken,
        };
        let source = Path::new(&entry.source);
        let mut r = Self::empty(entry.source.to_string_lossy().into_owned(), state);
        r.mountpoint = Some(entry.target.to_string_lossy().into_owned());
        let is_path = media::names_itself(source);
        if !media::is_believed(entry) {
            r.distrust(entry);
        }
        let may_look = [Some(0), entry.user_id()].contains(&Some(geteuid().as_raw()));
        // Where there is none, it may be that of another user.
        let is_its = is_path && (!r.is_foreign || matches!(volume, Some(Ok(_))));
        match volume {
            Some(Ok(volume)) => {
                r.know(&volume);
                r.unmountable = before_next_mount(entry, &volume, state);
            }
            // The next daemon waits for that. Other users may not be permitted to look.
            Some(Err(why)) if may_look && is_path && !r.is_foreign => {
                r.unmountable = full::unopened_mounted(source, &why);
            }
            Some(Err(_)) => {}
            None => r.unmountable = Some(Obstacle::Silence),
        }
        if r.log.is_none() && is_its && r.unmountable != Some(Obstacle::Silence) {
            match r.is_foreign {
                true => r.read_log_of(entry),
                false => r.read_log(source),
            }
        }
        r.daemon = unserved::daemon(entry);
        r.is_busy = is_busy;
        r.stopped_supervisor = unserved::stopped_supervisor(entry);
        judge(&mut r);
        r
    }

    /// The log of a volume of another user, if that user has written it.
    fn read_log_of(&mut self, entry: &Entry) {
        let to = log::destination(Path::new(&entry.source), None).ok();
        let path = to.and_then(|to| to.path());
        let path = path.filter(|path| media::is_of_user(entry, path));
        self.log = path.map(|path| media::log_in_time(&path, self.uuid.as_deref()));
    }
}

/// What the next mount of a volume would meet whose daemon does not answer.
fn before_next_mount(entry: &Entry, volume: &Glance, state: State) -> Option<Obstacle> {
    match media::hindrance_of(entry, &volume.path) {
        Ok(Some(why)) if next::is_beheaded(&why) || next::is_without_log(&why) => {
            Some(Obstacle::Damage(why))
        }
        Ok(Some(why)) => Some(Obstacle::Other(why)),
        // Nothing has it any more: its content can be looked at. Not what another user names: that may be made of anything.
        Ok(None) if state == State::Dead && !volume.in_use && media::is_believed(entry) => {
            full::status(&volume.path).1
        }
        Ok(None) => None,
        Err(media::Silent) => Some(Obstacle::Silence),
    }
}
