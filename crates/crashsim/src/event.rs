//! What is recorded.

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::thread::ThreadId;

/// One of the two media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// The region of persistent memory.
    Pmem,
    /// The data device.
    Device,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pmem => "pmem",
            Self::Device => "device",
        })
    }
}

/// A store or write that is not settled: a crash may lose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// What it went to.
    pub medium: Medium,
    /// Where, in bytes.
    pub off: u64,
    /// How much, in bytes.
    pub len: u64,
    /// The code that did it.
    pub site: &'static Location<'static>,
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x} of {} by {}",
            self.len, self.off, self.medium, self.site
        )
    }
}

/// What orders what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderingKind {
    /// Of lines of memory; takes effect at the next fence.
    Flush,
    /// Of memory.
    Fence,
    /// Of memory, to the very end; on the backend `file` the only one that does anything.
    Drain,
    /// Of the data device.
    DeviceFlush,
}

impl fmt::Display for OrderingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Flush => "flush",
            Self::Fence => "fence",
            Self::Drain => "drain",
            Self::DeviceFlush => "device flush",
        })
    }
}

/// A place in the source that orders what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ordering {
    /// How.
    pub kind: OrderingKind,
    /// Where.
    pub site: &'static Location<'static>,
}

impl fmt::Display for Ordering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.kind, self.site)
    }
}

#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) thread: ThreadId,
    pub(crate) site: &'static Location<'static>,
    pub(crate) kind: Kind,
}

#[derive(Clone, Hash)]
pub(crate) enum Kind {
    Store {
        off: u64,
        bytes: Arc<[u8]>,
        nt: bool,
    },
    Flush {
        off: u64,
        len: u64,
    },
    Fence,
    Drain,
    /// These parts of the region are written as they are now.
    Settle(Arc<[Range<u64>]>),
    /// A drain of what the thread has last settled.
    DrainSettled,
    /// A write or, with garbage, a discard.
    DeviceWrite {
        off: u64,
        bytes: Arc<[u8]>,
        discard: bool,
    },
    DeviceFlush,
    Mark(u64),
    /// All threads that have done anything so far are gone.
    Death,
}

impl Kind {
    /// Whether it changes nothing that can be read.
    pub(crate) fn only_orders(&self) -> bool {
        match self {
            Self::Flush { .. } | Self::Fence | Self::Drain => true,
            Self::Settle(_) | Self::DrainSettled | Self::DeviceFlush => true,
            Self::Store { .. } | Self::DeviceWrite { .. } | Self::Mark(_) | Self::Death => false,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Store { off, bytes, nt } => {
                let how = if *nt { "non-temporal store" } else { "store" };
                write!(f, "{how} of {} bytes at {off:#x}", bytes.len())?;
            }
            Kind::Flush { off, len } => write!(f, "flush of {len} bytes at {off:#x}")?,
            Kind::Fence => f.write_str("fence")?,
            Kind::Drain => f.write_str("drain")?,
            Kind::Settle(ranges) => write!(f, "settling of {ranges:x?}")?,
            Kind::DrainSettled => f.write_str("drain of what is settled")?,
            Kind::DeviceWrite {
                off,
                bytes,
                discard,
            } => {
                let what = if *discard { "discard" } else { "device write" };
                write!(f, "{what} of {} bytes at {off:#x}", bytes.len())?;
            }
            Kind::DeviceFlush => f.write_str("device flush")?,
            Kind::Mark(value) => write!(f, "mark {value}")?,
            Kind::Death => f.write_str("death of the daemon")?,
        }
        write!(f, " by {}", self.site)
    }
}
