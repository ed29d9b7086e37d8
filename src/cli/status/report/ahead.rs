//! What is added to the word of a daemon by a look at where the media are, and what of that word is not believed.

use super::super::health::judge;
use super::super::logged::Logged;
use super::super::next;
use super::Report;
use crate::cli::{media, unserved};
use crate::mount::server::Server;
use crate::mount::table::Entry;
use std::path::PathBuf;

impl Report {
    /// Adds whether another daemon could go on with the mount, and what room there is below, which takes a look at where the
    /// media are, as the user whose daemons those are.
    pub fn look_ahead(mut self, entry: &Entry) -> Self {
        let daemon = self.daemon.as_ref();
        let pid = daemon.and_then(|daemon| i32::try_from(daemon.pid).ok());
        let volume = PathBuf::from(&self.volume);
        if !media::is_believed(entry) {
            self.distrust(entry);
        }
        if !self.unlinked.is_empty() {
            judge(&mut self);
            return self;
        }
        if let Some(log) = &mut self.log {
            log.written_by(entry.user_id());
        }
        // Of media that do not answer, the daemon knows more.
        let ahead = media::ahead(entry, pid, &volume);
        if ahead.is_ok() && self.is_as_long_again() {
            self.device_needs_bytes = None;
        }
        let hindrance = ahead.ok().flatten();
        let goes_on = self.goes_on == Some(true);
        if goes_on {
            let server = Server::of(entry);
            let pid = server.and_then(|server| server.pid());
            self.stopped_supervisor = pid.and_then(unserved::stopped_parent);
        }
        // Without another daemon it is up to the user where the volume is at the next mount.
        let of_volume = |why: &str| next::is_beheaded(why) || next::is_without_log(why);
        self.hindrance = hindrance.filter(|why| goes_on || of_volume(why));
        let below = media::room_below(entry, pid, &volume);
        self.below = below.map(|below| below.used_by(entry.user_id() == Some(0)));
        if self.needs_region() {
            self.is_region_file = media::is_region_file(entry, &volume);
        }
        judge(&mut self);
        self
    }

    /// Takes back what would be put into commands by the word of the daemon of another user, which may be any program, or by
    /// the name that this user has chosen for the volume.
    pub(super) fn distrust(&mut self, entry: &Entry) {
        self.is_foreign = true;
        self.volume = entry.source.to_string_lossy().into_owned();
        (self.data_file, self.device_needs_bytes) = (None, None);
        let is_theirs = |log: &Logged| log.owner.is_some() && log.owner == entry.user_id();
        self.log = self.log.take().filter(is_theirs);
    }

    /// Whether the file of the data has the length by now that the daemon has missed: no command is to shorten it.
    fn is_as_long_again(&self) -> bool {
        let len = (self.data_file.as_ref()).and_then(|file| std::fs::metadata(file).ok());
        let len = len.map(|meta| meta.len());
        len.zip(self.device_needs_bytes)
            .is_some_and(|(len, needs)| len >= needs)
    }
}
