//! Lines of the log.

use std::fmt::Write as _;

use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// A line of the log, with its end.
pub(super) fn written(level: Level, text: &str, coloured: bool) -> String {
    let mut line = String::with_capacity(text.len() + 48);
    // The time is all that could be wrong, and a line without it is better than none.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let colour = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        _ => 34,
    };
    let _ = if coloured {
        writeln!(line, " \x1b[{colour}m{level:>5}\x1b[0m {text}")
    } else {
        writeln!(line, " {level:>5} {text}")
    };
    line
}
