//! Shows how far something is that takes its time: on a terminal a bar, elsewhere a line now and then, both on the
//! standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quayfs_options::format_size;
use quayfs_shown::count;
use quayfs_shown::progress::{Look, Meter, Unit};

use super::exit::PROGRAM;
use super::units::span;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What is over sooner is not worth a bar.
const SOON: Duration = Duration::from_secs(1);
/// How often the bar moves.
const MOVES: Duration = Duration::from_millis(100);
/// How often there is a line. What is over sooner has none.
const LINES: Duration = Duration::from_secs(10);

/// Shows it until this is dropped.
#[derive(Debug)]
pub struct Progress {
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins to show what the meter says, unless it is to be `quiet`. Without a thread to spare nothing is shown.
    pub fn of(meter: &Arc<Meter>, quiet: bool) -> Self {
        let meter = Arc::clone(meter);
        let start = || {
            let (end, ended) = channel();
            let body = move || {
                show(&meter, |pause| {
                    ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
                })
            };
            let thread = thread::Builder::new().name("progress".into()).spawn(body);
            Some((end, thread.ok()?))
        };
        Self {
            shown: (!quiet).then(start).flatten(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.shown.take() {
            drop(end);
            // What it had to show has been seen.
            let _ = thread.join();
        }
    }
}

/// `waits` for so long, and says whether there is more to come.
fn show(meter: &Meter, waits: impl Fn(Duration) -> bool) {
    match stderr().is_terminal() {
        true if waits(SOON) => bar(meter, waits),
        true => {}
        false => lines(meter, waits, &mut stderr()),
    }
}

fn bar(meter: &Meter, waits: impl Fn(Duration) -> bool) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = |template: &str| {
        let style = ProgressStyle::with_template(template);
        style.unwrap_or_else(|_| ProgressStyle::default_bar())
    };
    let known = style("{prefix} [{bar:24}] {percent}% {wide_msg}").progress_chars("=> ");
    let unknown = style("{prefix} {wide_msg}");
    loop {
        if let Some(look) = meter.look() {
            match look.total {
                0 => {
                    bar.set_style(unknown.clone());
                    bar.unset_length();
                }
                total => {
                    bar.set_style(known.clone());
                    bar.set_length(total);
                }
            }
            bar.set_prefix(quayfs_shown::text(&look.what));
            bar.set_position(look.done);
            bar.set_message(text(&look));
            bar.tick();
        }
        if !waits(MOVES) {
            break bar.finish_and_clear();
        }
    }
}

fn lines(meter: &Meter, waits: impl Fn(Duration) -> bool, to: &mut impl Write) {
    while waits(LINES) {
        if let Some(look) = meter.look() {
            let what = quayfs_shown::text(&look.what);
            // If that fails, there is nothing left to tell.
            let _ = writeln!(to, "{PROGRAM}: {what}: {}", text(&look));
        }
    }
}

/// How far it is, in words: `1.2 GiB left of 3 GiB, 150 MiB/s, 8 s`.
pub fn text(look: &Look) -> String {
    let amount = |n: u64| match look.unit {
        Unit::Bytes => format_size(n),
        Unit::Things(one) => count(n, one),
    };
    let per_second = match look.unit {
        Unit::Bytes => format!("{}/s", format_size(look.rate())),
        Unit::Things(_) => format!("{}/s", look.rate()),
    };
    let Some(left) = look.left() else {
        return match look.done {
            0 => format!("{} so far", span(look.took.as_secs())),
            done => format!("{} so far, {per_second}", amount(done)),
        };
    };
    let all = match look.unit {
        Unit::Bytes => format_size(look.total),
        Unit::Things(_) => look.total.to_string(),
    };
    match look.seconds_left() {
        Some(seconds) => format!(
            "{} left of {all}, {per_second}, {}",
            amount(left),
            span(seconds)
        ),
        None => format!("{} left of {all}", amount(left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn look(done: u64, total: u64, unit: Unit) -> Look {
        Look {
            number: 1,
            what: "draining".into(),
            total,
            done,
            unit,
            took: Duration::from_secs(4),
        }
    }

    #[test]
    fn words_say_what_is_left_how_fast_and_how_long() {
        let files = Unit::Things("file");
        for (look, said) in [
            (
                look(4 << 20, 12 << 20, Unit::Bytes),
                "8 MiB left of 12 MiB, 1 MiB/s, 8 s",
            ),
            (look(0, 12 << 20, Unit::Bytes), "12 MiB left of 12 MiB"),
            (look(8, 9, files), "1 file left of 9, 2/s, 1 s"),
            (look(8, 0, files), "8 files so far, 2/s"),
            (look(0, 0, files), "4 s so far"),
        ] {
            assert_eq!(text(&look), said);
        }
    }

    /// `make pictures` makes it anew.
    #[test]
    fn the_picture_in_the_documents_has_such_a_bar() {
        let picture = include_str!("../../docs/pictures/progress.svg");
        let (_, described) = picture.split_once("<desc>").unwrap();
        let shown = described.lines().nth(1).unwrap();
        let shown = shown.split("</desc>").next().unwrap();
        let (bar, words) = shown.split_once("% ").unwrap();
        assert!(
            bar.starts_with("verifying [=") && bar.contains("&gt; "),
            "{bar}"
        );
        let shape = |text: &str| -> Vec<String> {
            let number = |c: char| c.is_ascii_digit() || c == '.';
            text.split(' ')
                .map(|word| word.trim_matches(number).into())
                .collect()
        };
        let like = text(&look(4 << 20, 12 << 20, Unit::Bytes));
        assert_eq!(shape(words), shape(&like), "{words}");
    }

    #[test]
    fn there_is_a_line_now_and_then_and_none_of_what_is_over_soon() {
        let meter = Meter::default();
        let turn = Cell::new(0);
        let mut out = Vec::new();
        // Nothing is known yet, then there is one part, and another one.
        let waits = |pause| {
            assert_eq!(pause, LINES);
            turn.set(turn.get() + 1);
            match turn.get() {
                2 => meter.begin("reading", 0, Unit::Bytes),
                3 => meter.begin("a\nb", 4096, Unit::Bytes),
                _ => {}
            }
            turn.get() < 4
        };
        lines(&meter, waits, &mut out);
        let text = String::from_utf8(out).unwrap();
        let all: Vec<_> = text.lines().collect();
        assert_eq!(all.len(), 2, "{text}");
        assert!(all[0].starts_with("quayfs: reading: "), "{text}");
        assert_eq!(all[1], "quayfs: a\\nb: 4 KiB left of 4 KiB");
        let mut out = Vec::new();
        lines(&meter, |_| false, &mut out);
        assert!(out.is_empty());
    }
}
