//! Attributes of the root directory that are none: what the mount says of itself, and what it can be
//! told to do.

use quayfs_fs::{Latencies, Subject};
use quayfs_fuse::wire::InHeader;
use quayfs_fuse::{Answer, Errno};
use quayfs_store::error::FsError;

use crate::convert::list_from;
use crate::errno::{ToErrno, errno};
use crate::service::Server;
use crate::{QUOTA_XATTR, RESIZE_XATTR, SCRUB_XATTR, STATUS_XATTR, TRACE_XATTR};

fn counted(sum: &quayfs_fuse::Latencies) -> Latencies {
    let last = sum.classes.iter().rposition(|n| *n > 0);
    Latencies {
        classes: sum.classes[..last.map_or(0, |at| at + 1)].to_vec(),
        nanos: sum.nanos,
    }
}

impl Server {
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
            let latencies = self.stats.latencies().into_iter();
            status.latencies = latencies
                .map(|(op, sum)| (op.name(), counted(&sum)))
                .collect();
            status.tasks = self.stats.tasks();
            return Some(serde_json::to_vec(&status).map_err(|e| errno(&FsError::internal(e))));
        }
        let by = self.asker(header);
        let subject = |kind: &str, of: fn(u32) -> Subject| {
            list_from(name, &format!("{QUOTA_XATTR}{kind}")).map(of)
        };
        let from = subject("", Subject::Project)
            .or_else(|| subject(".user", Subject::User))
            .or_else(|| subject(".group", Subject::Group));
        if let Some(from) = from {
            let all = self.fs.quotas(by, from);
            let text = all.and_then(|all| serde_json::to_vec(&all).map_err(FsError::internal));
            return Some(text.errno());
        }
        if let Some(number) = list_from(name, TRACE_XATTR) {
            return Some(
                self.fs
                    .may_watch(by)
                    .errno()
                    .map(|()| self.trace.fetch(number)),
            );
        }
        let from = list_from(name, SCRUB_XATTR)?;
        Some(self.fs.scrub_report(by, from).errno())
    }

    /// Does what is written to one of them; `None` if the name is none of theirs.
    pub(super) fn command(&self, header: &InHeader, name: &[u8], value: &[u8]) -> Option<Answer> {
        let by = self.asker(header);
        if name == QUOTA_XATTR.as_bytes() {
            let set = serde_json::from_slice(value).map_err(|_| FsError::Invalid);
            let done = set.and_then(|set| self.fs.set_quota(by, set));
            return Some(done.errno());
        }
        if name == RESIZE_XATTR.as_bytes() {
            let requests = self.requests.as_deref();
            return Some(self.fs.resize_command(by, value, requests).errno());
        }
        (name == SCRUB_XATTR.as_bytes()).then(|| self.fs.scrub_command(by, value).errno())
    }
}
