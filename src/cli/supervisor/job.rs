//! A job that is left to the next daemons: a descriptor among those that are held, one at a time.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::fstat;
use rustix::io::dup2;

use super::Supervisor;
use crate::cli::handover::JOB;

impl Supervisor {
    fn job(&self) -> Option<usize> {
        self.held.iter().position(|(name, _)| name.starts_with(JOB))
    }

    /// Daemons that start from now on inherit the descriptor, in place of the one of the last job. `still`: only if it is
    /// that one.
    pub(super) fn take_job(
        &mut self,
        name: &str,
        descriptor: &OwnedFd,
        still: bool,
    ) -> io::Result<()> {
        let number = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        let is_held = self
            .job()
            .is_some_and(|at| number(&self.held[at].1) == number(descriptor));
        if still && !is_held {
            return Err(io::Error::other(
                "the daemon has been replaced by hand meanwhile",
            ));
        }
        let name = format!("{JOB}{name}");
        let Some(at) = self.job() else {
            // The lowest number that is free, as for all that is held.
            return self.hold(&name, descriptor.try_clone()?);
        };
        let (held, place) = &mut self.held[at];
        // Without the flag that would close it there.
        dup2(descriptor, place)?;
        *held = name;
        Ok(())
    }

    /// They inherit none.
    pub(super) fn drop_job(&mut self) -> io::Result<()> {
        let Some(at) = self.job() else {
            return Ok(());
        };
        // Each of those behind it gets the number of the one before, so that there is no gap.
        for next in at + 1..self.held.len() {
            let (before, behind) = self.held.split_at_mut(next);
            dup2(&behind[0].1, &mut before[next - 1].1)?;
            before[next - 1].0 = behind[0].0.clone();
        }
        self.held.pop();
        Ok(())
    }
}
