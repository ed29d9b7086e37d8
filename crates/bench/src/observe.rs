//! What is counted outside of the workload: by the daemon, by block devices, by the kernel.

use crate::error::{Error, Result};
use crate::machine::{CpuTime, proc_error};
use crate::target::Target;
use procfs::process::Process;
use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Extended attribute of the root of a QuayFS mount: its state as JSON.
const STATUS: &str = "quayfs.status";
/// Bytes of a block of QuayFS.
const BLOCK: u64 = 4096;
/// Bytes of a sector in the kernel's statistics, whatever the device.
const SECTOR: u64 = 512;

/// The parts of a mount's status that are used here. What an older or newer version does not say
/// counts as nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Process id of the daemon.
    pub pid: i32,
    /// Staging slots.
    pub slots: u64,
    /// Staging slots in use.
    pub slots_used: u64,
    /// Counters since the mount.
    #[serde(deserialize_with = "counts")]
    pub counters: BTreeMap<String, u64>,
    /// FUSE messages by opcode since the mount.
    #[serde(deserialize_with = "counts")]
    pub messages: BTreeMap<String, u64>,
}

/// The numbers of an object. What else is in it, or comes to be, is for other readers.
fn counts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u64>, D::Error> {
    let all = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
    let number = |(name, value): (String, serde_json::Value)| Some((name, value.as_u64()?));
    Ok(all.into_iter().filter_map(number).collect())
}

impl Status {
    fn counter(&self, name: &str) -> Option<u64> {
        self.counters.get(name).copied()
    }

    /// FUSE messages since the mount.
    fn requests(&self) -> u64 {
        if self.messages.is_empty() {
            self.counter("requests").unwrap_or(0)
        } else {
            self.messages.values().sum()
        }
    }

    /// Bytes written to the data device since the mount.
    fn device_bytes(&self) -> u64 {
        self.counter("device_bytes").unwrap_or_else(|| {
            let blocks = ["blocks_written", "blocks_copied", "blocks_direct"];
            blocks.iter().filter_map(|b| self.counter(b)).sum::<u64>() * BLOCK
        })
    }
}

/// Asks what is mounted on `mount_point` for its status; other file systems have none.
///
/// # Errors
/// The daemon is gone, or answers nonsense.
pub fn status(mount_point: &Path) -> Result<Option<(Status, serde_json::Value)>> {
    let mut buffer = vec![0; 64 << 10];
    let n = match rustix::fs::getxattr(mount_point, STATUS, &mut buffer[..]) {
        Ok(n) => n,
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM | Errno::NOSYS) => {
            return Ok(None);
        }
        Err(errno) => {
            return Err(Error::Call {
                call: "getxattr",
                path: mount_point.into(),
                errno,
            });
        }
    };
    let nonsense = |e: serde_json::Error| Error::File {
        path: mount_point.into(),
        source: std::io::Error::other(format!("nonsense in {STATUS}: {e}")),
    };
    let value: serde_json::Value = serde_json::from_slice(&buffer[..n]).map_err(nonsense)?;
    let status = serde_json::from_value(value.clone()).map_err(nonsense)?;
    Ok(Some((status, value)))
}

/// What a block device has done since it appeared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    /// Bytes.
    read: u64,
    /// Bytes.
    written: u64,
    /// Requests that wrote, after the kernel has merged them.
    writes: u64,
    /// Flushes, after the same. A device without a write cache gets none.
    flushes: u64,
}

fn device(device: &str) -> Result<Device> {
    let path = Path::new("/sys/dev/block").join(device).join("stat");
    let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
    parse_device(&text).ok_or_else(|| {
        Error::file(&path)(std::io::Error::other(
            "not the statistics of a block device",
        ))
    })
}

/// `reads merged sectors ms writes merged sectors ms ... flushes ms`; Linux: `Documentation/block/stat.rst`.
fn parse_device(text: &str) -> Option<Device> {
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|f| f.parse().ok())
        .collect::<Option<_>>()?;
    Some(Device {
        read: fields.get(2)? * SECTOR,
        written: fields.get(6)? * SECTOR,
        writes: *fields.get(4)?,
        flushes: *fields.get(15)?,
    })
}

fn cpu_of(process: &Process) -> Result<Duration> {
    let path = format!("/proc/{}/stat", process.pid());
    let stat = process.stat().map_err(proc_error(path))?;
    let ticks = (stat.utime + stat.stime) as f64;
    Ok(Duration::from_secs_f64(
        ticks / procfs::ticks_per_second() as f64,
    ))
}

/// All that is counted, at one moment.
#[derive(Clone, Debug)]
pub struct Counters {
    status: Option<Status>,
    daemon: Option<Duration>,
    device: Option<Device>,
    machine: CpuTime,
    own: Duration,
}

