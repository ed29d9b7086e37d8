//! Requests that come a second time.
//!
//! A daemon that dies leaves requests unanswered, and the kernel sends them to the next one. Those that had been carried
//! out get the answer that they would have had ([`quayfs_restart`]). It tells of the inode as it is now: the kernel holds
//! the locks of directory and file until the answer, so that no other request has changed what the answer is about.

use quayfs_fuse::wire::{IoctlOut, SetattrValid, WriteOut};
use quayfs_fuse::{Answer, Op, Out, Request};
use quayfs_restart::{Outcome, Requests, WHOLE};
use std::sync::Arc;

use crate::errno::ToErrno;
use crate::service::Server;

/// Whether carrying out a request twice is different from once. What reads, and what brings the media up to date, can
/// be done again. So can a change of the size, with all that is asked for beside it: the kernel lets nothing else change
/// the file until it is answered.
fn counts(op: &Op<'_>) -> bool {
    match op {
        Op::Setattr(args) => {
            !SetattrValid::from_bits_truncate(args.valid).contains(SetattrValid::SIZE)
        }
        Op::Symlink { .. }
        | Op::Mknod { .. }
        | Op::Mkdir { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Link { .. }
        | Op::Create { .. }
        | Op::Tmpfile { .. }
        | Op::Write { .. }
        | Op::Setxattr { .. }
        | Op::Removexattr { .. }
        | Op::Ioctl { .. }
        | Op::Fallocate(_)
        | Op::CopyFileRange { .. } => true,
        _ => false,
    }
}

impl Server {
    /// Answers a request with `carry_out`, or without it if an earlier daemon has carried it out. `patient`: whether it may
    /// wait for the kernel.
    pub(super) fn once(
        &self,
        requests: &Arc<Requests>,
        (request, patient): (&Request<'_>, bool),
        out: &mut Out<'_>,
        carry_out: impl FnOnce(&mut Out<'_>) -> Answer,
    ) -> Answer {
        if !counts(&request.op) {
            return carry_out(out);
        }
        let number = request.number();
        let mut from = Outcome::default();
        if request.was_sent_before()
            && let Some(outcome) = requests.outcome(number)
        {
            if let Some(answer) = self.answer_again((request, patient), outcome, out) {
                return answer;
            }
            from = outcome;
        }
        let _under_way = requests.begin(number, from);
        carry_out(out)
    }

    /// The answer to a request that has been carried out; `None` if something of it is left to do, which is done as if it
    /// had just begun, or from where it was left ([`quayfs_restart::come_so_far`]) if that makes a difference.
    fn answer_again(
        &self,
        (request, patient): (&Request<'_>, bool),
        outcome: Outcome,
        out: &mut Out<'_>,
    ) -> Option<Answer> {
        let Outcome { inode, progress } = outcome;
        let ino = request.header.nodeid;
        match &request.op {
            Op::Write { args, data } if progress >= data.len() as u64 => {
                Some(self.written_before(ino, args, out))
            }
            Op::CopyFileRange { args, wide } if progress > 0 => {
                self.kernel.attributes_changed(args.nodeid_out);
                Some(match wide {
                    true => out.put(&progress),
                    false => out.put(&WriteOut {
                        size: progress as u32,
                        ..WriteOut::default()
                    }),
                })
            }
            Op::Fallocate(_) if progress > 0 => {
                self.kernel.attributes_changed(ino);
                Some(Ok(()))
            }
            // The rest of them are one record each, but for what prepares them.
            _ if progress != WHOLE => None,
            Op::Symlink { .. } | Op::Mknod { .. } | Op::Mkdir { .. } | Op::Link { .. } => {
                Some(self.made_before(inode, out))
            }
            Op::Create { args, .. } | Op::Tmpfile { args, .. } => Some(
                self.made_before(inode, out)
                    .and_then(|()| out.put(&self.opened(args.flags))),
            ),
            Op::Setattr(_) => Some(self.getattr(ino, out)),
            Op::Ioctl { args, data } => {
                let done = self.ioctl_before(&request.header, (args, data), patient);
                Some(done.and_then(|()| out.put(&IoctlOut::default())))
            }
            _ => Some(Ok(())),
        }
    }

    fn made_before(&self, inode: u64, out: &mut Out<'_>) -> Answer {
        let made = self.fs.look_up_again(inode).errno()?;
        out.put(&self.entry_of(&made))
    }
}
