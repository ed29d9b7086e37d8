//! Requests that cannot be answered by whoever took them from the kernel.
//!
//! Some answers wait for the kernel: to write back what it has collected it sends requests of its own, to
//! the very queue from which the first one came. So one thread takes such requests, one after the other,
//! and nobody else waits.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno as Os;
use zerocopy::IntoBytes;

use crate::answer::{Answer, Errno, Out, SHORT};
use crate::guard;
use crate::request::{Op, Request};
use crate::service::Service;
use crate::wire::{FlushIn, InHeader, Opcode, OutHeader};

/// A request that was put aside, with its content.
#[derive(Debug)]
pub(crate) struct Held {
    header: InHeader,
    argument: Vec<u8>,
    payload: Vec<u8>,
    /// Most bytes of the answer.
    room: usize,
}

impl Held {
    /// Puts a request aside if the file system says that its answer takes long.
    pub(crate) fn of(service: &dyn Service, request: &Request<'_>) -> Option<Self> {
        if !Self::may_be(request.header.opcode) || !service.is_lengthy(request) {
            return None;
        }
        let (argument, payload, room) = match &request.op {
            Op::Ioctl { args, data } => (args.as_bytes().to_vec(), *data, args.out_size),
            // What a flush says besides who and where is not looked at.
            _ => (FlushIn::default().as_bytes().to_vec(), &[][..], 0),
        };
        Some(Self {
            header: request.header,
            argument,
            payload: payload.to_vec(),
            room: SHORT + room as usize,
        })
    }

    /// Whether an answer to a message of this kind may take long.
    pub(crate) fn may_be(opcode: u32) -> bool {
        opcode == Opcode::Ioctl as u32 || opcode == Opcode::Flush as u32
    }
}

/// Where an answer goes that comes later.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To the device.
    Device(Arc<OwnedFd>),
    /// To the thread of a ring, for this entry.
    Ring {
        mailbox: Arc<Mailbox>,
        index: usize,
        commit_id: u64,
    },
}

/// An answer that a ring's thread is to hand to the kernel.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) index: usize,
    pub(crate) commit_id: u64,
    pub(crate) unique: u64,
    pub(crate) answer: Answer,
    pub(crate) content: Vec<u8>,
}

/// Answers for one ring, and what wakes its thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    done: Mutex<Vec<Done>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            done: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// What becomes readable when there is something: 8 bytes.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(crate) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(done);
        if let Err(e) = rustix::io::write(&self.bell, 1u64.as_bytes()) {
            tracing::error!("a ring cannot be woken: {e}");
        }
    }
}

/// Hands requests to the thread that answers them.
#[derive(Clone, Debug)]
pub(crate) struct Later(Sender<(Held, Reply)>);

/// The other end: it comes to an end when every [`Later`] is gone.
#[derive(Debug)]
pub(crate) struct Waiting(Receiver<(Held, Reply)>);

/// Both ends.
pub(crate) fn later() -> (Later, Waiting) {
    let (send, receive) = channel();
    (Later(send), Waiting(receive))
}

impl Later {
    pub(crate) fn send(&self, held: Held, reply: Reply) {
        // The receiver stays as long as there is a sender.
        let _ = self.0.send((held, reply));
    }
}

impl Waiting {
    /// Answers until the connection ends.
    pub(crate) fn run(self, service: &dyn Service) {
        for (held, reply) in self.0 {
            let mut room = vec![0; held.room];
            let mut out = Out::new(&mut room);
            let (header, argument) = (held.header, &held.argument[..]);
            let answer = guard::answer(service, header, argument, &held.payload, &mut out);
            let len = if answer.is_ok() { out.len() } else { 0 };
            room.truncate(len);
            match reply {
                Reply::Device(device) => send(&device, header.unique, answer, &room),
                Reply::Ring {
                    mailbox,
                    index,
                    commit_id,
                } => mailbox.put(Done {
                    index,
                    commit_id,
                    unique: header.unique,
                    answer,
                    content: room,
                }),
            }
        }
    }
}

fn send(device: &OwnedFd, unique: u64, answer: Answer, content: &[u8]) {
    let header = OutHeader {
        len: (size_of::<OutHeader>() + content.len()) as u32,
        error: answer.map_or_else(|e: Errno| -e.number(), |()| 0),
        unique,
    };
    let message = [header.as_bytes(), content].concat();
    match rustix::io::retry_on_intr(|| rustix::io::write(device, &message)) {
        // Whoever asked does not wait any more, or the connection has ended.
        Ok(_) | Err(Os::NOENT | Os::NODEV) => (),
        Err(e) => tracing::error!("the kernel refused an answer: {e}"),
    }
}