impl Counters {
    /// Reads them. Asking QuayFS takes a message or two, which are counted too.
    ///
    /// # Errors
    /// Something that could be read when the target was opened cannot be read any more.
    pub fn read(target: &Target) -> Result<Self> {
        let process = |pid: i32| Process::new(pid).map_err(proc_error(format!("/proc/{pid}")));
        let daemon = target.daemon.map(process).transpose()?;
        let own = Process::myself().map_err(proc_error("/proc/self"))?;
        Ok(Self {
            machine: CpuTime::now()?,
            own: cpu_of(&own)?,
            daemon: daemon.as_ref().map(cpu_of).transpose()?,
            device: target.device.as_deref().map(device).transpose()?,
            status: status(&target.mount_point)?.map(|(status, _)| status),
        })
    }
}

impl Counters {
    /// Reads them of a file system that is called directly, so that this process does all the work; `status` is what
    /// the file system says of itself, as a mount would say it.
    ///
    /// # Errors
    /// `/proc` cannot be read, or the status is nonsense.
    pub fn of_library(status: serde_json::Value) -> Result<Self> {
        let nonsense = |e: serde_json::Error| Error::File {
            path: STATUS.into(),
            source: std::io::Error::other(e),
        };
        let own = Process::myself().map_err(proc_error("/proc/self"))?;
        Ok(Self {
            machine: CpuTime::now()?,
            own: cpu_of(&own)?,
            daemon: None,
            device: None,
            status: Some(serde_json::from_value(status).map_err(nonsense)?),
        })
    }
}

/// What happened between two readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Seconds that CPUs of the whole machine were busy.
    pub machine_cpu_s: f64,
    /// Seconds of CPU that a hypervisor gave to others.
    pub stolen_cpu_s: f64,
    /// Seconds of CPU that this program used, the kernel's work for it included.
    pub own_cpu_s: f64,
    /// Seconds of CPU that the daemon used.
    pub daemon_cpu_s: Option<f64>,
    /// Bytes of the daemon's memory at its largest, since it was started.
    pub daemon_peak_bytes: Option<u64>,
    /// FUSE messages to a QuayFS daemon.
    pub messages: Option<u64>,
    /// The same by opcode, where the daemon tells.
    #[serde(default)]
    pub messages_by_opcode: BTreeMap<String, u64>,
    /// Counters of a QuayFS daemon that have changed.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// How often the staging area would have been filled.
    pub staging_wraps: Option<f64>,
    /// Share of staging slots in use when the run began.
    pub staging_used_before: Option<f64>,
    /// Bytes written to the block device, until everything was on it. Where a QuayFS volume is none itself: to its data
    /// device, as the daemon counts.
    pub device_written: Option<u64>,
    /// Write requests to the block device during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_writes: Option<u64>,
    /// Flushes of the block device during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_flushes: Option<u64>,
    /// Bytes read from the block device.
    pub device_read: Option<u64>,
    /// Seconds until a kernel file system had written everything after the run.
    pub drain_s: Option<f64>,
    /// Whether nothing was left to write before the run, and after.
    pub settled: [bool; 2],
}

fn growth(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    after
        .iter()
        .map(|(k, n)| {
            (
                k.clone(),
                n.saturating_sub(before.get(k).copied().unwrap_or(0)),
            )
        })
        .filter(|(_, n)| *n > 0)
        .collect()
}

impl Observed {
    /// Between `before` and `after`, the end of the run; devices until `drained`.
    pub fn between(before: &Counters, after: &Counters, drained: &Counters) -> Self {
        let seconds = |a: Duration, b: Duration| b.saturating_sub(a).as_secs_f64();
        let mut o = Self {
            machine_cpu_s: seconds(before.machine.busy, after.machine.busy),
            stolen_cpu_s: seconds(before.machine.stolen, after.machine.stolen),
            own_cpu_s: seconds(before.own, after.own),
            daemon_cpu_s: before.daemon.zip(after.daemon).map(|(b, a)| seconds(b, a)),
            ..Self::default()
        };
        if let (Some(b), Some(a), Some(d)) = (&before.status, &after.status, &drained.status) {
            o.messages = Some(a.requests().saturating_sub(b.requests()));
            o.messages_by_opcode = growth(&b.messages, &a.messages);
            o.counters = growth(&b.counters, &a.counters);
            o.device_written = Some(d.device_bytes().saturating_sub(b.device_bytes()));
            let staged = o.counters.get("blocks_staged").copied().unwrap_or(0);
            if b.slots > 0 {
                o.staging_wraps = Some(staged as f64 / b.slots as f64);
                o.staging_used_before = Some(b.slots_used as f64 / b.slots as f64);
            }
        }
        // Of a volume that is a device this says more than the daemon, which does not count what its region writes.
        if let (Some(b), Some(a), Some(d)) = (before.device, after.device, drained.device) {
            o.device_written = Some(d.written.saturating_sub(b.written));
            o.device_read = Some(d.read.saturating_sub(b.read));
            o.device_writes = Some(a.writes.saturating_sub(b.writes));
            o.device_flushes = Some(a.flushes.saturating_sub(b.flushes));
        }
        o
    }
}

