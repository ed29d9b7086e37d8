//! What a command says that a signal ends in the middle of its work. That is safe at each moment; but what is so then is not
//! what was asked for.

use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::exit::{Failure, PROGRAM};

/// From here on such a signal has this line said, and ends the process with this exit code.
///
/// # Errors
/// No thread can be started.
pub fn says(code: u8, line: String) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Failure::with(code))?;
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
