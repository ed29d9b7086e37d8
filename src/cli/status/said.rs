//! What a daemon says of itself, as the parts of a report. It may be of another version: what it does not say is not known.

use super::report::{B, Daemon, Data, Errors, Inodes, Region, Scrub, Staged};
use serde_json::Value;

/// Room for data, as a daemon says it.
pub fn data(s: &Value) -> Option<Data> {
    let total = s["blocks"].as_u64()?;
    let free = s["blocks_free"].as_u64()?;
    Some(Data {
        used_bytes: total.saturating_sub(free) * B,
        total_bytes: total * B,
    })
}

/// Room for files.
pub fn inodes(s: &Value) -> Option<Inodes> {
    let total = s["files"].as_u64()?;
    Some(Inodes {
        used: total.saturating_sub(s["files_free"].as_u64()?),
        total,
    })
}

/// What of the region is in use.
pub fn region(s: &Value) -> Option<Region> {
    let n = |key: &str| s[key].as_u64();
    Some(Region {
        bytes: n("pmem_bytes")?,
        staging_used_bytes: n("slots_used")? * B,
        staging_bytes: n("slots")? * B,
        metadata_used_bytes: n("node_pages_used")? * B,
        metadata_bytes: n("node_pages")? * B,
    })
}

/// What is staged, and how fast it has been drained so far.
pub fn staged(s: &Value) -> Option<Staged> {
    let bytes = s["staged_blocks"].as_u64()? * B;
    let counter = |name: &str| s["counters"][name].as_u64().filter(|n| *n > 0);
    let written = counter("blocks_written").zip(counter("round_us"));
    let rate = written.map(|(blocks, us)| u128::from(blocks * B) * 1_000_000 / u128::from(us));
    let rate = rate
        .and_then(|rate| u64::try_from(rate).ok())
        .filter(|r| *r > 0);
    let seconds = match bytes {
        0 => Some(0),
        _ => rate.map(|rate| bytes.div_ceil(rate)),
    };
    Some(Staged {
        bytes,
        drain_bytes_per_second: rate,
        drain_seconds: seconds,
    })
}

/// The path of the data device, if that is a file.
pub fn data_file(s: &Value) -> Option<String> {
    let (path, _) = s["device"].as_str()?.split_once(": regular file, ")?;
    Some(path.to_string())
}

/// Whether something waits for the next commit.
pub fn uncommitted(s: &Value) -> Option<bool> {
    let [last, committed] = [0, 2].map(|at| s["sequence"][at].as_u64());
    (s["durability"] == "commit").then_some(last? > committed?)
}

/// The last scrub of the mount.
pub fn scrub(s: &Value) -> Option<Scrub> {
    let n = |key: &str| s[key].as_u64().unwrap_or_default();
    Some(Scrub {
        state: s["state"].as_str()?.into(),
        ended: s["ended"].as_u64(),
        bytes: n("bytes"),
        total_bytes: n("total_bytes"),
        findings: n("findings"),
        metadata: n("metadata"),
        mended: n("mended"),
    })
}

/// What has gone wrong.
pub fn errors(s: &Value) -> Errors {
    Errors {
        damage: s["damage_met"].as_u64().unwrap_or_default(),
        reads: s["counters"]["read_errors"].as_u64().unwrap_or_default(),
        recent: serde_json::from_value(s["errors"].clone()).unwrap_or_default(),
    }
}

/// The daemon itself.
pub fn daemon(s: &Value) -> Option<Daemon> {
    Some(Daemon {
        pid: s["pid"].as_u64()?,
        version: s["version"].as_str().map(str::to_string),
        started: s["started"].as_u64(),
        uptime_seconds: s["uptime_ms"].as_u64().unwrap_or_default() / 1000,
        restarts: s["restarts"].as_u64(),
        last_death: s["last_death"].as_str().map(str::to_string),
    })
}
