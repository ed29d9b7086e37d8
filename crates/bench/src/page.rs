//! One page of HTML from stored reports: plots, the same figures in tables, and where they come from.
//!
//! The page needs nothing but itself: no scripts, no fonts, nothing from elsewhere. The same reports
//! give the same bytes.
//!
//! ```text
//! Source (a report and its file) ──► sets: what may be one line
//!                                      │ figures
//! figures of other sources ──► plot: Bars, Curves, Spreads ──► bars, curves: SVG
//!                                      └─────────────────────► the table below
//! ```
//!
//! Plots are our own few lines of SVG: crates that draw plots fix colours when they draw, and these
//! come from the reader's style, dark or light.

mod bars;
mod curves;
mod figures;
mod head;
pub mod plot;
pub mod scale;
mod sets;
mod svg;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::report::Report;
use crate::table::{counted, settings};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plot::{Plot, Table};
use scale::{Scale, logarithmic};
use sets::{Context, Set};
use std::path::Path;

/// A report, and what the page calls it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of its file, without directories: the page shall be the same wherever it is made.
    pub file: String,
    /// What the user calls it. Reports of different names are never joined.
    pub name: Option<String>,
    /// What was found.
    pub report: Report,
}

/// Plots that come from elsewhere.
#[derive(Clone, Debug)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// What a reader has to know.
    pub about: String,
    /// The plots.
    pub plots: Vec<Plot>,
}

impl Source {
    /// The name, if there is one, and the path in `FILE` or `NAME=FILE`. A name has no slash, so a file
    /// with `=` in its name can be given as `./FILE`.
    ///
    /// # Errors
    /// The name is empty.
    pub fn named(text: &str) -> Result<(Option<&str>, &Path)> {
        let (name, path) = match text.split_once('=') {
            Some(("", _)) => return Err(Error::Usage(format!("{text}: the name is empty"))),
            Some((name, path)) if !name.contains('/') => (Some(name), path),
            _ => (None, text),
        };
        Ok((name, Path::new(path)))
    }

    /// From `FILE` or `NAME=FILE`, with the path. A name has no slash, so a file with `=` in its name
    /// can be given as `./FILE`.
    ///
    /// # Errors
    /// The file is not there, or is no report.
    pub fn parse(text: &str) -> Result<(Self, &Path)> {
        let (name, path) = Self::named(text)?;
        let file = path.file_name().unwrap_or(path.as_os_str());
        let source = Self {
            report: Report::load(path)?,
            file: file.to_string_lossy().into_owned(),
            name: name.map(str::to_owned),
        };
        Ok((source, path))
    }
}

/// The page of these reports, with more plots behind theirs.
pub fn render(sources: &[Source], more: &[Section]) -> String {
    let contexts = sets::contexts(sources);
    let workloads = sets::workloads(sources);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Should anything ever get past the escaping, it loads nothing and runs nothing.
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'";
                title { (head::title(&contexts)) }
                style { (PreEscaped(include_str!("page/style.css"))) }
            }
            body {
                header { (head::head(sources, &contexts)) }
                @if workloads.len() + more.len() > 1 {
                    nav aria-label="Workloads" {
                        ul {
                            @for (n, w) in workloads.iter().enumerate() {
                                li { a href={ "#w" (n) } { (w) } }
                            }
                            @for (n, s) in more.iter().enumerate() {
                                li { a href={ "#m" (n) } { (s.title) } }
                            }
                        }
                    }
                }
                main {
                    @for (n, w) in workloads.iter().enumerate() {
                        section id={ "w" (n) } { (workload(w, sources, &contexts)) }
                    }
                    @for (n, s) in more.iter().enumerate() {
                        section id={ "m" (n) } {
                            h2 { (s.title) }
                            p { (s.about) }
                            (plots(&s.plots))
                        }
                    }
                }
                footer {
                    "Made by quayfs " (env!("CARGO_PKG_VERSION"))
                    @if more.is_empty() { " from " (counted(sources.len() as u64, "report")) }
                    "."
                }
            }
        }
    };
    let text = page.into_string() + "\n";
    // Labels may hold what neither HTML nor XML has a way to write.
    text.chars()
        .map(|c| if writable(c) { c } else { '\u{fffd}' })
        .collect()
}

