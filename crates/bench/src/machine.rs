//! The machine and the program that measured.

use crate::error::{Error, Result};
use procfs::{CpuInfo, Current, CurrentSI, KernelStats};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;

/// What a figure depends on besides the file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Kernel version: how and when it was built.
    pub kernel_version: String,
    /// Processor.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Whether root measured: caches were dropped.
    pub root: bool,
    /// What the clock and the histogram add to an operation, in nanoseconds.
    pub clock_ns: u64,
    /// What the control group of this process may have of disks: a line each as in `io.max` of cgroup v2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub io_limits: Vec<String>,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let uname = rustix::system::uname();
        let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
        let cpu = CpuInfo::current()
            .ok()
            .and_then(|c| c.model_name(0).map(str::to_owned));
        Self {
            kernel: text(uname.release()),
            kernel_version: text(uname.version()),
            cpu: cpu.unwrap_or_else(|| text(uname.machine())),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            memory_bytes: quayfs_limits::of_machine(),
            root: rustix::process::geteuid().is_root(),
            clock_ns: crate::meter::clock_cost(),
            io_limits: quayfs_limits::of_disks(),
        }
    }
}

/// CPU time of the whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// Time that CPUs were busy, in all modes.
    pub busy: Duration,
    /// Time that a hypervisor gave to others.
    pub stolen: Duration,
}

impl CpuTime {
    /// Until now.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn now() -> Result<Self> {
        let stats = KernelStats::current().map_err(proc_error("/proc/stat"))?;
        let t = stats.total;
        let ms = t.user_ms()
            + t.nice_ms()
            + t.system_ms()
            + t.irq_ms().unwrap_or(0)
            + t.softirq_ms().unwrap_or(0);
        Ok(Self {
            busy: Duration::from_millis(ms),
            stolen: Duration::from_millis(t.steal_ms().unwrap_or(0)),
        })
    }
}

/// Adapter for `map_err` that names a file of `/proc`.
pub fn proc_error(path: impl AsRef<Path>) -> impl FnOnce(procfs::ProcError) -> Error {
    move |e| Error::File {
        path: path.as_ref().into(),
        source: io::Error::other(e.to_string()),
    }
}
