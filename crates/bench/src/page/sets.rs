//! Which reports may become one line: those that differ in nothing but the number of threads.

use super::Source;
use crate::report::{Report, TargetReport, WorkloadReport};
use crate::table::mount_facts;
use crate::target::Facts;
use crate::workload::Params;

/// Reports of the same program, machine, directories and conditions.
#[derive(Debug)]
pub struct Context<'a> {
    /// Numbers of its reports in the order given, from 0.
    pub members: Vec<usize>,
    /// The first of them.
    pub first: &'a Report,
}

/// What a workload found with one or more numbers of threads.
#[derive(Debug)]
pub struct Set<'a> {
    /// Number of its context.
    pub context: usize,
    /// What the reports were called, if they were.
    pub name: Option<&'a str>,
    /// By threads, which are all different.
    pub parts: Vec<Part<'a>>,
    /// Numbers of reports that cannot be told from this one, and so were not joined with others.
    pub twins: Vec<usize>,
}

/// What a workload found with one number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Number of the report.
    pub source: usize,
    /// What was found.
    pub found: &'a WorkloadReport,
}

/// In what two reports differ, of all that figures depend on besides the workload. The cost of the clock
/// is measured each time anew and is never the same.
pub fn differences(a: &Report, b: &Report) -> Vec<&'static str> {
    let kernel = |r: &Report| (r.machine.kernel.clone(), r.machine.kernel_version.clone());
    let machine = |r: &Report| {
        let m = &r.machine;
        (m.cpu.clone(), m.cpus, m.memory_bytes, m.root)
    };
    let directories = |r: &Report| -> Vec<Lasting> { r.targets.iter().map(lasting).collect() };
    [
        ("commit", a.commit != b.commit),
        ("version", a.version != b.version),
        ("kernel", kernel(a) != kernel(b)),
        ("machine", machine(a) != machine(b)),
        (
            "limits of disks",
            a.machine.io_limits != b.machine.io_limits,
        ),
        (
            "directories or their options",
            directories(a) != directories(b),
        ),
        ("binding of threads", pinned(a) != pinned(b)),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

/// What of a directory has to be the same: texts, and its size.
type Lasting = (Vec<String>, u64);

/// What of a directory stays the same between benchmarks.
fn lasting(t: &Facts) -> Lasting {
    let mut all = mount_facts(t);
    all.extend([&t.label, &t.fstype, &t.source, &t.options].map(Clone::clone));
    (all, t.total_bytes)
}

/// Whether threads were bound to CPUs: only the command line tells.
pub fn pinned(r: &Report) -> bool {
    r.command.iter().any(|a| a == "--pin")
}

/// Groups reports by context, in the order of their first ones.
pub fn contexts(sources: &[Source]) -> Vec<Context<'_>> {
    let mut all: Vec<Context<'_>> = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let known = all
            .iter_mut()
            .find(|c| differences(c.first, &source.report).is_empty());
        match known {
            Some(c) => c.members.push(n),
            None => all.push(Context {
                members: vec![n],
                first: &source.report,
            }),
        }
    }
    all
}

/// Names of all workloads, each once, in the order of the reports.
pub fn workloads(sources: &[Source]) -> Vec<&str> {
    let all = sources.iter().flat_map(|s| &s.report.workloads);
    once(all.map(|w| &*w.name))
}

/// Labels of all targets, likewise.
pub fn labels(sources: &[Source]) -> Vec<&str> {
    let all = sources.iter().flat_map(|s| &s.report.workloads);
    once(all.flat_map(|w| &w.targets).map(|t| &*t.label))
}

fn once<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for text in texts {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// What decides, besides the context, whether two parts go together.
fn key<'a>(source: &'a Source, found: &'a WorkloadReport) -> impl PartialEq + 'a {
    let params = Params {
        threads: 0,
        ..found.params.clone()
    };
    let labels: Vec<&str> = found.targets.iter().map(|t| &*t.label).collect();
    (&source.name, &found.about, params, labels, dropped(found))
}

/// Whether caches were dropped before every run, or before none.
pub fn dropped(found: &WorkloadReport) -> Option<bool> {
    let all = found.targets.iter().map(TargetReport::figures);
    let mut all = all.flat_map(|f| f.caches_dropped.clone());
    let first = all.next()?;
    all.all(|dropped| dropped == first).then_some(first)
}

/// What was found by the workload of this name. Where two reports differ in nothing at all, no one
/// knows which of them goes with a third one, so each of these stands for itself.
pub fn of<'a>(name: &str, sources: &'a [Source], contexts: &[Context<'_>]) -> Vec<Set<'a>> {
    let mut sets: Vec<Set<'a>> = Vec::new();
    for (source, s) in sources.iter().enumerate() {
        let context = contexts.iter().position(|c| c.members.contains(&source));
        for found in s.report.workloads.iter().filter(|w| w.name == name) {
            let part = Part { source, found };
            let same = |set: &&mut Set<'a>| {
                let first = set.parts[0];
                Some(set.context) == context
                    && key(&sources[first.source], first.found) == key(s, found)
            };
            match sets.iter_mut().find(same) {
                Some(set) => set.parts.push(part),
                None => sets.push(Set {
                    context: context.unwrap_or(0),
                    name: s.name.as_deref(),
                    parts: vec![part],
                    twins: Vec::new(),
                }),
            }
        }
    }
    sets.into_iter().flat_map(told_apart).collect()
}

fn told_apart(mut set: Set<'_>) -> Vec<Set<'_>> {
    set.parts.sort_by_key(|p| p.found.params.threads);
    let threads = |p: &Part<'_>| p.found.params.threads;
    if set
        .parts
        .windows(2)
        .all(|w| threads(&w[0]) != threads(&w[1]))
    {
        return vec![set];
    }
    let mut twins: Vec<usize> = set.parts.iter().map(|p| p.source).collect();
    twins.sort_unstable();
    set.parts.sort_by_key(|p| p.source);
    let parts = set.parts.into_iter();
    parts
        .map(|part| Set {
            context: set.context,
            name: set.name,
            parts: vec![part],
            twins: twins.clone(),
        })
        .collect()
}
