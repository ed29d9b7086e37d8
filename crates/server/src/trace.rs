//! Which requests the kernel makes, one by one, for those who want to watch.
//!
//! Those who watch have a queue each. A thread that has answered a request puts an event in every queue, and waits for
//! none: what finds a queue full is counted, and missing. Where nobody watches, a request costs one look at a word that
//! nobody changes. Who has not asked for long does not watch any more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::PREFIX;
use crossbeam_queue::ArrayQueue;
use quayfs_fuse::wire::Opcode;
use quayfs_fuse::{Answer, Op, Out, Request};
use serde_json::{Value, json};

/// How many can watch at a time.
const SEATS: usize = 4;
/// Events that one of them can be behind: 2 MiB.
const BEHIND: usize = 16 << 10;
/// Who has not asked for so long does not watch any more.
const LAPSE: Duration = Duration::from_secs(5);
/// Bytes of events in one answer; with what is around them below 64 KiB.
const ROOM: usize = 60 << 10;
/// Bytes of a name that are kept.
const NAME: usize = 47;

/// Those who watch.
pub(crate) struct Trace {
    /// Whether there are any.
    on: AtomicBool,
    seats: [Seat; SEATS],
    /// How often somebody has begun to watch.
    begun: AtomicU64,
    since: Instant,
}

/// A place for one who watches.
#[derive(Default)]
struct Seat {
    /// Who has it; 0 if nobody does.
    owner: AtomicU64,
    /// When they asked last, in milliseconds.
    asked: AtomicU64,
    missing: AtomicU64,
    /// Made when it is taken for the first time.
    queue: OnceLock<ArrayQueue<Event>>,
}

/// A request that is being carried out, while somebody watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    event: Event,
    at: Instant,
}

/// A request that has been carried out.
#[derive(Clone, Copy, Debug)]
struct Event {
    /// When it was begun, in microseconds since 1970.
    time: u64,
    nanos: u64,
    opcode: u32,
    task: u32,
    ino: u64,
    /// The inode that the answer is about, if it names one.
    child: u64,
    offset: Option<u64>,
    length: Option<u64>,
    /// A negative errno, or how many bytes.
    result: i64,
    name: [u8; NAME],
    /// The length of the name, of which not all may be kept.
    name_len: u8,
}

impl Event {
    fn of(request: &Request<'_>) -> Self {
        let header = &request.header;
        let (offset, length) = extent(&request.op);
        let name = name(&request.op).unwrap_or_default();
        let mut kept = [0; NAME];
        let n = name.len().min(NAME);
        kept[..n].copy_from_slice(&name[..n]);
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            time: time.unwrap_or_default().as_micros() as u64,
            nanos: 0,
            opcode: header.opcode,
            task: header.pid,
            ino: header.nodeid,
            child: 0,
            offset,
            length,
            result: 0,
            name: kept,
            name_len: u8::try_from(name.len()).unwrap_or(u8::MAX),
        }
    }

    /// As a list, which is shorter than an object with names: time, nanoseconds, operation, task, inode, the one that the
    /// answer names, offset, length, result, name, whether that is not all of it.
    fn as_list(&self) -> Value {
        let n = usize::from(self.name_len).min(NAME);
        let name = (n > 0).then(|| String::from_utf8_lossy(&self.name[..n]));
        let op = Opcode::of(self.opcode).map_or("unknown", Opcode::name);
        json!([
            self.time,
            self.nanos,
            op,
            self.task,
            self.ino,
            self.child,
            self.offset,
            self.length,
            self.result,
            name,
            usize::from(self.name_len) > NAME
        ])
    }
}

/// What part of a file it is about.
fn extent(op: &Op<'_>) -> (Option<u64>, Option<u64>) {
    match op {
        Op::Read(a) => (Some(a.offset), Some(a.size.into())),
        Op::Write { args, .. } => (Some(args.offset), Some(args.size.into())),
        Op::Readdir(a) | Op::Readdirplus(a) => (Some(a.offset), Some(a.size.into())),
        Op::Fallocate(a) => (Some(a.offset), Some(a.length)),
        Op::Lseek(a) => (Some(a.offset), None),
        Op::CopyFileRange { args, .. } => (Some(args.off_in), Some(args.len)),
        _ => (None, None),
    }
}

fn name<'a>(op: &Op<'a>) -> Option<&'a [u8]> {
    match op {
        Op::Lookup { name }
        | Op::Symlink { name, .. }
        | Op::Mknod { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Unlink { name }
        | Op::Rmdir { name }
        | Op::Rename { name, .. }
        | Op::Link { name, .. }
        | Op::Create { name, .. }
        | Op::Setxattr { name, .. }
        | Op::Getxattr { name, .. }
        | Op::Removexattr { name } => Some(name),
        _ => None,
    }
}

