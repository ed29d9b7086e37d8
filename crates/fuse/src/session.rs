//! A connection from its first message to its last.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::channel::dev::Worker;
use crate::channel::ring::Queue;
use crate::cpu_latency;
use crate::deferred::{DeferredQueue, deferred_queue};
use crate::gate::Gate;
use crate::handshake::{NegotiatedCapabilities, Negotiation, greet};
use crate::notify::resend;
use crate::options::{Idle, Options, Transport};
use crate::places::Places;
use crate::service::Service;
use crate::stats::{Stats, Tally};
use crate::sys::{allowed_cpus, clone_device, pin, possible_cpus};
use crate::wire::Init;

/// How long forgets gather where nothing else comes by the device. An inode without a name lives that
/// much longer.
const GATHER: Duration = Duration::from_millis(1);

/// Takes care that a connection outlives the process.
pub trait Keeper: Send + Sync {
    /// Another process shall hold this descriptor of the connection as well: what was read through a descriptor and not
    /// answered fails when the last process that holds it ends.
    fn share(&self, descriptor: BorrowedFd<'_>);

    /// What the next process has to know. Called before the kernel sends any request.
    fn agreed(&self, negotiation: Negotiation);

    /// What each request passes: with it this process stops serving.
    fn gate(&self) -> &Gate;
}

/// What is left of a session that was not ended.
#[derive(Debug)]
pub struct Left {
    /// Further descriptors of the connection ([`Keeper::share`]).
    pub descriptors: Vec<OwnedFd>,
    /// What was agreed on.
    pub negotiation: Negotiation,
}

/// Serves a connection of which an earlier process is gone, over `/dev/fuse`, until it ends. First the kernel sends
/// again what that process had taken and not answered ([`Request::was_sent_before`](crate::Request::was_sent_before)).
///
/// # Errors
/// The service would agree with the kernel on something else than what was agreed on; the kernel cannot send requests
/// again; reading them failed.
pub fn resume(
    service: &dyn Service,
    device: OwnedFd,
    left: Left,
    options: &Options,
    stats: &Stats,
    keeper: &dyn Keeper,
) -> io::Result<()> {
    let agreed = left.negotiation.resume(service)?;
    let session = Session {
        service,
        device: Arc::new(device),
        options,
        stats,
        keeper: Some(keeper),
        spare: Mutex::new(left.descriptors),
    };
    thread::scope(|scope| {
        let later = session.start_patient(scope)?;
        stats.set_transport("dev");
        resend(&session.device)?;
        session.work_all(scope, (agreed, later, false))
    })
}

/// Serves a connection, which is not yet agreed upon, until it ends. With a `keeper` it can be [resumed](resume) if
/// this process ends before, and if the kernel can send requests again; else the keeper is not called.
///
/// # Errors
/// The kernel is too old, or not what the file system accepts, or reading its requests failed.
pub fn serve(
    service: &dyn Service,
    device: OwnedFd,
    options: &Options,
    stats: &Stats,
    keeper: Option<&dyn Keeper>,
) -> io::Result<()> {
    let Some(greeting) = greet(&device)? else {
        return Ok(());
    };
    if let Err(why) = service.accepts(&greeting.offer) {
        greeting.refuse(&device)?;
        return Err(io::Error::other(why));
    }
    let offered = greeting.offer.flags.contains(Init::OVER_IO_URING);
    let keeper = keeper.filter(|_| greeting.offer.flags.contains(Init::HAS_RESEND));
    let (mut agreed, wish) =
        greeting.agree(service, offered && options.transport != Transport::Dev);
    let session = Session {
        service,
        device: Arc::new(device),
        options,
        stats,
        keeper,
        spare: Mutex::default(),
    };
    if options.transport == Transport::Uring && !offered {
        tracing::warn!(
            "transport=uring: this kernel does not offer FUSE over io_uring (Linux 6.14 with \
             /sys/module/fuse/parameters/enable_uring set to Y); serving /dev/fuse instead"
        );
    }
    thread::scope(|scope| {
        let later = session.start_patient(scope)?;
        let rings = session.try_rings(scope, &mut agreed, later.as_ref());
        if let Some(keeper) = keeper {
            keeper.share(session.device.as_fd());
            keeper.agreed(Negotiation {
                offer: greeting.offer,
                flags: agreed.flags,
                payload: agreed.payload,
            });
        }
        greeting.answer(&session.device, &agreed, &wish)?;
        let ringing = rings.is_some_and(Rings::are_accepted);
        stats.set_transport(if ringing { "uring" } else { "dev" });
        session.work_all(scope, (agreed, later, ringing))
    })
}

fn join(threads: Vec<ScopedJoinHandle<'_, io::Result<()>>>) -> io::Result<()> {
    let mut result = Ok(());
    for thread in threads {
        let ended = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        if result.is_ok() {
            result = ended;
        }
    }
    result
}

fn serve_device(worker: Worker, cpu: Option<usize>, service: &dyn Service) -> io::Result<()> {
    if let Some(cpu) = cpu {
        pin(cpu);
    }
    worker.run(service)
}

/// What all threads that read the device have in common.
#[derive(Clone)]
struct Mode {
    agreed: NegotiatedCapabilities,
    /// Requests come there, and not by rings.
    busy: bool,
    later: Option<DeferredQueue>,
    places: Arc<Places>,
}

struct Session<'a> {
    service: &'a dyn Service,
    device: Arc<OwnedFd>,
    options: &'a Options,
    stats: &'a Stats,
    keeper: Option<&'a dyn Keeper>,
    /// Descriptors that an earlier process has left.
    spare: Mutex<Vec<OwnedFd>>,
}

