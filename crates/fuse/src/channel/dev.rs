//! Requests from reads of `/dev/fuse`, answers by writes to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno as Os;
use zerocopy::IntoBytes;

use crate::answer::{Errno, Out};
use crate::deferred::{DeferredQueue, DeferredRequest, Postponed, Reply};
use crate::gate::{Begun, Pass};
use crate::guard;
use crate::handshake::{NegotiatedCapabilities, has_ended};
use crate::latency::Timed;
use crate::places::Places;
use crate::request::{Op, Request};
use crate::service::Service;
use crate::stats::Tally;
use crate::sys::{Buffer, PAGE};
use crate::wire::OutHeader;

/// Most bytes that stand in front of the data of a write.
const HEAD: usize = PAGE;

/// Reads, answers, and reads again, until the connection ends.
pub(crate) struct Worker {
    /// The connection, or a clone of it.
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) agreed: NegotiatedCapabilities,
    pub(crate) tally: Arc<Tally>,
    /// How long to look for the next request before sleeping; the device does not block if it is
    /// not zero, and `asleep` does.
    pub(crate) poll: Duration,
    /// Where to sleep.
    pub(crate) asleep: Option<Arc<OwnedFd>>,
    /// How long to let forgets gather before they are read: the kernel hands over all of them in one
    /// message, and nothing waits for any.
    pub(crate) gather: Duration,
    /// The threads that answer what waits for the kernel, if there are any.
    pub(crate) later: Option<DeferredQueue>,
    pub(crate) places: Arc<Places>,
    /// Its answers lie in huge pages, which are allocated whole.
    pub(crate) huge: bool,
    /// Where the connection outlives the process: the gate that requests pass.
    pub(crate) pass: Option<Pass>,
}

impl Worker {
    pub(crate) fn run(&self, service: &dyn Service) -> io::Result<()> {
        self.serve_in_turn(service)
            .inspect_err(|_| self.places.fail())
    }

    fn serve_in_turn(&self, service: &dyn Service) -> io::Result<()> {
        let mut buffers = None;
        while self.places.take() {
            let (message, reply) = match &mut buffers {
                Some(buffers) => buffers,
                none => none.insert(self.buffers()?),
            };
            while !self.places.yield_place() {
                let Some((n, from)) = self.places.read(|| self.next(message.as_mut()))? else {
                    self.places.end();
                    return Ok(());
                };
                let _begun = self.begin();
                if self.serve(service, &message.as_mut()[..n], reply.as_mut(), from)?
                    == Kind::Silent
                    && !self.gather.is_zero()
                {
                    thread::sleep(self.gather);
                }
            }
        }
        Ok(())
    }

