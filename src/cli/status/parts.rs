//! The parts of a report. Sizes are in bytes.

use crate::mount::server::Left;
use quayfs_layout::BLOCK;
use serde::{Deserialize, Serialize};

/// Bytes of a block.
pub const B: u64 = BLOCK as u64;

/// Room for data.
#[derive(Clone, Debug, Serialize)]
pub struct Data {
    pub used_bytes: u64,
    pub total_bytes: u64,
}

/// Room for files.
#[derive(Clone, Debug, Serialize)]
pub struct Inodes {
    pub used: u64,
    pub total: u64,
}

/// The region and its two parts that fill up.
#[derive(Clone, Debug, Serialize)]
pub struct Region {
    pub bytes: u64,
    pub staging_used_bytes: u64,
    pub staging_bytes: u64,
    pub metadata_used_bytes: u64,
    pub metadata_bytes: u64,
}

/// Data that is not on the data device yet.
#[derive(Clone, Debug, Serialize)]
pub struct Staged {
    pub bytes: u64,
    /// What rounds have written in a second so far.
    pub drain_bytes_per_second: Option<u64>,
    pub drain_seconds: Option<u64>,
}

impl Staged {
    /// What is still to be drained before the volume is closed.
    pub fn of_left(left: Left) -> Self {
        Self {
            bytes: left.bytes,
            drain_bytes_per_second: Some(left.rate).filter(|rate| *rate > 0),
            drain_seconds: left.seconds(),
        }
    }

    /// So many blocks lie there until the next mount.
    pub fn at_rest(blocks: u64) -> Self {
        Self {
            bytes: blocks * B,
            drain_bytes_per_second: None,
            drain_seconds: (blocks == 0).then_some(0),
        }
    }
}

/// The last scrub by the present daemon.
#[derive(Clone, Debug, Serialize)]
pub struct Scrub {
    pub state: String,
    pub ended: Option<u64>,
    pub bytes: u64,
    pub total_bytes: u64,
    pub findings: u64,
    /// Those of them that are no blocks of files.
    pub metadata: u64,
    /// Pages that were damaged on the disk only.
    pub mended: u64,
}

/// What has gone wrong since the mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Errors {
    pub damage: u64,
    pub reads: u64,
    pub recent: Vec<Recent>,
}

/// Something that has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recent {
    pub time: u64,
    pub count: u64,
    pub what: String,
}

/// The process that serves.
#[derive(Clone, Debug, Serialize)]
pub struct Daemon {
    pub pid: u64,
    pub version: Option<String>,
    pub started: Option<u64>,
    pub uptime_seconds: u64,
    pub restarts: Option<u64>,
    pub last_death: Option<String>,
}
