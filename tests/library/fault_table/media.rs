//! Media that remember what would survive a power failure, and fail where they are told to.

use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, WriteRun};
use quayfs_crashsim::{FaultDevice, SimDevice};
use quayfs_layout::geometry::Geometry;
use quayfs_oracle::{Media, Shape};
use quayfs_pmem::{Backend, Observer, Region};

type Site = &'static Location<'static>;

/// Watches a region: counts its drains, lets one fail, and knows what is settled.
pub struct Drains {
    state: Mutex<State>,
}

struct State {
    drains: u64,
    fail_at: Option<u64>,
    /// Stores since the last drain.
    pending: Vec<(u64, Box<[u8]>)>,
    settled: Vec<u8>,
}

impl Drains {
    fn new(settled: Vec<u8>) -> Self {
        Self {
            state: Mutex::new(State {
                drains: 0,
                fail_at: None,
                pending: Vec::new(),
                settled,
            }),
        }
    }

    pub fn count(&self) -> u64 {
        self.state.lock().drains
    }

    fn has_failed(&self) -> bool {
        let s = self.state.lock();
        s.fail_at.is_some_and(|n| n <= s.drains)
    }

    /// Lets the `nth` drain, counted from the first ever, fail, and so all later ones.
    pub fn fail(&self, nth: u64) {
        self.state.lock().fail_at = Some(nth);
    }
}

impl Observer for Drains {
    fn store(&self, off: u64, bytes: &[u8], _: bool, _: Site) {
        self.state.lock().pending.push((off, bytes.into()));
    }

    fn flush(&self, _: u64, _: u64, _: Site) {}
    fn fence(&self, _: Site) {}

    fn drain(&self, _: Site) {
        let s = &mut *self.state.lock();
        for (off, bytes) in s.pending.drain(..) {
            s.settled[off as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn drain_fault(&self) -> Option<io::Error> {
        let mut s = self.state.lock();
        s.drains += 1;
        (s.fail_at == Some(s.drains)).then(|| io::Error::from_raw_os_error(libc::EIO))
    }
}

/// A device with a volatile cache: writes are seen at once and survive with a flush. A flush that
/// fails has lost them for good, whatever later ones say.
pub struct Cache {
    inner: Arc<FaultDevice>,
    settled: SimDevice,
    pending: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Cache {
    fn later(&self, block: u64, bytes: Vec<u8>) {
        self.pending.lock().push((block, bytes));
    }
}

impl BlockDevice for Cache {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(block, buf)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(block, buf)?;
        self.later(block, buf.to_vec());
        Ok(())
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.inner.read_many(runs)
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        self.inner.write_many(runs)?;
        for run in runs {
            self.later(run.block, run.bufs.concat());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        // What comes while the flush is under way is not covered by it.
        let covered = std::mem::take(&mut *self.pending.lock());
        self.inner.flush()?;
        for (block, bytes) in covered {
            self.settled.write(block, &bytes)?;
        }
        Ok(())
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.inner.discard(block, count)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }

    fn missing(&self) -> u64 {
        0
    }
}

/// A formatted volume to start from.
pub struct Base {
    geometry: Geometry,
    pmem: Vec<u8>,
    header: Vec<u8>,
}

impl Base {
    pub fn new() -> Self {
        let geometry = Shape::TINY.geometry();
        let media = Media::new(&Shape::TINY, Backend::Volatile);
        let mut header = vec![0; BLOCK];
        media.device.read(0, &mut header).expect("read");
        Self {
            geometry,
            pmem: media.region.read_vec(0, geometry.pmem_len),
            header,
        }
    }
}

/// Both media of one life.
pub struct Pair {
    pub backend: Backend,
    pub media: Media,
    pub drains: Arc<Drains>,
    pub faults: Arc<FaultDevice>,
    cache: Arc<Cache>,
}

impl Pair {
    pub fn new(base: &Base, backend: Backend) -> Self {
        let fresh = || {
            let device = SimDevice::unrecorded(base.geometry.data_blocks);
            device.write(0, &base.header).expect("write");
            device
        };
        let drains = Arc::new(Drains::new(base.pmem.clone()));
        let region = Region::from_image(&base.pmem, Some(drains.clone()), backend);
        let faults = Arc::new(FaultDevice::new(Arc::new(fresh())));
        let cache = Arc::new(Cache {
            inner: faults.clone(),
            settled: fresh(),
            pending: Mutex::default(),
        });
        Self {
            backend,
            media: Media {
                region: Arc::new(region),
                device: cache.clone(),
            },
            drains,
            faults,
            cache,
        }
    }

    /// The device works again; a region whose drains fail is mapped anew, as a new daemon would.
    /// What was stored since its last good drain is there and not settled.
    pub fn heal(&mut self) {
        self.faults.heal();
        if !self.drains.has_failed() {
            return;
        }
        let fresh = {
            let old = &mut *self.drains.state.lock();
            let fresh = Drains::new(std::mem::take(&mut old.settled));
            fresh.state.lock().pending = std::mem::take(&mut old.pending);
            Arc::new(fresh)
        };
        self.drains = fresh;
        let region = Region::from_image(self.image(), Some(self.drains.clone()), self.backend);
        self.media.region = Arc::new(region);
    }

    fn image(&self) -> Vec<u8> {
        self.media.region.read_vec(0, self.media.region.len())
    }

    fn device(&self, of: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
        let device = SimDevice::unrecorded(of.blocks());
        let mut all = vec![0; of.blocks() as usize * BLOCK];
        of.read(0, &mut all).expect("read");
        device.write(0, &all).expect("write");
        Arc::new(device)
    }

    /// What may be there after the death of the daemon, and, if asked for, after a power failure:
    /// the extremes. Taken before anything is healed.
    pub fn afterlives(&self, power: bool) -> Vec<(&'static str, Media)> {
        self.faults.heal();
        let media = |pmem: &[u8], device| Media {
            region: Arc::new(Region::from_image(pmem, None, self.backend)),
            device,
        };
        let all = self.image();
        let mut out = vec![(
            "the daemon died",
            media(&all, self.device(&*self.cache.inner)),
        )];
        if power {
            let settled = self.device(&self.cache.settled);
            out.push(("the device lost its cache", media(&all, settled)));
            if self.backend == Backend::File {
                let pmem = self.drains.state.lock().settled.clone();
                let settled = self.device(&self.cache.settled);
                out.push(("both lost their cache", media(&pmem, settled)));
            }
        }
        out
    }
}
