//! Spans, dates and shares as people read them.

use super::draining::Closing;
use crate::mount::server::Left;
use quayfs_options::format_size;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a daemon has still to do, as it is told everywhere: `1.2 GiB left, 8 s`.
pub fn left_text(left: Left) -> String {
    let size = format_size(left.bytes);
    match left.seconds() {
        Some(seconds) => format!("{size} left, {}", span(seconds)),
        None => format!("{size} left"),
    }
}

/// That a volume is being closed, and how far that is: what follows its name.
pub fn closing_text(closing: Closing) -> String {
    let closed = "is unmounted and being closed";
    let process = |pid: Option<i32>| pid.map_or(String::new(), |pid| format!(", process {pid}"));
    match closing {
        Closing::Left(left) => format!("{closed}: {}", left_text(left)),
        Closing::Untold => closed.into(),
        Closing::Stopped(pid) => {
            format!("{closed} by a daemon that is stopped (SIGSTOP or a debugger), process {pid}")
        }
        Closing::Silent(pid) => {
            format!("{closed} by a daemon that does not answer{}", process(pid))
        }
    }
}

/// For how many seconds a moment has passed, which is in seconds since 1970.
pub fn seconds_since(time: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs().saturating_sub(time)
}

/// A span in its two largest units: `3 d 4 h`, `2 min`, `0 s`.
pub fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let Some(at) = UNITS.iter().position(|(n, _)| seconds >= *n) else {
        return "0 s".into();
    };
    let (n, unit) = UNITS[at];
    let whole = format!("{} {unit}", seconds / n);
    match UNITS.get(at + 1) {
        Some((m, unit)) if seconds % n / m > 0 => format!("{whole} {} {unit}", seconds % n / m),
        _ => whole,
    }
}

/// A moment, given in seconds since 1970, as date and time of day.
pub fn date(seconds: u64) -> String {
    // Beyond that no date can be told: year 9999.
    const LAST: u64 = 253_402_300_799;
    let then = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    let text = humantime::format_rfc3339_seconds(then).to_string();
    format!("{} UTC", text.trim_end_matches('Z').replace('T', " "))
}

/// How much of a whole that is, in percent. Never 100 while there is something left, nor 0 while there is something.
pub fn percent(part: u64, whole: u64) -> String {
    let exact = part as f64 * 100.0 / whole.max(1) as f64;
    match exact {
        _ if part == 0 => "0%".into(),
        _ if exact < 1.0 => "<1%".into(),
        _ if part < whole && exact > 99.0 => ">99%".into(),
        _ => format!("{exact:.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_with_the_time_that_it_takes() {
        let text = |bytes, rate| left_text(Left { bytes, rate });
        assert_eq!(text(1229 << 20, 160 << 20), "1.2 GiB left, 8 s");
        assert_eq!(text(4096, 0), "4 KiB left");
        assert_eq!(text(0, 0), "0 B left, 0 s");
    }

    #[test]
    fn a_volume_that_is_being_closed_says_by_whom_it_is_not() {
        let left = Left {
            bytes: 4096,
            rate: 0,
        };
        for (closing, about) in [
            (Closing::Left(left), "being closed: 4 KiB left"),
            (Closing::Untold, "is unmounted and being closed"),
            (
                Closing::Stopped(7),
                "stopped (SIGSTOP or a debugger), process 7",
            ),
            (Closing::Silent(Some(7)), "does not answer, process 7"),
            (Closing::Silent(None), "does not answer"),
        ] {
            assert!(closing_text(closing).ends_with(about), "{closing:?}");
        }
    }

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (3659, "1 h"),
            (2 * 86_400 + 5 * 3600 + 59 * 60, "2 d 5 h"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn dates_are_told_in_full() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        // 30 years, 7 of them with a 29th of February.
        assert_eq!(
            date((30 * 365 + 7) * 86_400 + 61),
            "2000-01-01 00:01:01 UTC"
        );
        assert!(date(u64::MAX).starts_with("9999-12-31"));
    }

    #[test]
    fn shares_do_not_hide_what_is_there() {
        for (part, whole, text) in [
            (0, 0, "0%"),
            (0, 10, "0%"),
            (1, 1000, "<1%"),
            (1, 2, "50%"),
            (999, 1000, ">99%"),
            (1000, 1000, "100%"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }
}
