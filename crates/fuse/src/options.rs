//! How a connection is served.

use std::time::Duration;

/// Which way requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Rings where the kernel has them switched on, `/dev/fuse` elsewhere.
    #[default]
    Auto,
    /// Reads and writes of `/dev/fuse`.
    Dev,
    /// Rings; `/dev/fuse` with a warning where the kernel has none.
    Uring,
}

/// What idle CPUs do while requests follow each other closely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Poll in virtual machines of few CPUs, where halting costs more than a request, and where the
    /// daemon may ask for it; halt elsewhere.
    #[default]
    Auto,
    /// Poll, where the daemon may ask for it.
    Poll,
    /// Halt, as always.
    Halt,
}

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which way they come.
    pub transport: Transport,
    /// Threads that read `/dev/fuse` at a time.
    pub workers: usize,
    /// Threads that take over from those while they wait for a device ([`waiting`](crate::waiting)).
    pub spare: usize,
    /// Bind those threads to CPUs, in turn.
    pub pin: bool,
    /// Give each of them a descriptor of its own.
    pub clone: bool,
    /// How long they look for a request before they sleep.
    pub poll: Duration,
    /// Requests under way in the ring of a CPU.
    pub depth: usize,
    /// What idle CPUs do meanwhile.
    pub idle: Idle,
    /// Threads for answers that wait for the kernel ([`Service::waits_for_kernel`](crate::Service::waits_for_kernel)); without any, the serving
    /// threads give these answers like all others.
    pub patient: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::Auto,
            workers: 2,
            spare: 0,
            pin: false,
            clone: true,
            poll: Duration::ZERO,
            depth: 8,
            idle: Idle::Auto,
            patient: 0,
        }
    }
}
