//! What the last daemon has left, taken by the one that goes on.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quayfs_fs::predecessor::Predecessor;
use quayfs_fuse::{Left, Negotiation, Notifier};
use quayfs_pmem::inherit_reservation;
use quayfs_restart::{Ends, Postings, Requests};
use quayfs_server::session::Succession;
use rustix::fs::{MemfdFlags, memfd_create};
use tracing::warn;

use super::begun::succession;
use super::{
    CAUSE, CONNECTION, DEATHS, DIED, HOLDS, Holder, JOB, NAMES, ON_REQUEST, POSTINGS, REPLACED,
    REQUESTS, RESERVATION, STORES, SUPERVISOR, word,
};

/// What a daemon goes on with: a connection that exists, and what was being done over it.
#[derive(Debug)]
pub struct Handover {
    /// The connection.
    pub device: OwnedFd,
    further: Vec<OwnedFd>,
    memory: Memory,
    /// How daemons have ended, once that is counted.
    ends: OnceLock<Ends>,
    job: Option<Job>,
}

/// What a process has asked for that the daemon is to do.
#[derive(Debug)]
pub struct Job {
    /// What that is.
    pub name: String,
    /// What came along.
    pub file: File,
}

/// Memory that a daemon leaves to the next one.
#[derive(Clone, Debug)]
pub struct Memory {
    /// What it was doing.
    pub requests: Arc<Requests>,
    /// What is stored to the region, where that is on a disk.
    pub stores: Arc<File>,
    /// Large writes that the data device does not have yet.
    pub postings: Arc<Postings>,
}

impl Memory {
    /// With nothing in it.
    ///
    /// # Errors
    /// Those of the system, which has no memory, or sets a limit on the size of files.
    pub fn new() -> io::Result<Self> {
        let stores = File::from(memfd_create("quayfs-stores", MemfdFlags::CLOEXEC)?);
        Ok(Self {
            requests: Arc::new(Requests::new()?),
            stores: Arc::new(stores),
            postings: Postings::new()?,
        })
    }
}

impl Handover {
    /// Where descriptors are held, and what the last daemon has left; both out of the descriptors that this process was
    /// given. The latter is `None` if this is the first daemon. `asked`: any service manager that takes messages will do;
    /// else it has to say that it holds descriptors.
    ///
    /// # Errors
    /// It has not left all that is needed.
    pub fn take(given: Vec<OwnedFd>, asked: bool) -> io::Result<(Option<Holder>, Option<Self>)> {
        let names = word(NAMES);
        let mut connections = Vec::new();
        let (mut requests, mut holder) = (None, None);
        let (mut stores, mut postings) = (None, None);
        let mut job = None;
        for (descriptor, name) in given.into_iter().zip(names.split(':')) {
            match name {
                SUPERVISOR => holder = Some(Holder::supervisor(descriptor)),
                CONNECTION => connections.push(descriptor),
                REQUESTS => requests = Some(File::from(descriptor)),
                STORES => stores = Some(File::from(descriptor)),
                POSTINGS => postings = Some(File::from(descriptor)),
                RESERVATION => inherit_reservation(descriptor.into()),
                other if other.starts_with(JOB) => {
                    let name = other[JOB.len()..].into();
                    let file = File::from(descriptor);
                    job = Some(Job { name, file });
                }
                other => warn!("a descriptor `{other}` was passed on, which is not known"),
            }
        }
        let any_will_do =
            asked || requests.is_some() || word(HOLDS).parse().is_ok_and(|n: u32| n > 0);
        let holder = holder.or_else(|| any_will_do.then(Holder::find).flatten());
        if holder.is_none() && requests.is_some() {
            return Err(io::Error::other(
                "there is what a daemon has left, and nothing that would hold it any longer",
            ));
        }
        let Some(requests) = requests else {
            return Ok((holder, None));
        };
        let mut connections = connections.into_iter();
        let (Some(device), Some(stores), Some(postings)) = (connections.next(), stores, postings)
        else {
            return Err(io::Error::other(
                "the last daemon left no connection, or not what it had stored",
            ));
        };
        if let Some(holder) = &holder {
            for (name, file) in [
                (REQUESTS, &requests),
                (STORES, &stores),
                (POSTINGS, &postings),
            ] {
                holder.keep(name, file.as_fd());
            }
            holder.keep(CONNECTION, device.as_fd());
            for further in connections.as_slice() {
                holder.keep(CONNECTION, further.as_fd());
            }
        }
        let handover = Self {
            device,
            further: connections.collect(),
            memory: Memory {
                requests: Arc::new(Requests::left(requests)?),
                stores: Arc::new(stores),
                postings: Postings::left(postings)?,
            },
            ends: OnceLock::new(),
            job,
        };
        Ok((holder, Some(handover)))
    }

    /// What is to be done, if a process has asked for something.
    pub fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// What the last daemon has left.
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Which requests the last daemon was carrying out, and what the kernel knows of inodes.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn predecessor(&self) -> io::Result<Predecessor> {
        let kernel = Notifier::new(&self.device)?;
        // A service manager does not say it.
        let Ends {
            deaths,
            replaced,
            left_at,
        } = *(self.ends).get_or_init(|| self.memory.requests.count_end());
        let number = |name: &str| word(name).parse().ok();
        let cause = match (word(CAUSE), left_at) {
            (cause, _) if !cause.is_empty() => cause,
            (_, Some(_)) => ON_REQUEST.into(),
            (_, None) => "ended unexpectedly".into(),
        };
        Ok(Predecessor {
            requests: Arc::clone(&self.memory.requests),
            knows: Box::new(move |ino| kernel.knows(ino)),
            deaths: number(DEATHS).unwrap_or(deaths),
            replaced: number(REPLACED).unwrap_or(replaced),
            is_replaced: cause == ON_REQUEST,
            cause,
            ended: number(DIED).or(left_at).map(Duration::from_nanos),
            pause: OnceLock::new(),
        })
    }

    /// The device number of the mount, as `MAJOR:MINOR`.
    pub fn number(&self) -> Option<String> {
        let [.., major, minor] = self.memory.requests.connection();
        (minor != 0).then(|| format!("{major}:{minor}"))
    }

    /// The connection, the device number of the mount, and how the next daemon will go on, and this one does.
    pub fn succeed(self, holder: Holder) -> (OwnedFd, Option<String>, Succession) {
        let number = self.number();
        let [a, b, c, d, e, ..] = self.memory.requests.connection();
        let left = Left {
            descriptors: self.further,
            negotiation: Negotiation::from_words([a, b, c, d, e]),
        };
        let succession = succession(holder, self.memory.requests, Some(left));
        (self.device, number, succession)
    }
}