    /// Before a request is looked at. Where it must not begin any more, the thread has nothing left to do, and does not
    /// come back: only the process ends.
    fn begin(&self) -> Option<Begun<'_>> {
        let pass = self.pass.as_ref()?;
        loop {
            if let Some(begun) = pass.begin() {
                return Some(begun);
            }
            thread::park();
        }
    }

    /// For messages and for answers. The content begins on a page of its own, the header right in front of it. Reads of
    /// a data device go there.
    fn buffers(&self) -> io::Result<(Buffer, Buffer)> {
        let len = HEAD + self.agreed.payload;
        let reply = if self.huge { Buffer::huge } else { Buffer::new };
        let mut message = Buffer::new(len)?;
        if self.pass.is_some() {
            message.allocate();
        }
        Ok((message, reply(len)?))
    }

    /// The next message: its length, and the descriptor that it came from.
    fn next(&self, message: &mut [u8]) -> io::Result<Option<(usize, &Arc<OwnedFd>)>> {
        if let Some(asleep) = &self.asleep {
            let start = Instant::now();
            loop {
                match rustix::io::read(&*self.device, &mut *message) {
                    Ok(0) => return Ok(None),
                    Ok(n) => return Ok(Some((n, &self.device))),
                    Err(Os::AGAIN) if start.elapsed() < self.poll => std::hint::spin_loop(),
                    Err(Os::AGAIN) => break,
                    Err(Os::INTR | Os::NOENT) => (),
                    Err(e) if has_ended(e) => return Ok(None),
                    Err(e) => return Err(e.into()),
                }
            }
            return read(asleep, message).map(|n| Some((n?, asleep)));
        }
        read(&self.device, message).map(|n| Some((n?, &self.device)))
    }

    fn serve(
        &self,
        service: &dyn Service,
        message: &[u8],
        reply: &mut [u8],
        device: &Arc<OwnedFd>,
    ) -> io::Result<Kind> {
        let start = HEAD - size_of::<OutHeader>();
        let mut began = None;
        let (unique, answer, len) = match Request::parse(message, self.agreed.setxattr_ext()) {
            Ok(request) => {
                let now = self.tally.begin(&request.header);
                began = Some(now);
                let timed = || Timed {
                    tally: Arc::clone(&self.tally),
                    began: now,
                };
                if let Some(later) = &self.later
                    && let Some(held) = DeferredRequest::of(service, &request)
                {
                    later.send(held, Reply::Device(Arc::clone(device)), timed());
                    return Ok(Kind::Later);
                }
                let mut out = Out::new(&mut reply[HEAD..]);
                let unique = request.header.unique;
                let mut postpone = || {
                    let put_off = self.pass.as_ref().map(Pass::put_off);
                    let reply = Reply::Device(Arc::clone(device));
                    Postponed::new(unique, reply, timed(), put_off)
                };
                let answer = match &request.op {
                    Op::Fsync(_) | Op::Fsyncdir(_) => {
                        guard::call_sync(service, &request, &mut out, &mut postpone)
                    }
                    _ => Some(guard::call(service, &request, &mut out)),
                };
                let Some(answer) = answer else {
                    return Ok(Kind::Later);
                };
                if request.op.is_silent() {
                    self.tally.took(now);
                    return Ok(Kind::Silent);
                }
                (unique, answer, out.len())
            }
            Err((Some(header), _)) => {
                tracing::warn!("message {} of the kernel makes no sense", header.opcode);
                (header.unique, Err(Errno::IO), 0)
            }
            Err((None, _)) => {
                tracing::warn!("the kernel sent half a message");
                return Ok(Kind::Silent);
            }
        };
        let len = if answer.is_ok() { len } else { 0 };
        let header = OutHeader {
            len: (size_of::<OutHeader>() + len) as u32,
            error: answer.map_or_else(|e| -e.number(), |()| 0),
            unique,
        };
        reply[start..HEAD].copy_from_slice(header.as_bytes());
        send(device, &reply[start..HEAD + len])?;
        if let Some(began) = began {
            self.tally.took(began);
        }
        Ok(Kind::Answered)
    }
}

/// What a message was.
#[derive(PartialEq, Eq)]
enum Kind {
    Answered,
    /// Another thread answers.
    Later,
    /// Nothing waits for an answer.
    Silent,
}

/// Waits for a message. `None`: the connection has ended.
fn read(device: &OwnedFd, message: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *message) {
            Ok(0) => return Ok(None),
            Ok(n) => return Ok(Some(n)),
            // A signal, or the request was withdrawn while it was being read.
            Err(Os::INTR | Os::AGAIN | Os::NOENT) => (),
            Err(e) if has_ended(e) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

fn send(device: &OwnedFd, message: &[u8]) -> io::Result<()> {
    loop {
        match rustix::io::write(device, message) {
            Ok(_) => return Ok(()),
            Err(Os::INTR) => (),
            // The process that asked does not wait any more, or the connection has ended.
            Err(e) if e == Os::NOENT || has_ended(e) => return Ok(()),
            Err(e) => {
                // The kernel did not take it: say at least that something failed, or the process waits forever.
                tracing::error!("the kernel refused an answer: {e}");
                let mut header = [0; size_of::<OutHeader>()];
                header.copy_from_slice(&message[..size_of::<OutHeader>()]);
                let mut header: OutHeader = zerocopy::transmute!(header);
                header.len = size_of::<OutHeader>() as u32;
                header.error = -libc::EIO;
                let _ = rustix::io::write(device, header.as_bytes());
                return Ok(());
            }
        }
    }
}
