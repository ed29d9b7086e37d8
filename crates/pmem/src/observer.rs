//! Watching what is done to a simulated region.

use std::io;
use std::ops::Range;
use std::panic::Location;

/// Is told everything done to a simulated region, with the place in the source that did it.
///
/// A store is reported *before* it can be seen by other threads. So if one thread's store depends on
/// having read another's, the reports come in that order. Calls come from many threads at once; the
/// calling thread is the one that acts.
pub trait Observer: Send + Sync {
    /// Bytes are about to be stored at `off`. `nt`: non-temporally ([`Region::write_nt`]), which needs
    /// no flush. Never called with no bytes.
    ///
    /// [`Region::write_nt`]: crate::Region::write_nt
    fn store(&self, off: u64, bytes: &[u8], nt: bool, site: &'static Location<'static>);

    /// The calling thread flushed `len` bytes at `off`. `len` is never 0.
    fn flush(&self, off: u64, len: u64, site: &'static Location<'static>);

    /// The calling thread fenced.
    fn fence(&self, site: &'static Location<'static>);

    /// The calling thread drained. This includes a fence, which is not reported separately. It takes
    /// effect at the moment of this call, and is not called once a drain has failed.
    fn drain(&self, site: &'static Location<'static>);

    /// On [`Backend::File`](crate::Backend::File) the calling thread has written what was stored in these ranges
    /// ([`Region::settle_ranges`](crate::Region::settle_ranges)), which makes nothing durable. An observer that does not
    /// look at it takes what follows for a drain of everything.
    fn settle_ranges(&self, ranges: &[Range<u64>], site: &'static Location<'static>) {
        let _ = (ranges, site);
    }

    /// The calling thread drained what it has last settled. Like [`Observer::drain`] it is not called once a drain has
    /// failed.
    fn drain_settled(&self, site: &'static Location<'static>) {
        self.drain(site);
    }

    /// Whether the drain that is about to happen shall fail, and with which error. Then
    /// [`Observer::drain`] is not called, and the region's drains fail for ever.
    fn drain_fault(&self) -> Option<io::Error> {
        None
    }
}
