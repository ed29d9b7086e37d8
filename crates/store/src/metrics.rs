//! Counters, named in one place. A new one is a line of `metrics!`, a [`Metrics::add`] where it happens, and a row of
//! docs/stats.md, which `cargo test --lib stats` prints. `quayfs info --json` shows all of them under these names, and
//! `quayfs stats` under those of OpenMetrics, with the first line of their documentation as help. What other layers count
//! by themselves has a line here too, and gets its value from them when the mount is asked (`Fs::status`).

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Live counters of a mount.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
        }

        /// The counters at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// All counters by name, and what each counts.
        pub const COUNTERS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+)),)+];

        impl Metrics {
            /// Reads all counters.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

metrics! {
    /// Messages of the kernel.
    // Not counted here but by the server.
    requests,
    /// Of those, writes.
    writes,
    /// Of those, reads.
    reads,
    /// Bytes acknowledged by writes.
    bytes_written,
    /// Bytes returned by reads.
    bytes_read,
    /// Reads that failed because blocks of a file could not be read or did not match their checksum.
    read_errors,
    /// Records appended.
    records,
    /// Blocks staged.
    blocks_staged,
    /// Commits of the running transaction (`durability=commit`).
    commits,
    /// Digest passes that had something to do.
    digests,
    /// Checkpoint rounds that had something to do.
    rounds,
    /// Microseconds that those took.
    round_us,
    /// Blocks written to the data device by rounds.
    blocks_written,
    /// Of those, blocks swapped in.
    blocks_swapped,
    /// Copies that `checkpoint=double` wrote besides.
    blocks_copied,
    /// Staged blocks that never had to be written because a newer version took their place.
    blocks_absorbed,
    /// Blocks written to the data device directly (`data=ordered`, `data=writeback`).
    blocks_direct,
    /// Blocks of records written to the data device (`ablation=nodelog:ssd`).
    blocks_logged,
    /// Flushes of the data device that commits, `fsync` and rounds asked for.
    device_flushes,
    /// Microseconds that those took.
    device_flush_us,
    /// Blocks that were read from the data device before a request asked for them.
    // Read-ahead counts this one and the next.
    blocks_read_ahead,
    /// Blocks that requests got from there.
    blocks_served_ahead,
    /// Blocks zeroed by zeroing passes.
    blocks_zeroed,
    /// Free LBNs that were given another block, so that large writes are long.
    blocks_gathered,
    /// Free blocks that the data device was told of by `fstrim`.
    blocks_trimmed,
    /// Times that a background thread has looked whether there is something to do; none while the mount is not used.
    wakeups,
    /// Operations that had to wait for space.
    shortages,
    /// Reads and writes of files that had to wait for the range lock of the file.
    range_waits,
    /// Staged writes that had to wait for the commit mutex of the file.
    commit_waits,
    /// Operations that had to wait for staging slots.
    // The journal counts this one, and all down to `central_waits`.
    slot_waits,
    /// Operations without data that had to wait for log space.
    log_waits,
    /// Microseconds that those two waited.
    credit_wait_us,
    /// Exchanges on the word of free slots and log space that another thread was faster at.
    credit_retries,
    /// Records that had to wait for the lock of their lane.
    lane_waits,
    /// Waits for the one lock of `ablation=staging:central`.
    central_waits,
    /// Microseconds that recovery took at this mount.
    recovery_us,
    /// Records that it replayed.
    records_replayed,
}

impl Metrics {
    /// Adds to one counter.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
