//! The FUSE protocol as a file system sees it: requests decoded in place, answers written in place.
//!
//! [`serve`] takes a mounted connection and a [`Service`], and calls it for each [`Request`], either
//! from reads of `/dev/fuse` or from rings of io_uring ([`Transport`]). Nothing is allocated for a
//! request, and its data are copied once by the kernel and never by this crate. Mounting and
//! unmounting are not its business.
//!
//! Why not a crate of others: `fuser` 0.18 knows no rings, hands on neither the flags of `setattr`,
//! `create` and `open` that `HANDLE_KILLPRIV_V2` needs, nor `TMPFILE`, `STATX` and `SYNCFS`, and
//! allocates for each request; `fuse-backend-rs` knows no rings; `fractal-fuse` knows nothing but
//! rings, and an asynchronous runtime under each operation, where every operation of a file system on
//! persistent memory is done before a task could be parked.
//!
//! - [`wire`]: the kernel's structures.
//! - [`request`], [`answer`]: what they become.
//! - `handshake`: what is agreed on at the start.
//! - `channel`: the two transports; `notify`: what the kernel is told unasked.
//! - `session`: the threads; `places`: how many of them serve; `cpu_latency`: keeps CPUs from halting under them.

pub mod answer;
mod channel;
mod cpu_latency;
mod deferred;
mod gate;
mod guard;
mod handshake;
mod latency;
mod notify;
mod options;
mod places;
pub mod request;
mod service;
mod session;
mod stats;
mod sys;
pub mod wire;

pub use answer::{Answer, Errno, Listing, Out};
pub use deferred::Postponed;
pub use gate::Gate;
pub use handshake::{Negotiation, wanted};
pub use latency::{CLASSES, Latencies, bound};
pub use notify::Notifier;
pub use options::{Idle, Options, Transport};
pub use places::waiting;
pub use request::{Op, Request};
pub use service::{KernelCapabilities, RequestedCapabilities, Service};
pub use session::{Keeper, Left, resume, serve};
pub use stats::Stats;
