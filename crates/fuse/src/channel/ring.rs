//! Requests and answers through io_uring (Linux 6.14): a queue for each CPU.
//!
//! The kernel puts a request into the queue of the CPU on which it was made, so that a thread bound to
//! that CPU answers it without waking another. One system call takes the answer and waits for the
//! next request; the payload lies in the entry's buffer, from where the file system reads it and
//! where it writes the content of its answer.
//!
//! Forgets and interrupts still come by `/dev/fuse`.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::answer::{Answer, Errno, Out, SHORT};
use crate::deferred::{DeferredQueue, DeferredRequest, Done, Mailbox, Postponed, Reply};
use crate::guard::{self, answer};
use crate::handshake::NegotiatedCapabilities;
use crate::latency::{Began, Timed};
use crate::request::{Op, Request};
use crate::service::Service;
use crate::stats::Tally;
use crate::sys::Buffer;
use crate::wire::{InHeader, OutHeader, ring as wire};

/// User data that stands for no entry: another thread has put an answer into the mailbox.
const BELL: u64 = u64::MAX;

/// Entries that a queue has at most. Their memory is taken when it is first used: an answer that waits for the kernel
/// takes two pages.
const ENTRIES_MAX: usize = 1024;

/// What one entry of a queue needs: two buffers and where they are.
struct Slot {
    header: Buffer,
    payload: Buffer,
    /// Read by the kernel when the entry is registered.
    iov: Box<[libc::iovec; 2]>,
}

// SAFETY: the pointers in `iov` are those of the two buffers, which the slot owns.
unsafe impl Send for Slot {}

impl Slot {
    fn new(payload: usize) -> io::Result<Self> {
        let header = Buffer::new(size_of::<wire::Header>())?;
        let payload = Buffer::new(payload)?;
        let iov = Box::new([
            libc::iovec {
                iov_base: header.as_ptr().cast(),
                iov_len: header.len(),
            },
            libc::iovec {
                iov_base: payload.as_ptr().cast(),
                iov_len: payload.len(),
            },
        ]);
        Ok(Self {
            header,
            payload,
            iov,
        })
    }

    /// The header and the payload.
    fn parts(&mut self) -> (&mut wire::Header, &mut [u8]) {
        let Ok((head, _)) = wire::Header::mut_from_prefix(self.header.as_mut()) else {
            unreachable!("a page is longer than a header, and aligned");
        };
        (head, self.payload.as_mut())
    }
}

/// The queue of one CPU. It belongs to the thread that makes it.
pub(crate) struct Queue {
    ring: IoUring<Entry128, cqueue::Entry>,
    slots: Vec<Slot>,
    number: u16,
    /// What was there when the entries had been registered.
    early: Option<cqueue::Entry>,
    tally: Arc<Tally>,
    /// A copy of what was asked, where the answer takes its place.
    asked: Buffer,
    /// The threads that answer what waits for the kernel, if there are any, and where those answers come back.
    later: Option<DeferredQueue>,
    mailbox: Arc<Mailbox>,
    /// Entries that the kernel has not taken away.
    alive: usize,
    /// Of them, those whose answer waits for the kernel.
    held: usize,
    /// How many are never held: what an answer waits for may itself wait for an entry of this queue.
    spared: usize,
    /// Where the kernel puts what it reads from the mailbox's wakeup.
    rung: Buffer,
}