/// The inode that a good answer begins with, if it names one.
fn child(op: &Op<'_>, out: &[u8]) -> u64 {
    let names_one = matches!(
        op,
        Op::Lookup { .. }
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Link { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
    );
    let first = out.first_chunk().filter(|_| names_one);
    first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// How many bytes a good answer is about.
fn amount(op: &Op<'_>, out: &[u8]) -> u64 {
    match op {
        Op::Write { data, .. } => data.len() as u64,
        Op::Read(_) | Op::Readdir(_) | Op::Readdirplus(_) | Op::Readlink => out.len() as u64,
        _ => 0,
    }
}

/// Whether it watches, or asks how the mount is.
fn watches(request: &Request<'_>) -> bool {
    let (Op::Getxattr { name, .. } | Op::Setxattr { name, .. }) = &request.op else {
        return false;
    };
    name.starts_with(PREFIX)
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            seats: std::array::from_fn(|_| Seat::default()),
            begun: AtomicU64::new(0),
            since: Instant::now(),
        }
    }
}

impl Trace {
    /// A request begins. Where nobody watches, this is all that it costs.
    pub(crate) fn begin(&self, request: &Request<'_>) -> Option<Begun> {
        if !self.on.load(Ordering::Relaxed) || watches(request) {
            return None;
        }
        Some(Begun {
            event: Event::of(request),
            at: Instant::now(),
        })
    }

    /// It has been carried out.
    pub(crate) fn end(
        &self,
        begun: Option<Begun>,
        request: &Request<'_>,
        answer: &Answer,
        out: &Out<'_>,
    ) {
        let Some(mut begun) = begun else {
            return;
        };
        if answer.is_ok() {
            begun.event.child = child(&request.op, out.content());
            begun.event.result = match request.op {
                // The kernel is told that it may remember that.
                Op::Lookup { .. } if begun.event.child == 0 => -i64::from(libc::ENOENT),
                _ => amount(&request.op, out.content()).cast_signed(),
            };
        }
        self.put(begun, answer);
    }

    /// As [`Trace::end`], for one that says no more than whether it has succeeded.
    pub(crate) fn put(&self, begun: Begun, answer: &Answer) {
        let mut event = begun.event;
        event.nanos = u64::try_from(begun.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Err(e) = answer {
            event.result = -i64::from(e.number());
        }
        let mut watched = false;
        for seat in &self.seats {
            let owner = seat.owner.load(Ordering::Acquire);
            let Some(queue) = seat.queue.get().filter(|_| owner != 0) else {
                continue;
            };
            if self.has_lapsed(seat) {
                // If somebody else has it by now, nothing happens.
                let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
                let _ = seat.owner.compare_exchange(owner, 0, order, failed);
                continue;
            }
            watched = true;
            if queue.push(event).is_err() {
                seat.missing.fetch_add(1, Ordering::Relaxed);
            }
        }
        if !watched {
            self.rest();
        }
    }

    /// Nobody watches any more. Who begins at this very moment is seen, here or there.
    fn rest(&self) {
        self.on.store(false, Ordering::SeqCst);
        let taken = |seat: &Seat| seat.owner.load(Ordering::SeqCst) != 0;
        if self.seats.iter().any(taken) {
            self.on.store(true, Ordering::SeqCst);
        }
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    fn has_lapsed(&self, seat: &Seat) -> bool {
        let asked = seat.asked.load(Ordering::Relaxed);
        self.now().saturating_sub(asked) >= LAPSE.as_millis() as u64
    }

    /// Somebody begins to watch: by which number to ask for what has happened since. `None` if too many do.
    fn sit_down(&self) -> Option<u64> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // Another daemon of the same mount has others.
        let me = u64::from(std::process::id()) << 32 | number;
        let seat = self.seats.iter().find(|seat| {
            let owner = seat.owner.load(Ordering::Acquire);
            if owner != 0 && !self.has_lapsed(seat) {
                return false;
            }
            // Before it is taken: it must not look as if it had lapsed.
            seat.asked.store(self.now(), Ordering::Relaxed);
            let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            let taken = seat.owner.compare_exchange(owner, me, order, failed);
            taken.is_ok()
        })?;
        let queue = seat.queue.get_or_init(|| ArrayQueue::new(BEHIND));
        // What the last one has not fetched.
        while queue.pop().is_some() {}
        seat.missing.store(0, Ordering::Relaxed);
        self.on.store(true, Ordering::SeqCst);
        Some(me)
    }

    /// What the one with this number has not seen yet, as JSON; number 0 begins to watch. The number in the answer is the
    /// one to ask with next; `null` if there is none: the one that was given is of another daemon, or has lapsed, or too
    /// many watch.
    pub(crate) fn fetch(&self, number: u64) -> Vec<u8> {
        if number == 0 {
            let number = self.sit_down();
            return json!({ "trace": number, "missing": 0, "events": [] })
                .to_string()
                .into();
        }
        let mine = |seat: &&Seat| seat.owner.load(Ordering::Acquire) == number;
        let seat = self.seats.iter().find(mine);
        let Some((seat, queue)) = seat.and_then(|seat| Some((seat, seat.queue.get()?))) else {
            return json!({ "trace": null, "missing": 0, "events": [] })
                .to_string()
                .into();
        };
        seat.asked.store(self.now(), Ordering::Relaxed);
        let missing = seat.missing.swap(0, Ordering::Relaxed);
        let mut text = format!("{{\"trace\":{number},\"missing\":{missing},\"events\":[");
        let mut first = true;
        while text.len() < ROOM - 512
            && let Some(event) = queue.pop()
        {
            if !std::mem::take(&mut first) {
                text.push(',');
            }
            text.push_str(&event.as_list().to_string());
        }
        text.push_str("]}");
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests;