fn writable(c: char) -> bool {
    c == '\n' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

fn workload(name: &str, sources: &[Source], contexts: &[Context<'_>]) -> Markup {
    let sets = sets::of(name, sources, contexts);
    let labels = sets::labels(sources);
    let mut told = "";
    let sets = sets.iter().map(|set| {
        // Another version may mean something else by the name.
        let about = &*set.parts[0].found.about;
        let again = told == about;
        told = about;
        (set, about, again)
    });
    html! {
        h2 { (name) }
        @for (set, about, again) in sets {
            @if !again { p { "One operation: " (about) "." } }
            (twins(set))
            (set_head(set, sources, contexts))
            (plots(&figures::of(set, &labels)))
        }
    }
}

/// Said once, before the first of them.
fn twins(set: &Set<'_>) -> Markup {
    html! {
        @if set.twins.first() == Some(&set.parts[0].source) {
            p.warn {
                "Nothing that is stored tells " (head::reports(set.twins.iter().copied()))
                " apart but their figures, and some have the same number of threads. So each has plots of "
                "its own. Give what belongs together a name (NAME=FILE) to have it joined."
            }
        }
    }
}

fn set_head(set: &Set<'_>, sources: &[Source], contexts: &[Context<'_>]) -> Markup {
    let report = contexts[set.context].first;
    let first = set.parts[0].found;
    let mut text = settings(&first.params);
    match sets::dropped(first) {
        Some(true) => text.push("caches dropped before each run".into()),
        Some(false) => text.push("caches kept".into()),
        None => {}
    }
    if sets::pinned(report) {
        text.push("threads bound to CPUs".into());
    }
    html! {
        h3 {
            @if let Some(name) = set.name { (name) ": " }
            (head::commit(report)) "; " (threads(set)) "; "
            (head::reports(set.parts.iter().map(|p| p.source)))
            @if let [only] = &set.parts[..] { " (" (sources[only.source].file) ")" }
        }
        p.dim { (text.join(", ")) ". " (repetitions(set)) "." }
    }
}

fn threads(set: &Set<'_>) -> String {
    let all: Vec<u32> = set.parts.iter().map(|p| p.found.params.threads).collect();
    match &all[..] {
        [one] => counted(u64::from(*one), "thread"),
        _ => {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            format!("{} threads", head::enumerated(&all))
        }
    }
}

/// How many repetitions there are, and where there are fewer than elsewhere: a benchmark that ended
/// early.
fn repetitions(set: &Set<'_>) -> String {
    let runs = || {
        let parts = set.parts.iter();
        parts.flat_map(|p| p.found.targets.iter().map(move |t| (p, t, t.repetitions())))
    };
    let most = runs().map(|r| r.2).max().unwrap_or(0);
    let fewer = runs().filter(|r| r.2 < most).map(|(p, t, n)| {
        let threads = counted(u64::from(p.found.params.threads), "thread");
        format!("{n} of {} with {threads}", t.label)
    });
    let mut all = vec![counted(most as u64, "repetition")];
    all.extend(fewer);
    all.join(", but ")
}

fn plots(all: &[Plot]) -> Markup {
    html! {
        div.plots {
            @for plot in all {
                figure.wide[matches!(plot, Plot::Bars(p) if bars::are_wide(p))] {
                    figcaption {
                        b { (plot.title()) }
                        @match plot {
                            Plot::Bars(p) => {
                                span.unit {
                                    (p.unit) (logarithmic(p.scale))
                                    @if p.compares() { "; dashed: " (p.theirs) }
                                }
                            }
                            Plot::Spreads(p) => { span.unit { (p.unit) (logarithmic(Scale::Log)) } }
                            Plot::Curves(p) => { (curves::legend(p)) }
                        }
                    }
                    @match plot {
                        Plot::Bars(p) => { (bars::bars(p)) }
                        Plot::Spreads(p) => { (bars::spreads(p)) }
                        Plot::Curves(p) => { (curves::curves(p)) }
                    }
                    @if !plot.note().is_empty() { p.note { (plot.note()) } }
                    (table(plot.title(), &plot.table()))
                }
            }
        }
    }
}

/// Characters from which on a label of a row is broken.
const LONG: usize = 24;

fn table(title: &str, table: &Table) -> Markup {
    html! {
        // For readers who scroll with keys instead of a pointer.
        div.scroll role="region" tabindex="0" aria-label={ (title) ": figures" } {
            table {
                thead { tr { @for h in &table.head { th scope="col" { (h) } } } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (n, cell) in row.iter().enumerate() {
                                @if n < table.labels {
                                    th.long[cell.chars().count() > LONG] scope="row" { (cell) }
                                }
                                @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
