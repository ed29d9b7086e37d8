//! What a crash leaves.

use crate::device::SimDevice;
use crate::event::Event;
use crate::pages::{PAGE, Pages, mix};
use crate::recorder::{Base, Recorder};
use crate::select::Selection;
use quayfs_pmem::{Backend, Region};
use std::fmt;
use std::sync::Arc;

/// How many lost stores an image names.
const NAMED: usize = 8;

/// What a crash leaves on both media. Cheap to make and to copy: it shares what it has in common with
/// others.
#[derive(Clone)]
pub struct CrashImage {
    pub(crate) backend: Backend,
    pub(crate) pmem: Pages,
    pub(crate) device: Pages,
    pub(crate) acked: Arc<Vec<u64>>,
    pub(crate) events: Arc<Vec<Event>>,
    pub(crate) point: usize,
    pub(crate) selection: Selection,
    /// Events that are missing at least in part, sorted.
    pub(crate) lost: Vec<usize>,
}

impl CrashImage {
    /// The marks that were made before the crash, in order.
    pub fn acked(&self) -> &[u64] {
        &self.acked
    }

    /// How many events there were before the crash.
    pub fn point(&self) -> usize {
        self.point
    }

    /// The persistent memory as bytes.
    pub fn pmem(&self) -> Vec<u8> {
        self.pmem.to_vec()
    }

    /// A block of the data device.
    pub fn device_block(&self, block: u64) -> [u8; PAGE] {
        let mut buf = [0; PAGE];
        self.device.read(block * PAGE as u64, &mut buf);
        buf
    }

    /// A region with the persistent memory, to look at or to go on with, unrecorded.
    pub fn region(&self) -> Region {
        Region::from_extents(self.pmem.len(), self.pmem.extents(), None, self.backend)
    }

    /// The data device, to look at or to go on with, unrecorded.
    pub fn device(&self) -> SimDevice {
        SimDevice::new(self.device.clone(), None)
    }

    /// A recorder that starts from here: for crashes during recovery.
    pub fn restart(&self) -> Recorder {
        let base = Base {
            pmem: self.pmem.clone(),
            device: self.device.clone(),
        };
        Recorder::with_base(base, self.backend)
    }

    /// Replaces bytes of the persistent memory: bit rot.
    pub fn overwrite_pmem(&mut self, off: u64, bytes: &[u8]) {
        self.pmem.write(off, bytes);
    }

    /// Replaces bytes of the data device, by offset in bytes: bit rot.
    pub fn overwrite_device(&mut self, off: u64, bytes: &[u8]) {
        self.device.write(off, bytes);
    }

    /// A number that images of equal content on both media have in common, and others hardly ever.
    pub fn fingerprint(&self) -> u64 {
        self.pmem.hash().wrapping_add(mix(self.device.hash() ^ 1))
    }
}

impl fmt::Display for CrashImage {
    /// Says when the crash was, what is missing and how to find it again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "crash after {} of {} events",
            self.point,
            self.events.len()
        )?;
        if let Some(last) = self
            .point
            .checked_sub(1)
            .and_then(|last| self.events.get(last))
        {
            write!(f, ", the last one a {last}")?;
        }
        write!(
            f,
            "; {} arrived; {} acknowledged",
            self.selection,
            self.acked.len()
        )?;
        for event in self.lost.iter().take(NAMED) {
            write!(
                f,
                "\n  lost, at least in part: event {event}, {}",
                self.events[*event]
            )?;
        }
        if self.lost.len() > NAMED {
            write!(f, "\n  and {} more", self.lost.len() - NAMED)?;
        }
        Ok(())
    }
}

impl fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
