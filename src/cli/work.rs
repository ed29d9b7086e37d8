//! What a process has done so far, as far as `/proc` shows it: a daemon that does not answer may be stuck, or busy.

use procfs::process::Process;

/// Threads of a daemon that work while it gets no further: they say so.
const TELLERS: [&str; 2] = ["closing", "log"];

/// Processor time of its user and system parts together in ticks, and bytes read and written where this process may see
/// them.
pub fn done_by(pid: i32) -> Option<[u64; 3]> {
    let process = Process::new(pid).ok()?;
    let mut done = [0; 3];
    for task in process.tasks().ok()?.flatten() {
        // A task that has ended meanwhile is progress.
        let Ok(stat) = task.stat() else { continue };
        if TELLERS.contains(&&*stat.comm) {
            continue;
        }
        done[0] += stat.utime + stat.stime;
        if let Ok(io) = task.io() {
            done[1] += io.read_bytes;
            done[2] += io.write_bytes;
        }
    }
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A process whose one thread computes all the time, under this name.
    struct Busy(Child);

    impl Busy {
        fn new(name: &str) -> Self {
            let words = "import ctypes, sys\n\
                ctypes.CDLL(None).prctl(15, sys.argv[1].encode())\n\
                while True: pass";
            let child = Command::new("python3").args(["-c", words, name]).spawn();
            let busy = Self(child.unwrap());
            while busy.process().stat().unwrap().comm != name {
                std::thread::yield_now();
            }
            busy
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn process(&self) -> Process {
            Process::new(self.pid()).unwrap()
        }

        /// Waits until it has had some more processor time.
        fn computes(&self) {
            let time = || self.process().stat().unwrap().utime;
            let before = time();
            while time() < before + 5 {
                std::thread::yield_now();
            }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn to_say_that_nothing_moves_is_no_progress() {
        for name in TELLERS {
            let teller = Busy::new(name);
            let before = done_by(teller.pid());
            teller.computes();
            assert_eq!(done_by(teller.pid()), before, "{name}");
        }
        let other = Busy::new("other");
        let before = done_by(other.pid());
        other.computes();
        assert_ne!(done_by(other.pid()), before);
    }
}
