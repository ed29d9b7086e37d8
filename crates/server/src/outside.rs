//! A thread that may see what the threads that serve requests may not: other processes.
//!
//! Threads that serve are confined, and the kernel does not let them look at tasks that are not. They ask this
//! thread, which does nothing else.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use rustix::thread::CapabilitySet;

type Job = Box<dyn FnOnce() + Send>;

/// A channel to the thread that looks. The thread ends with it.
#[derive(Clone, Debug)]
pub struct Outside(Sender<Job>);

impl Outside {
    /// What it takes to look at tasks of any user: who runs them, and which files they have open.
    pub const NEEDS: CapabilitySet =
        CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

    /// Starts the thread with the rights of the caller's, which `first` may lessen.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(first: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (send, jobs) = channel::<Job>();
        thread::Builder::new()
            .name("outside".into())
            .spawn(move || {
                first();
                jobs.into_iter().for_each(|job| job());
            })?;
        Ok(Self(send))
    }

    /// Looks, and waits for what is seen: nothing, if the thread is gone. It must not take long.
    pub fn run<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        // A caller that no longer waits needs no answer.
        let job = move || drop(answer.send(look()));
        self.0.send(Box::new(job)).ok()?;
        answered.recv().ok()?
    }

    /// Looks in a thread of its own, as that may take long.
    pub fn look_long<T: Send + 'static>(
        &self,
        answer: SyncSender<T>,
        look: impl FnOnce() -> T + Send + 'static,
    ) {
        let look = move || drop(answer.send(look()));
        // If there is no thread to be had, the answer never comes, and its receiver is told so.
        let job = move || drop(thread::Builder::new().name("fuse-look".into()).spawn(look));
        let _ = self.0.send(Box::new(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_from_another_thread() {
        let outside = Outside::start(|| ()).unwrap();
        let name = || thread::current().name().map(String::from);
        assert_eq!(outside.run(name).as_deref(), Some("outside"));
        let (answer, answered) = sync_channel(1);
        outside.look_long(answer, name);
        assert_eq!(answered.recv().unwrap().as_deref(), Some("fuse-look"));
        assert_eq!(outside.run(|| None::<()>), None);
    }

    #[test]
    fn a_thread_that_is_gone_sees_nothing() {
        let outside = Outside::start(|| panic!("nothing to see")).unwrap();
        let (answer, answered) = sync_channel::<()>(1);
        while outside.0.send(Box::new(|| ())).is_ok() {
            thread::yield_now();
        }
        assert_eq!(outside.run(|| Some(())), None);
        outside.look_long(answer, || ());
        assert!(answered.recv().is_err());
    }
}
