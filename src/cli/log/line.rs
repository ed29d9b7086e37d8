//! Lines of the log.

use std::borrow::Cow;
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

/// A line without its colours: of what was said nothing is left that a terminal obeys.
pub(super) fn plain(line: &str) -> Cow<'_, str> {
    if !line.contains('\x1b') {
        return line.into();
    }
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_string();
    let behind = |part: &'_ str| {
        part.split_once('m')
            .map_or("", |(_, rest)| rest)
            .to_string()
    };
    parts
        .map(behind)
        .fold(first, |all, part| all + &part)
        .into()
}