/// How often a waiting mount is asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Has the file system write everything that it still owes its device, and returns whether it has.
/// A kernel file system does so when asked. QuayFS is not asked by `syncfs`, but empties its staging
/// area when it is idle; that is waited for, at most `patience`.
///
/// # Errors
/// What the file system said.
pub fn await_idle(target: &Target, patience: Duration) -> Result<bool> {
    rustix::fs::syncfs(target.dir()).map_err(|errno| Error::Call {
        call: "syncfs",
        path: target.path.clone(),
        errno,
    })?;
    let end = Instant::now() + patience;
    loop {
        match status(&target.mount_point)? {
            None => return Ok(true),
            Some((s, _)) if s.slots_used == 0 => return Ok(true),
            Some(_) if Instant::now() >= end => return Ok(false),
            Some(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The most memory that a process has had, in bytes.
pub fn peak_memory(pid: i32) -> Option<u64> {
    let status = Process::new(pid).ok()?.status().ok()?;
    status.vmhwm.map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_statistics_are_read() {
        let text = "  100  1  2048  3  200  4  8192  5  0  6  7 0 0 0 0 8 9\n";
        let device = parse_device(text).unwrap();
        assert_eq!((device.read, device.written), (2048 * 512, 8192 * 512));
        assert_eq!((device.writes, device.flushes), (200, 8));
        assert_eq!(parse_device("1 2 3"), None);
        assert_eq!(parse_device("a b c d e f g"), None);
    }

    /// With a device that has made so many flushes, twice as many writes, and of bytes a hundred times as many.
    fn counters(status: serde_json::Value, cpu: u64, flushes: Option<u64>) -> Counters {
        Counters {
            status: serde_json::from_value(status).unwrap(),
            daemon: Some(Duration::from_secs(cpu)),
            device: flushes.map(|flushes| Device {
                read: 0,
                written: 100 * flushes,
                writes: 2 * flushes,
                flushes,
            }),
            machine: CpuTime {
                busy: Duration::from_secs(2 * cpu),
                stolen: Duration::from_secs(1),
            },
            own: Duration::from_secs(cpu),
        }
    }

    #[test]
    fn growth_of_everything() {
        let status = |requests, staged, device, write| {
            serde_json::json!({
                "pid": 1, "slots": 1000, "slots_used": 250, "surprise": [1, 2],
                "counters": {
                    "requests": requests, "blocks_staged": staged, "device_bytes": device,
                    "commits": 7, "later": { "x": 1 },
                },
                "messages": { "WRITE": write, "FSYNC": 3 },
            })
        };
        let before = counters(status(10, 100, 0, 5), 3, None);
        let after = counters(status(30, 1600, 4096, 24), 5, None);
        let drained = counters(status(40, 1700, 40960, 34), 6, None);
        let o = Observed::between(&before, &after, &drained);
        // Messages by opcode say more than the counter.
        assert_eq!(o.messages, Some(19));
        assert_eq!(o.messages_by_opcode, BTreeMap::from([("WRITE".into(), 19)]));
        assert_eq!(o.counters["requests"], 20);
        assert!(!o.counters.contains_key("commits"));
        assert_eq!(o.staging_wraps, Some(1.5));
        assert_eq!(o.staging_used_before, Some(0.25));
        assert_eq!(o.device_written, Some(40960));
        assert_eq!((o.daemon_cpu_s, o.machine_cpu_s), (Some(2.0), 4.0));
        assert_eq!(o.stolen_cpu_s, 0.0);
    }

    #[test]
    fn a_daemon_that_tells_less() {
        let status = |requests, written| serde_json::json!({ "counters": { "requests": requests, "blocks_written": written } });
        let (a, b) = (
            counters(status(1, 2), 0, None),
            counters(status(9, 5), 0, None),
        );
        let o = Observed::between(&a, &b, &b);
        assert_eq!((o.messages, o.device_written), (Some(8), Some(3 * 4096)));
        assert_eq!((o.staging_wraps, o.device_flushes), (None, None));
        let none = |flushes| counters(serde_json::Value::Null, 0, Some(flushes));
        let o = Observed::between(&none(100), &none(200), &none(612));
        assert_eq!((o.messages, o.device_written), (None, Some(51_200)));
        assert_eq!((o.device_writes, o.device_flushes), (Some(200), Some(100)));
    }

    #[test]
    fn a_volume_on_a_device_is_counted_as_any_other_on_one() {
        let status = |bytes| serde_json::json!({ "counters": { "device_bytes": bytes } });
        let (a, b) = (
            counters(status(0), 0, Some(1)),
            counters(status(8), 0, Some(3)),
        );
        let o = Observed::between(&a, &b, &b);
        assert_eq!((o.device_written, o.device_flushes), (Some(200), Some(2)));
    }
}