/// The rings, open, each in its thread.
struct Rings {
    /// Lets them register; without a word they end.
    go: Vec<Sender<()>>,
    answers: Receiver<io::Result<()>>,
}

impl Rings {
    /// Hands them to the kernel.
    fn register(self) -> io::Result<()> {
        for go in &self.go {
            go.send(()).map_err(io::Error::other)?;
        }
        (0..self.go.len()).try_for_each(|_| self.answers.recv().map_err(io::Error::other)?)
    }

    /// Hands them to the kernel, and says whether it has them.
    fn are_accepted(self) -> bool {
        // The kernel goes back to `/dev/fuse` by itself.
        let refused =
            |e| tracing::warn!("the kernel refused the rings: {e}; serving /dev/fuse instead");
        self.register().map_err(refused).is_ok()
    }
}

impl<'a> Session<'a> {
    /// Starts the threads that answer what waits for the kernel. They end when no other thread can hand them
    /// anything any more.
    fn start_patient<'s>(&self, scope: &'s Scope<'s, 'a>) -> io::Result<Option<DeferredQueue>> {
        if self.options.patient == 0 {
            return Ok(None);
        }
        let (later, waiting) = deferred_queue();
        for n in 0..self.options.patient {
            let (service, waiting) = (self.service, Arc::clone(&waiting));
            thread::Builder::new()
                .name(format!("fuse-later-{n}"))
                .spawn_scoped(scope, move || waiting.run(service))?;
        }
        Ok(Some(later))
    }

    /// Serves the device with all threads that the options want, of which this is the first, until the connection ends.
    fn work_all<'s>(
        &self,
        scope: &'s Scope<'s, 'a>,
        (agreed, later, ringing): (NegotiatedCapabilities, Option<DeferredQueue>, bool),
    ) -> io::Result<()> {
        // With rings, forgets and interrupts come by the device all the same.
        let (workers, spare) = match ringing {
            true => (1, 0),
            false => (self.options.workers.max(1), self.options.spare),
        };
        let mode = Mode {
            agreed,
            busy: !ringing,
            later,
            places: Places::new(workers),
        };
        let threads = self.start_workers(scope, workers + spare, &mode);
        self.keep_awake(scope);
        self.service.started();
        let first = self.work(0, mode);
        let ended = first.and(join(threads));
        self.stats.awake.end();
        ended
    }

    /// Starts the threads that serve the device beside this one, as many as can be had: there is always this one, and
    /// more of them only make it faster.
    fn start_workers<'s>(
        &self,
        scope: &'s Scope<'s, 'a>,
        wanted: usize,
        mode: &Mode,
    ) -> Vec<ScopedJoinHandle<'s, io::Result<()>>> {
        (1..wanted)
            .map_while(|n| {
                let started = self.start_worker(scope, n, mode.clone());
                let few =
                    |e| tracing::warn!("{n} of {wanted} threads serve, for want of more: {e}");
                started.map_err(few).ok()
            })
            .collect()
    }

    fn start_worker<'s>(
        &self,
        scope: &'s Scope<'s, 'a>,
        number: usize,
        mode: Mode,
    ) -> io::Result<ScopedJoinHandle<'s, io::Result<()>>> {
        let (worker, cpu) = self.worker(number, mode);
        let service = self.service;
        thread::Builder::new()
            .name(format!("fuse-{number}"))
            .spawn_scoped(scope, move || serve_device(worker, cpu, service))
    }

    /// Does what a thread does that [`Session::start_worker`] starts, in this one.
    fn work(&self, number: usize, mode: Mode) -> io::Result<()> {
        let (worker, cpu) = self.worker(number, mode);
        serve_device(worker, cpu, self.service)
    }

    /// A further descriptor of the connection: one of those that are left, or a new one.
    fn further(&self, nonblocking: bool) -> io::Result<OwnedFd> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = spare.pop() {
            return Ok(left);
        }
        let new = clone_device(&self.device, nonblocking)?;
        if let Some(keeper) = self.keeper {
            keeper.share(new.as_fd());
        }
        Ok(new)
    }

    /// The worker that serves the device, and the CPU to be bound to.
    fn worker(&self, number: usize, mode: Mode) -> (Worker, Option<usize>) {
        let busy = mode.busy;
        let poll = if busy {
            self.options.poll
        } else {
            Duration::ZERO
        };
        let own = |nonblocking: bool| -> Arc<OwnedFd> {
            if !self.options.clone && !nonblocking {
                return Arc::clone(&self.device);
            }
            self.further(nonblocking).map_or_else(
                |e| {
                    tracing::debug!("no descriptor of its own for a thread: {e}");
                    Arc::clone(&self.device)
                },
                Arc::new,
            )
        };
        let worker = Worker {
            device: own(!poll.is_zero()),
            asleep: (!poll.is_zero()).then(|| own(false)),
            agreed: mode.agreed,
            tally: self.stats.tally(),
            poll,
            gather: if busy { Duration::ZERO } else { GATHER },
            later: mode.later,
            places: mode.places,
            huge: number < self.options.workers.max(1),
            pass: self.keeper.map(|keeper| keeper.gate().pass()),
        };
        let bound = busy && self.options.pin && number < self.options.workers;
        let cpu = bound.then(allowed_cpus).and_then(|cpus| {
            let at = number % cpus.len().max(1);
            cpus.get(at).copied()
        });
        (worker, cpu)
    }

    /// Starts the thread that keeps idle CPUs from halting, where that is wanted.
    fn keep_awake<'s>(&self, scope: &'s Scope<'s, 'a>) {
        let polls = match self.options.idle {
            Idle::Auto => cpu_latency::is_worth_while(),
            Idle::Poll => true,
            Idle::Halt => false,
        };
        if polls {
            let stats = self.stats;
            let awake = thread::Builder::new().name("fuse-awake".into());
            if let Err(e) = awake.spawn_scoped(scope, || stats.awake.run(stats, cpu_latency::hold))
            {
                tracing::warn!("idle CPUs halt, for want of a thread: {e}");
            }
        }
    }

    /// Opens the rings if they are agreed upon. If that fails they are not any more.
    fn try_rings<'s>(
        &self,
        scope: &'s Scope<'s, 'a>,
        agreed: &mut NegotiatedCapabilities,
        later: Option<&DeferredQueue>,
    ) -> Option<Rings> {
        if !agreed.flags.contains(Init::OVER_IO_URING) {
            return None;
        }
        let failed = |e| tracing::warn!("no rings: {e}; serving /dev/fuse instead");
        let rings = self.open_rings(scope, *agreed, later).map_err(failed).ok();
        if rings.is_none() {
            agreed.flags.remove(Init::OVER_IO_URING);
        }
        rings
    }

    /// Opens a ring for each CPU that there can be. They wait to be registered.
    fn open_rings<'s>(
        &self,
        scope: &'s Scope<'s, 'a>,
        agreed: NegotiatedCapabilities,
        later: Option<&DeferredQueue>,
    ) -> io::Result<Rings> {
        let allowed = allowed_cpus();
        let (answer, answers) = channel();
        let mut rings = Rings {
            go: Vec::new(),
            answers,
        };
        for cpu in 0..possible_cpus()? {
            let (go, gone) = channel();
            let usable = allowed.contains(&cpu);
            let thread = RingThread {
                service: self.service,
                device: Arc::clone(&self.device),
                agreed,
                cpu,
                usable,
                // No process asks on a CPU that is not there.
                depth: if usable { self.options.depth.max(1) } else { 1 },
                go: gone,
                answer: answer.clone(),
                later: later.cloned(),
            };
            let tally = self.stats.tally();
            thread::Builder::new()
                .name(format!("fuse-ring-{cpu}"))
                .spawn_scoped(scope, move || thread.run(tally))?;
            rings.go.push(go);
        }
        for _ in &rings.go {
            rings.answers.recv().map_err(io::Error::other)??;
        }
        Ok(rings)
    }
}

/// Serves the queue of one CPU.
struct RingThread<'a> {
    service: &'a dyn Service,
    device: Arc<OwnedFd>,
    agreed: NegotiatedCapabilities,
    cpu: usize,
    usable: bool,
    depth: usize,
    go: Receiver<()>,
    answer: Sender<io::Result<()>>,
    later: Option<DeferredQueue>,
}

impl RingThread<'_> {
    fn run(self, tally: Arc<Tally>) {
        if self.usable {
            pin(self.cpu);
        }
        let opened = Queue::open(
            &self.device,
            self.cpu as u16,
            self.depth,
            self.agreed,
            (tally, self.later),
        );
        let mut queue = match opened {
            Ok(queue) => queue,
            Err(e) => return drop(self.answer.send(Err(e))),
        };
        if self.answer.send(Ok(())).is_err() || self.go.recv().is_err() {
            return;
        }
        let registered = queue.register();
        let refused = registered.is_err();
        if self.answer.send(registered).is_err() || refused {
            return;
        }
        if let Err(e) = queue.run(self.service) {
            // Requests of this CPU would wait forever.
            let cpu = self.cpu;
            tracing::error!(
                fatal = true,
                "the ring of CPU {cpu} failed: {e}: the daemon ends"
            );
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
