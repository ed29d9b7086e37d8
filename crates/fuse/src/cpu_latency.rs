//! Keeps idle CPUs from halting while requests follow each other closely.
//!
//! When a request has been answered on its own CPU, the thread that asked is woken, and Linux likes to wake
//! it on an idle CPU. In a virtual machine an idle CPU has halted, and getting it to run again takes longer
//! than everything else: a synchronous 4 KiB write takes 32 us instead of 12. So while requests come fast,
//! and no longer than that, the kernel is asked to let idle CPUs poll (PM QoS, `/dev/cpu_dma_latency`,
//! `Documentation/power/pm_qos_interface.rst`).

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::stats::Stats;

/// How often requests are counted while some come.
const TICK: Duration = Duration::from_millis(5);
/// Requests within a tick that make it worth while: 4,000 a second.
const FAST: u64 = 20;
/// Ticks without that many after which CPUs may halt again.
const PATIENCE: u32 = 4;
/// Ticks without a request after which counting stops until one comes.
const IDLE: u32 = 40;

/// The request to the kernel, as a file that lasts as long as it is open.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// When CPUs are to poll.
#[derive(Debug, Default)]
pub(crate) struct CpuLatency {
    /// Requests are not being counted: a thread that gets one says so.
    asleep: AtomicBool,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl CpuLatency {
    /// A request has come.
    pub(crate) fn notice(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            let _held = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_one();
        }
    }

    /// No more requests will come.
    pub(crate) fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
    }

    /// Counts until the end.
    pub(crate) fn run(&self, stats: &Stats, mut hold: impl FnMut() -> io::Result<File>) {
        let mut held = None;
        let mut pace = Pace::default();
        let mut before = stats.total();
        loop {
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = if pace.is_idle() {
                self.asleep.store(true, Ordering::Release);
                // What came before that was seen is counted in the next tick.
                if stats.total() == before {
                    None
                } else {
                    Some(TICK)
                }
            } else {
                Some(TICK)
            };
            let ended = match wait {
                Some(tick) => {
                    let waited = self.wake.wait_timeout_while(ended, tick, |ended| !*ended);
                    *waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let asleep = |ended: &mut bool| !*ended && self.asleep.load(Ordering::Acquire);
                    *self
                        .wake
                        .wait_while(ended, asleep)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            };
            if ended {
                return;
            }
            self.asleep.store(false, Ordering::Release);
            let now = stats.total();
            match (pace.tick(now - before), held.is_some()) {
                (true, false) => match hold() {
                    Ok(file) => held = Some(file),
                    Err(e) => {
                        tracing::debug!("idle CPUs will halt: {DEVICE}: {e}");
                        return;
                    }
                },
                (false, true) => held = None,
                _ => (),
            }
            before = now;
        }
    }
}

/// Asks the kernel for no latency at all. Ends when the file is closed.
pub(crate) fn hold() -> io::Result<File> {
    let mut file = File::options().write(true).open(DEVICE)?;
    file.write_all(&[0; 4])?;
    Ok(file)
}

/// Whether polling is worth while on this machine: few CPUs, which halt in a virtual machine.
pub(crate) fn is_worth_while() -> bool {
    /// More would take power and clock from those that work.
    const FEW: usize = 8;
    let few = std::thread::available_parallelism().is_ok_and(|n| n.get() <= FEW);
    few && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| is_virtual(&text))
}

/// Whether this text of `/proc/cpuinfo` is that of a virtual machine.
fn is_virtual(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|l| l.starts_with("flags"))
        .any(|l| l.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// How fast requests come.
#[derive(Debug, Default)]
struct Pace {
    fast: bool,
    /// Ticks in a row without enough, and without any.
    slow: u32,
    silent: u32,
}

impl Pace {
    /// Whether CPUs are to poll, after a tick with `n` requests.
    fn tick(&mut self, n: u64) -> bool {
        self.silent = if n == 0 { self.silent + 1 } else { 0 };
        if n >= FAST {
            (self.fast, self.slow) = (true, 0);
        } else {
            self.slow += 1;
            self.fast &= self.slow < PATIENCE;
        }
        self.fast
    }

    fn is_idle(&self) -> bool {
        self.silent >= IDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    #[test]
    fn pauses_are_bridged_and_silence_ends_it() {
        let mut pace = Pace::default();
        assert!(!pace.tick(FAST - 1));
        assert!(pace.tick(FAST));
        for _ in 1..PATIENCE {
            assert!(pace.tick(1));
        }
        assert!(!pace.tick(1));
        assert!(pace.tick(FAST));
        for _ in 0..IDLE {
            assert!(!pace.is_idle());
            pace.tick(0);
        }
        assert!(pace.is_idle());
        pace.tick(1);
        assert!(!pace.is_idle());
    }

    #[test]
    fn virtual_machines_say_so() {
        assert!(is_virtual("flags\t\t: fpu vme hypervisor lm\n"));
        assert!(!is_virtual(
            "flags\t\t: fpu vme lm\nmodel name : hypervisor\n"
        ));
    }

    /// Holds, lets go when nothing comes, sleeps, and is woken by the next request.
    #[test]
    fn it_follows_the_requests() {
        let (awake, stats) = (Arc::new(CpuLatency::default()), Arc::new(Stats::default()));
        let tally = stats.tally();
        let held = Arc::new(AtomicU64::new(0));
        let watcher = {
            let (awake, stats, held) = (awake.clone(), stats.clone(), held.clone());
            thread::spawn(move || {
                awake.run(&stats, || {
                    held.fetch_add(1, Ordering::AcqRel);
                    File::open("/dev/null")
                });
            })
        };
        let rounds = 2;
        for round in 1..=rounds {
            while held.load(Ordering::Acquire) < round {
                tally.count(1);
                awake.notice();
            }
            while !awake.asleep.load(Ordering::Acquire) {
                thread::sleep(TICK);
            }
        }
        awake.end();
        watcher.join().unwrap();
        assert_eq!(held.load(Ordering::Acquire), rounds);
    }
}
