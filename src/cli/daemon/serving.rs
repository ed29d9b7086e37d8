//! The thread that serves the connection, and its beginning.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use quayfs_fs::Fs;
use quayfs_server::outside::Outside;
use quayfs_server::session::{self, Succession};

use super::{Event, resizing};
use crate::cli::confine;

/// Why a connection is not served.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotServed {
    /// It has ended: another daemon could not serve it either.
    Gone,
    /// Something else is in the way.
    Failed(String),
}

impl NotServed {
    pub(super) fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }

    /// The same, with more before the reason.
    pub(super) fn because(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Gone => Self::Gone,
            Self::Failed(why) => Self::Failed(format!("{what}: {why}")),
        }
    }
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the connection to the kernel is gone already"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// Serves a connection in a thread, which says when it has begun, and when it has ended.
pub(super) fn start(
    (fs, connection): (Arc<Fs>, (OwnedFd, Option<Arc<str>>)),
    outside: Outside,
    succession: Option<Succession>,
    events: Sender<Event>,
) -> io::Result<()> {
    if succession.is_some() {
        resizing::listen(&fs, events.clone());
    }
    thread::Builder::new().name("serve".into()).spawn(move || {
        confine::this_thread();
        let start = events.clone();
        let started = move || drop(start.send(Event::Started));
        let serve = || session::serve(fs, connection, outside, succession, started);
        // Whatever became of it, the volume has to be closed.
        let end = catch_unwind(AssertUnwindSafe(serve))
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        // The receiver only goes away when the process ends.
        let _ = events.send(Event::Unmounted(end));
    })?;
    Ok(())
}

/// Waits until requests are served. The first request may be one that calls for another daemon, and be heard of before that:
/// it is heard of again.
pub(super) fn await_start(
    inbox: &Receiver<Event>,
    events: &Sender<Event>,
) -> Result<(), NotServed> {
    let mut hands_over = false;
    loop {
        match inbox.recv() {
            Ok(Event::HandOver) => hands_over = true,
            Ok(Event::Started) => break,
            Ok(Event::Unmounted(Err(e))) => return Err(NotServed::failed(e)),
            Ok(Event::Unmounted(Ok(())) | Event::GiveUp) | Err(_) => return Err(NotServed::Gone),
        }
    }
    if hands_over {
        // Its receiver is here.
        let _ = events.send(Event::HandOver);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_calls_for_another_daemon_may_come_before_the_start() {
        let (events, inbox) = channel();
        for event in [Event::HandOver, Event::Started] {
            events.send(event).unwrap();
        }
        assert_eq!(await_start(&inbox, &events), Ok(()));
        assert!(matches!(inbox.try_recv(), Ok(Event::HandOver)));
        assert!(inbox.try_recv().is_err());
    }

    #[test]
    fn a_connection_that_ends_at_once_is_not_served() {
        for (end, why) in [
            (Ok(()), NotServed::Gone),
            (
                Err(io::Error::other("no thread")),
                NotServed::failed("no thread"),
            ),
        ] {
            let (events, inbox) = channel();
            events.send(Event::Unmounted(end)).unwrap();
            assert_eq!(await_start(&inbox, &events), Err(why));
        }
    }
}
