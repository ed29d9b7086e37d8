//! The fencing token of a volume: what is left of an earlier mount finds another one than its own once anything has used the
//! volume since.

use super::{Access, Volume, VolumeError};
use quayfs_pmem::PmemError;

impl Volume {
    /// Keeps daemons from going on that may be left of an earlier mount: they find another fencing token than their own
    /// ([`Volume::check_fencing_token`]). To be called before content is changed, unless a mount goes on. Durable when it returns.
    ///
    /// # Errors
    /// Those of [`Volume::change_config`]; there are no random numbers.
    pub fn renew_fencing_token(&mut self) -> Result<(), PmemError> {
        // Media in memory are those of one process.
        if self.access == Access::ReadOnly || !self.path.is_absolute() {
            return Ok(());
        }
        let token = quayfs_pmem::random()?.max(1);
        self.change_config(|config| config.fencing_token = token)
    }

    /// Makes sure that nothing has used the volume since a daemon that found this token, or set it.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`].
    pub fn check_fencing_token(&self, token: u64) -> Result<(), VolumeError> {
        match self.config.fencing_token == token {
            true => Ok(()),
            false => Err(VolumeError::Fenced(self.path.clone())),
        }
    }
}
