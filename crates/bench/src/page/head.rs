//! The head of a page: what measured, where, when and how.

use super::Source;
use super::sets::{Context, differences, pinned};
use crate::report::Report;
use crate::table::mount_facts;
use maud::{Markup, html};
use std::time::{Duration, UNIX_EPOCH};

/// Years of more than four digits have no date.
const LAST_SECOND: u64 = 253_402_300_799;

/// `commit 1234567`, or that it is not known.
pub fn commit(r: &Report) -> String {
    match &r.commit {
        Some(commit) => format!("commit {commit}"),
        None => "commit unknown".into(),
    }
}

/// Numbers as readers see them: `report 3`, `reports 1, 2`.
pub fn reports(numbers: impl Iterator<Item = usize>) -> String {
    let all: Vec<String> = numbers.map(|n| (n + 1).to_string()).collect();
    let s = if all.len() == 1 { "" } else { "s" };
    format!("report{s} {}", enumerated(&all))
}

/// `1`, `1 and 2`, `1, 2 and 4`.
pub fn enumerated(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The title of the page.
pub fn title(contexts: &[Context<'_>]) -> String {
    let all = distinct(contexts.iter().map(|c| commit(c.first)));
    match &all[..] {
        [] => "Benchmarks".into(),
        all => format!("Benchmarks of {}", enumerated(all)),
    }
}

fn distinct(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut out = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

/// Seconds since 1970 as a date in UTC.
fn date(seconds: u64) -> String {
    if seconds > LAST_SECOND {
        return format!("{seconds} s since 1970");
    }
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// A word of a command line that a shell would take.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command line. Options are not broken at their dashes.
fn command(words: &[String]) -> Markup {
    html! {
        code {
            @for (n, word) in words.iter().enumerate() {
                @if n > 0 { " " }
                @if word.starts_with('-') { span.option { (quoted(word)) } } @else { (quoted(word)) }
            }
        }
    }
}

fn bytes(n: u64) -> String {
    let gib = n as f64 / f64::from(1 << 30);
    if gib >= 10.0 {
        format!("{gib:.0} GiB")
    } else if gib >= 1.0 {
        format!("{gib:.1} GiB")
    } else {
        format!("{:.0} MiB", gib * 1024.0)
    }
}

/// All of it.
pub fn head(sources: &[Source], contexts: &[Context<'_>]) -> Markup {
    html! {
        h1 { (title(contexts)) }
        (warnings(sources, contexts))
        @for c in contexts { (context(c, sources)) }
    }
}

fn differing(contexts: &[Context<'_>]) -> Vec<String> {
    let pairs = contexts.windows(2);
    let all = pairs.flat_map(|w| differences(w[0].first, w[1].first));
    distinct(all.map(str::to_owned))
}

/// What a reader must not overlook.
fn warnings(sources: &[Source], contexts: &[Context<'_>]) -> Markup {
    let numbered = || sources.iter().enumerate();
    let unknown: Vec<usize> = numbered()
        .filter(|(_, s)| s.report.commit.is_none())
        .map(|(n, _)| n)
        .collect();
    html! {
        @if contexts.len() > 1 {
            p.warn {
                "These benchmarks differ in " (enumerated(&differing(contexts))) ":"
                @for (n, c) in contexts.iter().enumerate() {
                    @if n > 0 { ";" }
                    " " b { (commit(c.first)) } " on Linux " (c.first.machine.kernel) ", "
                    (reports(c.members.iter().copied()))
                }
                ". Each has plots of its own. Compare ratios, not figures of one with those of another."
            }
        }
        @if !unknown.is_empty() {
            p.warn {
                "No commit is stored in " (reports(unknown.iter().copied()))
                ": it is not known whether they are of the same program."
            }
        }
        @for (n, s) in numbered() {
            @if let Some(failure) = &s.report.failure {
                p.warn { "The benchmark of " (reports(std::iter::once(n))) " ended early: " b { (failure) } }
            }
            @if s.report.workloads.is_empty() {
                p.warn { "Nothing was measured in " (reports(std::iter::once(n))) "." }
            }
        }
    }
}

fn context(c: &Context<'_>, sources: &[Source]) -> Markup {
    let r = c.first;
    let m = &r.machine;
    let members = || c.members.iter().map(|n| (*n, &sources[*n]));
    let mut clocks: Vec<u64> = members().map(|(_, s)| s.report.machine.clock_ns).collect();
    clocks.sort_unstable();
    let clock = match &clocks[..] {
        [only] => only.to_string(),
        [least, .., most] if least != most => format!("{least} to {most}"),
        _ => clocks[0].to_string(),
    };
    html! {
        h2 { (commit(r)) ", Linux " (m.kernel) }
        p {
            "quayfs " (r.version) " (" (commit(r)) ") on " (m.cpus) " x " (m.cpu) ", "
            (bytes(m.memory_bytes)) " of memory, Linux " (m.kernel) " (" (m.kernel_version) "), "
            @if m.root { "measured by root" } @else { "not measured by root: caches were kept" }
            @if pinned(r) { ", threads bound to CPUs" }
            @for limit in &m.io_limits { ", disk limited: " (limit) }
            ". The clock and the histogram add " (clock) " ns to each operation."
        }
        dl.facts {
            @for t in &r.targets {
                dt { (t.label) }
                dd {
                    (t.fstype) " on " (t.source) ", " (bytes(t.total_bytes)) ", " (t.options)
                    @for fact in mount_facts(t) { "; " (fact) }
                }
            }
            @for (n, s) in members() {
                dt { (reports(std::iter::once(n))) }
                dd {
                    @if let Some(name) = &s.name { b { (name) } ": " }
                    (s.file) ", " (date(s.report.began)) ": "
                    (command(&s.report.command))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_sizes() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_795_341_835), "2026-11-22 10:03:55 UTC");
        assert_eq!(date(LAST_SECOND), "9999-12-31 23:59:59 UTC");
        assert_eq!(date(u64::MAX), "18446744073709551615 s since 1970");
        assert_eq!(bytes(25_276_514_304), "24 GiB");
        assert_eq!(
            (bytes(3 << 29), bytes(5 << 20)),
            ("1.5 GiB".into(), "5 MiB".into())
        );
    }

    #[test]
    fn enumerations() {
        let all = |n: usize| reports(0..n);
        assert_eq!(
            (&*all(1), &*all(2), &*all(3)),
            ("report 1", "reports 1 and 2", "reports 1, 2 and 3")
        );
    }

    #[test]
    fn commands_can_be_pasted() {
        let words = ["a/b", "--dir", "x y=/m", "it's", ""].map(str::to_owned);
        let text = "<code>a/b <span class=\"option\">--dir</span> 'x y=/m' 'it'\\''s' ''</code>";
        assert_eq!(command(&words).0, text);
    }
}