impl Queue {
    /// A ring with memory for `depth` requests under way; the kernel knows nothing of them yet.
    pub(crate) fn open(
        device: &OwnedFd,
        number: u16,
        depth: usize,
        agreed: NegotiatedCapabilities,
        (tally, later): (Arc<Tally>, Option<DeferredQueue>),
    ) -> io::Result<Self> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build((depth as u32).next_power_of_two())?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        let slots = (0..depth)
            .map(|_| Slot::new(agreed.payload))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            ring,
            slots,
            number,
            early: None,
            tally,
            asked: Buffer::new(agreed.payload)?,
            later,
            mailbox: Arc::new(Mailbox::new()?),
            alive: depth,
            held: 0,
            spared: (depth / 2).max(1),
            rung: Buffer::new(size_of::<u64>())?,
        })
    }

    /// Hands the entries to the kernel. When every CPU's queue has done so, requests come this way.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        for index in 0..self.slots.len() {
            self.hand_over(index)?;
        }
        self.ring.submit()?;
        // What the kernel does not want it says at once. A request may have come as well.
        self.early = self.ring.completion().next();
        match &self.early {
            Some(done) if done.result() < 0 => Err(io::Error::from_raw_os_error(-done.result())),
            _ => Ok(()),
        }
    }

    fn hand_over(&mut self, index: usize) -> io::Result<()> {
        let iov = self.slots[index].iov.as_ptr().expose_provenance() as u64;
        let mut entry = self
            .command(wire::REGISTER, 0, Some(iov))
            .user_data(index as u64);
        set_len(&mut entry, 2);
        self.push(&entry)
    }

    /// Makes sure that one more entry may be held, if need be with a new one. `false`: there are too many.
    fn can_hold(&mut self) -> bool {
        if self.alive - self.held > self.spared {
            return true;
        }
        if self.slots.len() >= ENTRIES_MAX {
            return false;
        }
        let more = Slot::new(self.asked.len()).and_then(|slot| {
            self.slots.push(slot);
            self.alive += 1;
            self.hand_over(self.slots.len() - 1)?;
            self.ring.submit().map(drop)
        });
        if let Err(e) = &more {
            tracing::warn!("queue {} cannot have another entry: {e}", self.number);
        }
        more.is_ok()
    }

    /// Has another thread answer what the entry asks, if there are enough entries.
    fn hold(
        &mut self,
        index: usize,
        commit_id: u64,
        (held, began): (DeferredRequest, Began),
    ) -> bool {
        if !self.can_hold() {
            return false;
        }
        let Some(later) = &self.later else {
            return false;
        };
        self.held += 1;
        let mailbox = Arc::clone(&self.mailbox);
        let reply = Reply::Ring {
            mailbox,
            index,
            commit_id,
        };
        later.send(held, reply, timed(&self.tally, began));
        true
    }

    fn command(&self, op: u32, commit_id: u64, addr: Option<u64>) -> Entry128 {
        let command = wire::Command {
            commit_id,
            queue: self.number,
            ..wire::Command::default()
        };
        let mut area = [0; 80];
        area[..size_of::<wire::Command>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(Fixed(0), op)
            .cmd(area)
            .addr(addr)
            .build()
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: what an entry refers to, the buffers of a slot or `rung`, lives as long as `self`, and
        // `self` drops its ring first, which ends what is under way; until the completion nothing but the
        // kernel touches them.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)
    }

    /// Asks to be woken when there is an answer in the mailbox.
    fn listen(&mut self) -> io::Result<()> {
        let wakeup = Fd(self.mailbox.wakeup().as_raw_fd());
        let len = size_of::<u64>() as u32;
        let read = opcode::Read::new(wakeup, self.rung.as_ptr(), len).build();
        self.push(&read.user_data(BELL).into())?;
        self.ring.submit().map(drop)
    }

    /// Hands the kernel an answer to what an entry has asked.
    fn commit(&mut self, index: usize, commit_id: u64) -> io::Result<()> {
        let entry = self
            .command(wire::COMMIT_AND_FETCH, commit_id, None)
            .user_data(index as u64);
        self.push(&entry)
    }

    /// Answers until the connection ends.
    pub(crate) fn run(&mut self, service: &dyn Service) -> io::Result<()> {
        self.listen()?;
        while self.alive > 0 {
            if self.early.is_none() {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => (),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => return Err(e),
                }
            }
            loop {
                let next = self.early.take().or_else(|| self.ring.completion().next());
                let Some(done) = next else {
                    break;
                };
                if done.user_data() == BELL {
                    self.listen()?;
                    for done in self.mailbox.take() {
                        self.held -= 1;
                        self.answer_late(&done);
                        self.commit(done.index, done.commit_id)?;
                        self.ring.submit()?;
                    }
                    continue;
                }
                if done.result() < 0 {
                    // The connection has ended, or the kernel did not like the answer and has taken
                    // the entry away.
                    let why = io::Error::from_raw_os_error(-done.result());
                    tracing::debug!("queue {}: an entry ended: {why}", self.number);
                    self.alive -= 1;
                    continue;
                }
                let index = done.user_data() as usize;
                let Some(commit_id) = self.serve(index, service) else {
                    continue;
                };
                self.commit(index, commit_id)?;
                if !self.ring.completion().is_empty() {
                    // This one need not wait until the next is answered.
                    self.ring.submit()?;
                }
            }
        }
        Ok(())
    }

    /// Puts an answer that another thread has made into the buffers of its entry.
    fn answer_late(&mut self, done: &Done) {
        let (head, payload) = self.slots[done.index].parts();
        let (answer, len) = match payload.get_mut(..done.content.len()) {
            Some(room) => {
                room.copy_from_slice(&done.content);
                (done.answer, done.content.len())
            }
            None => (Err(Errno::IO), 0),
        };
        put_answer(head, (done.commit_id, done.unique), answer, len);
    }

    /// Answers the request of an entry in its buffers; returns what to answer under. `None`: another thread
    /// answers.
    fn serve(&mut self, index: usize, service: &dyn Service) -> Option<u64> {
        let (head, payload) = self.slots[index].parts();
        let given = (head.entry.payload as usize).min(payload.len());
        let commit_id = head.entry.commit_id;
        let Ok((header, _)) = InHeader::read_from_prefix(&head.in_out) else {
            unreachable!("the field is longer than what it holds");
        };
        let began = self.tally.begin(&header);
        let mut hurried = false;
        if self.later.is_some()
            && DeferredRequest::may_be(header.opcode)
            && let Ok(request) = Request::parse_split(header, &head.argument, &payload[..given])
            && let Some(held) = DeferredRequest::of(service, &request)
        {
            if self.hold(index, commit_id, (held, began)) {
                return None;
            }
            hurried = true;
        }
        if Op::is_sync(header.opcode) && self.can_hold() {
            return self.sync(index, (header, began), service);
        }
        let (head, payload) = self.slots[index].parts();
        let (result, len) = if Op::answers_at_length(header.opcode) {
            let asked = &mut self.asked.as_mut()[..given];
            asked.copy_from_slice(&payload[..given]);
            let mut out = Out::new(payload);
            let result = answer(service, header, &head.argument, asked, &mut out);
            (result, out.len())
        } else {
            let mut room = [0; SHORT];
            let mut out = Out::new(&mut room);
            let result = answer(service, header, &head.argument, &payload[..given], &mut out);
            let len = out.len();
            payload[..len].copy_from_slice(&room[..len]);
            (result, len)
        };
        put_answer(head, (commit_id, header.unique), result, len);
        self.tally.took(began);
        if hurried && let Some(later) = &self.later {
            later.catch_up();
        }
        Some(commit_id)
    }
}

