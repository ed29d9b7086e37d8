//! Attributes of the root directory that are none: what the mount says of itself, and what it can be
//! told to do.

use quayfs_fuse::wire::InHeader;
use quayfs_fuse::{Answer, Errno};

use crate::edge::convert::{caller, scrub_report};
use crate::edge::service::Edge;
use crate::error::FsError;
use crate::mount::{SCRUB_XATTR, STATUS_XATTR};

impl Edge {
    /// What one of them says; `None` if the name is none of theirs.
    pub(super) fn report(&self, header: &InHeader, name: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        if name == STATUS_XATTR.as_bytes() {
            let mut status = self.fs.status();
            status.counters.requests = self.stats.total();
            status.transport = self.stats.transport().unwrap_or_default();
            status.messages = self
                .stats
                .messages()
                .into_iter()
                .map(|(opcode, n)| (opcode.name(), n))
                .collect();
            return Some(serde_json::to_vec(&status).map_err(|e| FsError::io(e).into()));
        }
        let from = scrub_report(name)?;
        Some(
            self.fs
                .scrub_report(caller(header, 0), from)
                .map_err(Into::into),
        )
    }

    /// Does what is written to one of them; `None` if the name is none of theirs.
    pub(super) fn command(&self, header: &InHeader, name: &[u8], value: &[u8]) -> Option<Answer> {
        (name == SCRUB_XATTR.as_bytes())
            .then(|| Ok(self.fs.scrub_command(caller(header, 0), value)?))
    }
}
