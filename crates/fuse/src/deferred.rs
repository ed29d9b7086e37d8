//! Requests whose answer waits for the kernel: before the kernel forgets a page, it waits for the page's readers
//! and writes what it has collected for a mapping, by requests to the very queue from which the first one came.
//! So these are answered by threads that serve no other requests. The second kind of late answer is one that
//! the file system gives by itself, when what it waits for has happened ([`Postponed`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno as Os;
use zerocopy::IntoBytes;

use crate::answer::{Answer, Errno, Out, SHORT};
use crate::gate::PutOff;
use crate::guard;
use crate::handshake::has_ended;
use crate::latency::Timed;
use crate::request::{Op, Request};
use crate::service::Service;
use crate::wire::{InHeader, IoctlIn, Opcode, OutHeader};

/// A request that was put aside, with its content.
#[derive(Debug)]
pub(crate) struct DeferredRequest {
    header: InHeader,
    args: IoctlIn,
    content: Vec<u8>,
}

impl DeferredRequest {
    /// Puts a request aside if the file system says that its answer waits for the kernel.
    pub(crate) fn of(service: &dyn Service, request: &Request<'_>) -> Option<Self> {
        let Op::Ioctl { args, data } = &request.op else {
            return None;
        };
        service.waits_for_kernel(request).then(|| Self {
            header: request.header,
            args: *args,
            content: data.to_vec(),
        })
    }

    /// Whether an answer to a message of this kind may wait for the kernel.
    pub(crate) fn may_be(opcode: u32) -> bool {
        opcode == Opcode::Ioctl as u32
    }

    /// The answer with its content.
    fn answer(&self, service: &dyn Service) -> (Answer, Vec<u8>) {
        let mut room = vec![0; SHORT + self.args.out_size as usize];
        let mut out = Out::new(&mut room);
        let request = Request {
            header: self.header,
            op: Op::Ioctl {
                args: self.args,
                data: &self.content,
            },
        };
        let answer = guard::call_waiting(service, &request, &mut out);
        let len = if answer.is_ok() { out.len() } else { 0 };
        room.truncate(len);
        (answer, room)
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

impl Reply {
    fn give(self, unique: u64, answer: Answer, content: Vec<u8>) {
        match self {
            Self::Device(device) => send(&device, unique, answer, &content),
            Self::Ring {
                mailbox,
                index,
                commit_id,
            } => mailbox.put(Done {
                index,
                commit_id,
                unique,
                answer,
                content,
            }),
        }
    }
}

/// An answer without content that is still to be given, by any thread. Dropped without one it is `EIO`.
#[derive(Debug)]
pub struct Postponed {
    unique: u64,
    reply: Option<Reply>,
    /// Dropped after the answer.
    _put_off: Option<PutOff>,
    timed: Timed,
}

impl Postponed {
    pub(crate) fn new(unique: u64, reply: Reply, timed: Timed, put_off: Option<PutOff>) -> Self {
        Self {
            unique,
            reply: Some(reply),
            timed,
            _put_off: put_off,
        }
    }

    /// Answers.
    pub fn answer(mut self, answer: Answer) {
        self.give(answer);
    }

    fn give(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            reply.give(self.unique, answer, Vec::new());
            self.timed.end();
        }
    }
}

impl Drop for Postponed {
    fn drop(&mut self) {
        self.give(Err(Errno::IO));
    }
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
    wakeup: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            done: Mutex::default(),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// What becomes readable when there is something: 8 bytes.
    pub(crate) fn wakeup(&self) -> &OwnedFd {
        &self.wakeup
    }

    pub(crate) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(done);
        if let Err(e) = rustix::io::write(&self.wakeup, 1u64.as_bytes()) {
            tracing::error!("a ring cannot be woken: {e}");
        }
    }
}

/// What the threads do.
#[derive(Debug)]
enum Job {
    Answer(DeferredRequest, Reply, Timed),
    CatchUp,
}

/// Hands work to the threads, without waiting: there is no bound but that of the kernel's requests.
#[derive(Clone, Debug)]
pub(crate) struct DeferredQueue(Sender<Job>);

/// The other end: it comes to an end when every [`DeferredQueue`] is gone.
#[derive(Debug)]
pub(crate) struct Waiting(Mutex<Receiver<Job>>);

/// Both ends.
pub(crate) fn deferred_queue() -> (DeferredQueue, Arc<Waiting>) {
    let (send, receive) = channel();
    (DeferredQueue(send), Arc::new(Waiting(Mutex::new(receive))))
}

impl DeferredQueue {
    pub(crate) fn send(&self, held: DeferredRequest, reply: Reply, timed: Timed) {
        // The receiver stays as long as there is a sender.
        let _ = self.0.send(Job::Answer(held, reply, timed));
    }

    /// An answer was given that could not wait for the kernel: what it left is done now.
    pub(crate) fn catch_up(&self) {
        let _ = self.0.send(Job::CatchUp);
    }
}

impl Waiting {
    /// Answers until the connection ends.
    pub(crate) fn run(&self, service: &dyn Service) {
        loop {
            let job = self.0.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match job {
                Ok(Job::Answer(held, reply, timed)) => {
                    answer(service, &held, reply);
                    timed.end();
                }
                Ok(Job::CatchUp) => guard::catch_up(service),
                Err(_) => return,
            }
        }
    }
}

fn answer(service: &dyn Service, held: &DeferredRequest, reply: Reply) {
    let (answer, content) = held.answer(service);
    reply.give(held.header.unique, answer, content);
}

fn send(device: &OwnedFd, unique: u64, answer: Answer, content: &[u8]) {
    let header = OutHeader {
        len: (size_of::<OutHeader>() + content.len()) as u32,
        error: answer.map_or_else(|e: Errno| -e.number(), |()| 0),
        unique,
    };
    let message = [header.as_bytes(), content].concat();
    match rustix::io::retry_on_intr(|| rustix::io::write(device, &message)) {
        // The process that asked does not wait any more, or the connection has ended.
        Ok(_) | Err(Os::NOENT) => (),
        Err(e) if has_ended(e) => (),
        Err(e) => tracing::error!("the kernel refused an answer: {e}"),
    }
}