impl Queue {
    /// Answers `fsync` or `fsyncdir`. `None`: that happens later.
    fn sync(
        &mut self,
        index: usize,
        (header, began): (InHeader, Began),
        service: &dyn Service,
    ) -> Option<u64> {
        let (head, _) = self.slots[index].parts();
        let commit_id = head.entry.commit_id;
        let mut postpone = || {
            let mailbox = Arc::clone(&self.mailbox);
            let reply = Reply::Ring {
                mailbox,
                index,
                commit_id,
            };
            Postponed::new(header.unique, reply, timed(&self.tally, began), None)
        };
        let mut room = [0; SHORT];
        let mut out = Out::new(&mut room);
        let answer = match Request::parse_split(header, &head.argument, &[]) {
            Ok(request) => guard::call_sync(service, &request, &mut out, &mut postpone),
            Err(_) => {
                tracing::warn!("message {} of the kernel makes no sense", header.opcode);
                Some(Err(Errno::IO))
            }
        };
        let Some(answer) = answer else {
            self.held += 1;
            return None;
        };
        put_answer(head, (commit_id, header.unique), answer, 0);
        self.tally.took(began);
        Some(commit_id)
    }
}

fn timed(tally: &Arc<Tally>, began: Began) -> Timed {
    Timed {
        tally: Arc::clone(tally),
        began,
    }
}

/// Puts the result of a request, whose content of `len` bytes is in place, where the kernel reads it.
fn put_answer(
    head: &mut wire::Header,
    (commit_id, unique): (u64, u64),
    answer: Answer,
    len: usize,
) {
    let len = if answer.is_ok() { len } else { 0 };
    let out = OutHeader {
        len: (size_of::<OutHeader>() + len) as u32,
        error: answer.map_or_else(|e| -e.number(), |()| 0),
        unique,
    };
    head.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
    head.entry = wire::Entry {
        commit_id,
        payload: len as u32,
        ..wire::Entry::default()
    };
}

/// Sets the field `len` of a submission, for which the crate has no name.
fn set_len(entry: &mut Entry128, len: u32) {
    /// Of `len` in `struct io_uring_sqe`.
    const OFFSET: usize = 24;
    const { assert!(size_of::<Entry128>() == 128) };
    let start: *mut u8 = std::ptr::from_mut(entry).cast();
    // SAFETY: an `Entry128` is the kernel's structure of 128 bytes, all of them plain integers; the
    // field lies within and is aligned to 4 as the structure is to 8.
    unsafe { start.add(OFFSET).cast::<u32>().write(len) };
}
