//! What keeps the processes of one mount and others apart. Between two daemons of a mount the volume is reserved for them. And
//! it has a fencing token: what is left of an earlier mount finds another one than its own once anything has used the volume
//! since, which a reservation on another host, or by another name of a device, does not prevent.

use std::os::fd::OwnedFd;

use super::{Access, Volume, VolumeError, backup, table};
use quayfs_layout::config::FEATURE_ZERO_CRC;
use quayfs_pmem::PmemError;

impl Volume {
    /// Reserves the volume for this process and those that have the descriptor ([`quayfs_pmem::Region::reserve`]). `None`: it is open for
    /// reading only, or that is not possible here.
    ///
    /// # Errors
    /// [`PmemError::Io`].
    pub fn reserve(&self) -> Result<Option<OwnedFd>, PmemError> {
        match self.access {
            Access::ReadWrite => self.region.reserve(),
            Access::ReadOnly => Ok(None),
        }
    }

    /// Keeps daemons from going on that may be left of an earlier mount: they find another fencing token than their own
    /// ([`Volume::check_fencing_token`]). To be called before content is changed, unless a mount goes on. Durable when it returns.
    ///
    /// The copy of the table on the data device keeps the old token if it cannot be written. It is used only where both tables
    /// are lost, so neither a mount nor a repair depends on it.
    ///
    /// # Errors
    /// [`PmemError`] of drains; there are no random numbers.
    pub fn renew_fencing_token(&mut self) -> Result<(), PmemError> {
        // Media in memory are those of one process.
        if self.access == Access::ReadOnly || !self.path.is_absolute() {
            return Ok(());
        }
        let mut new = self.config.clone();
        if !new.is_own_token(new.fencing_token) {
            // An earlier build has used it, and may have left checksums as they were.
            new.compat[0] &= !FEATURE_ZERO_CRC;
        }
        new.fencing_token = new.token(quayfs_pmem::random()?);
        new.changes += 1;
        let taken_back = backup::take_back(&*self.device, &self.config);
        table::replace(&self.region, &new)?;
        let kept = taken_back.and_then(|()| backup::store(&self.region, &*self.device, &new));
        if let Err(e) = kept {
            tracing::warn!("the copy of the configuration table is not written: {e}");
        }
        self.config = new;
        Ok(())
    }

    /// Makes sure that nothing has used the volume since a daemon that found this token, or set it. A volume without one was
    /// last used by a build that knows none, which may have been a daemon of the same mount; or made by one, and then the
    /// token is not of this volume.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`].
    pub fn check_fencing_token(&self, token: u64) -> Result<(), VolumeError> {
        let found = self.config.fencing_token;
        match found == token || found == 0 && self.config.is_own_token(token) {
            true => Ok(()),
            false => Err(VolumeError::Fenced(self.path.clone())),
        }
    }
}
