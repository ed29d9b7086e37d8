//! A volume stands still between two daemons of one mount: closed, so that its media can get another size, though files
//! are open and the kernel knows inodes.
//!
//! The daemon that serves is asked ([`Fs::resize_command`]) and leaves the mount to the next one. Before that one serves it
//! recovers the volume, so that what the last one was doing is judged, closes it ([`Fs::mount_to_close`],
//! [`Fs::close_keeping_orphans`]), and mounts it again when the media are as they are to be.

use std::fmt;
use std::sync::{Arc, OnceLock};

use quayfs_background::{Background, Staged, checkpoint};
use quayfs_options::MountOptions;
use quayfs_restart::{Requests, Wish};
use quayfs_store::error::{FsError, Result};
use serde::Serialize;

use crate::recovery::{self, MountError};
use crate::status::may_manage;
use crate::volume::Volume;
use crate::{Asker, Fs};

/// What became of a size that was wished for ([`Wish`]), by the daemon that began with it.
#[derive(Clone, Debug, Serialize)]
pub struct Resized {
    /// The wish.
    pub wanted: String,
    /// What has become of the volume, in lines; `None` if it was refused.
    pub done: Option<String>,
    /// Why it was refused.
    pub refused: Option<String>,
}

/// What a mount knows of its next daemon.
#[derive(Default)]
pub(crate) struct Successor {
    /// Leaves the mount to it.
    call: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Why it cannot come any more, if that is so.
    lost: OnceLock<Box<dyn Fn() -> Option<&'static str> + Send + Sync>>,
    /// What this daemon has begun with.
    resized: OnceLock<Resized>,
}

impl Successor {
    /// Why there will be none, though there would have been one.
    pub(crate) fn why_lost(&self) -> Option<&'static str> {
        self.lost.get()?()
    }
}

impl fmt::Debug for Successor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Successor")
    }
}

/// Most rounds before the mount stands still: each has less to do than the one before it.
const ROUNDS: usize = 3;

impl Fs {
    /// Recovers a volume to close it. No thread is started, and the kernel is not asked whether it knows an inode: no request is
    /// answered meanwhile.
    ///
    /// # Errors
    /// As of [`Fs::mount`].
    pub fn mount_to_close(
        volume: Volume,
        options: &MountOptions,
    ) -> std::result::Result<Arc<Self>, MountError> {
        let engine = Arc::new(Background::new(recovery::recover(&volume, options)?));
        engine.reclaim_inline();
        Ok(Self::serve(volume, options, engine, None))
    }

    /// As [`Fs::shutdown`], but files without names stay: their mount goes on.
    ///
    /// # Errors
    /// Those of media: then the volume is not closed.
    pub fn close_keeping_orphans(&self) -> Result<()> {
        self.end_chores();
        self.e.stop();
        self.e.close(Staged::Drain)?;
        match self.has_failed() {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Writes to the data device what is staged, as far as it does not grow meanwhile, so that little is left to do when
    /// nothing is answered. What fails here fails again there.
    pub fn drain_ahead(&self) {
        for _ in 0..ROUNDS {
            match checkpoint::round(&self.e) {
                Ok(report) if report.slots > 0 => {}
                _ => return,
            }
        }
    }

    /// The next daemon is called by this. What is said first counts.
    pub fn on_successor_wanted(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.successor.call.set(Box::new(call));
    }

    /// This tells why the next daemon cannot come any more, once that is so: from then on the mount ends with this one, for
    /// good. What is said first counts.
    pub fn on_successor_doubted(
        &self,
        why: impl Fn() -> Option<&'static str> + Send + Sync + 'static,
    ) {
        let _ = self.successor.lost.set(Box::new(why));
    }

    /// This daemon has begun with that. What is said first counts.
    pub fn began_with(&self, resized: Resized) {
        let _ = self.successor.resized.set(resized);
    }

    /// What [`Fs::began_with`] was told.
    pub fn last_resize(&self) -> Option<&Resized> {
        self.successor.resized.get()
    }

    /// Leaves the mount to another daemon, which is to give the volume the size that `text` says ([`Wish`]). `requests`: what
    /// that one will know of this one, if there will be one.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon; [`FsError::Invalid`];
    /// [`FsError::NotSupported`] if the mount ends with its daemon; [`FsError::ReadOnly`] if it has failed, or was shut down;
    /// [`FsError::Busy`] if another size is wished for.
    pub fn resize_command(
        &self,
        caller: impl Asker,
        text: &[u8],
        requests: Option<&Requests>,
    ) -> Result<()> {
        may_manage(&caller)?;
        let text = std::str::from_utf8(text).map_err(|_| FsError::Invalid)?;
        let wish: Wish = text.parse().map_err(|()| FsError::Invalid)?;
        let call = self.successor.call.get();
        let requests = requests.filter(|_| self.why_it_ends_with_daemon().is_none());
        let (Some(call), Some(requests)) = (call, requests) else {
            return Err(FsError::NotSupported);
        };
        if self.e.is_read_only() || self.alive().is_err() {
            return Err(FsError::ReadOnly);
        }
        if !requests.wish(wish) {
            return Err(FsError::Busy);
        }
        call();
        Ok(())
    }
}
