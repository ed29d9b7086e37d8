//! What was seen, as the table of docs/internals/crash-consistency.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use quayfs_store::error::FsError;

use super::life::End;

/// Rows: a kind of call, and the step it belongs to. Columns: faults. Cells: outcomes, each with
/// the modes that have it.
#[derive(Default)]
pub struct Table {
    cells: BTreeMap<(usize, &'static str), BTreeMap<usize, Outcomes>>,
}

type Outcomes = BTreeMap<&'static str, BTreeSet<&'static str>>;

const CALLS: [&str; 5] = ["read", "write", "flush", "discard", "pmem drain"];

/// What the caller of a step gets, and what becomes of the mount.
fn outcome(end: &End, label: &str) -> &'static str {
    match (&end.error, end.read_only) {
        (None, false) => "nothing",
        (None, true) => "read-only",
        (Some(e), _) if e.is_io() && matches!(label, "mount" | "recovery") => "not mounted",
        (Some(e), _) if e.is_io() && label == "unmount" => "not clean",
        (Some(e), false) if e.is_io() => "error",
        (Some(e), true) if e.is_io() => "error, read-only",
        (Some(FsError::ReadOnly), true) => "refused, read-only",
        other => panic!("{label}: {other:?}"),
    }
}

impl Table {
    pub fn add(
        &mut self,
        call: usize,
        label: &'static str,
        fault: usize,
        end: &End,
        mode: &'static str,
    ) {
        let row = self.cells.entry((call, label)).or_default();
        let cell = row.entry(fault).or_default();
        cell.entry(outcome(end, label)).or_default().insert(mode);
    }

    pub fn merge(&mut self, other: Self) {
        for (row, cells) in other.cells {
            for (fault, outcomes) in cells {
                let mine = self.cells.entry(row).or_default().entry(fault).or_default();
                for (what, modes) in outcomes {
                    mine.entry(what).or_default().extend(modes);
                }
            }
        }
    }

    /// The rows of calls `from..to`, under columns for `faults`.
    fn part(&self, out: &mut String, calls: std::ops::Range<usize>, faults: &[&str]) {
        let _ = writeln!(out, "| call | during | {} |", faults.join(" | "));
        let _ = writeln!(out, "|---|---|{}", "---|".repeat(faults.len()));
        for call in calls {
            let mut rows = self.cells.range((call, "")..(call + 1, "")).peekable();
            if rows.peek().is_none() {
                let none = " – |".repeat(faults.len());
                let _ = writeln!(out, "| {} | never called |{none}", CALLS[call]);
            }
            for ((_, label), cells) in rows {
                let _ = write!(out, "| {} | {label} |", CALLS[call]);
                for fault in 0..faults.len() {
                    let text = cells.get(&fault).map_or("–".into(), cell);
                    let _ = write!(out, " {text} |");
                }
                out.push('\n');
            }
        }
    }

    pub fn text(&self, faults: &[&str]) -> String {
        let mut out = String::new();
        self.part(&mut out, 0..4, faults);
        out.push('\n');
        self.part(&mut out, 4..5, &["fails, and all later ones"]);
        out
    }
}

fn cell(outcomes: &Outcomes) -> String {
    if let [(only, _)] = outcomes.iter().collect::<Vec<_>>()[..] {
        return (*only).to_string();
    }
    let each = outcomes.iter().map(|(what, modes)| {
        let modes: Vec<_> = modes.iter().copied().collect();
        format!("{what} ({})", modes.join(", "))
    });
    each.collect::<Vec<_>>().join("; ")
}
