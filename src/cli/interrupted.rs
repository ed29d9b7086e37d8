//! What a command says that a signal ends in the middle of its work. That is safe at each moment; but what is so then is not
//! what was asked for.

use std::thread;

use procfs::process::Process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::exit::{Failure, PROGRAM};

/// From here on such a signal has this line said, and ends the process with this exit code; unless the process has been told
/// to ignore it, as by nohup(1).
///
/// # Errors
/// No thread can be started.
pub fn says(code: u8, line: String) -> Result<(), Failure> {
    let mut signals = Signals::new(heeded()).map_err(Failure::with(code))?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            let line = format!("interrupted (signal {signal}): {line}");
            Failure::new(code, line).report(PROGRAM);
            std::process::exit(code.into());
        }
    };
    let started = thread::Builder::new().name("signals".into()).spawn(wait);
    started.map(drop).map_err(Failure::with(code))
}

/// The signals that ask for the end of a command, but for those that the process has been told to ignore.
pub fn heeded() -> Vec<i32> {
    let ignored = Process::myself()
        .and_then(|process| process.status())
        .map_or(0, |status| status.sigign);
    let all = [SIGHUP, SIGINT, SIGTERM].into_iter();
    all.filter(|n| ignored >> (n - 1) & 1 == 0).collect()
}
