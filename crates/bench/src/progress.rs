//! A line on the terminal that says how far a benchmark is.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// The line; nothing is drawn where standard error is not a terminal.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// For this number of runs.
    pub fn new(runs: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(runs), ProgressDrawTarget::stderr());
        let template = "{elapsed_precise} {wide_bar} {pos}/{len} {msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        // Once a second: it must not take part in what is measured.
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    /// None at all.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// What is being done.
    pub fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// A run is over.
    pub fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
