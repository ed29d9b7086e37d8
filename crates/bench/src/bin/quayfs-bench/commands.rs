//! The commands, but for that of the papers: workloads on directories in turn, which are in the library of this crate,
//! and what was stored.

use crate::args::{Command, Run};
use crate::{FAILED, USAGE, papers};
use quayfs_bench::Error;
use quayfs_bench::page::{self, Source};
use quayfs_bench::report::Report;
use quayfs_bench::runner::Plan;
use quayfs_bench::target::Target;
use quayfs_bench::workload::{self, Wishes};
use quayfs_bench::{commit, table};
use quayfs_shown::command::{Failure, say};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Lists, runs, shows or draws.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List => {
            say(table::list(&workload::all()).trim_end());
            Ok(())
        }
        Command::Run(args) => measure(*args),
        Command::Papers(args) => papers::run(*args),
        Command::Show { files } => files.iter().try_for_each(|file| show(file)),
        Command::Report { files, out } => report(&files, &out),
    }
}

fn report(files: &[String], out: &Path) -> Result<(), Failure> {
    let (mut sources, mut sections) = (Vec::new(), Vec::new());
    for file in files {
        let (name, path) = Source::named(file).map_err(failure)?;
        // Hours of measuring are more than a page.
        if let (Ok(a), Ok(b)) = (path.canonicalize(), out.canonicalize())
            && a == b
        {
            let why = format!("--out {} is one of the reports", out.display());
            return Err(Failure::new(USAGE, why));
        }
        if let Some(found) = papers_in(path)? {
            let file = path.file_name().unwrap_or(path.as_os_str());
            let name = name.map_or_else(|| file.to_string_lossy(), Into::into);
            sections.extend(papers::page::sections(&found, &name));
        } else {
            sources.push(Source::parse(file).map_err(failure)?.0);
        }
    }
    std::fs::write(out, page::render(&sources, &sections)).map_err(|e| failure(Error::file(out)(e)))
}

/// What `papers` stored in a file; none if it is something else.
fn papers_in(path: &Path) -> Result<Option<papers::report::Papers>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| failure(Error::file(path)(e)))?;
    papers::page::read(&text)
        .map_err(|why| Failure::new(FAILED, format!("{}: {why}", path.display())))
}

fn show(file: &Path) -> Result<(), Failure> {
    if let Some(found) = papers_in(file)? {
        say(found.render().trim_end());
        return Ok(());
    }
    let report = Report::load(file).map_err(failure)?;
    say(table::render(&report).trim_end());
    Ok(())
}

/// What to exit with after an error, which is what to say.
pub fn failure(e: Error) -> Failure {
    let code = match e {
        Error::UnknownWorkload(_) | Error::Usage(_) => USAGE,
        _ => FAILED,
    };
    Failure::new(code, e)
}

fn measure(args: Run) -> Result<(), Failure> {
    let patience = Duration::try_from_secs_f64(args.settle)
        .map_err(|e| Failure::new(USAGE, format!("--settle: {e}")))?;
    let workloads = workload::select(&args.workloads).map_err(failure)?;
    let mut targets = Vec::new();
    for dir in &args.dirs {
        targets.push(Target::parse(dir).map_err(failure)?);
    }
    for daemon in &args.daemons {
        set_daemon(&mut targets, daemon)?;
    }
    if let Some(json) = &args.json {
        // Better now than after an hour.
        std::fs::File::create(json)
            .map_err(|e| Failure::new(FAILED, format!("{}: {e}", json.display())))?;
    }
    let plan = Plan {
        targets,
        workloads,
        wishes: Wishes {
            threads: args.threads,
            seconds: args.seconds,
            warmup: args.warmup,
            ops: args.ops,
            file_bytes: args.file_size,
            files: args.files,
            seed: args.seed,
        },
        repetitions: args.repeat,
        patience,
        pin: args.pin,
        keep_caches: args.keep_caches,
        commit: args.commit.or_else(commit),
        command: std::env::args().collect(),
    };
    let stop = until_signalled()?;
    let (report, failed) = plan.run(&stop, false).map_err(failure)?;
    if !report.workloads.is_empty() {
        say(table::render(&report).trim_end());
    }
    if let Some(json) = &args.json {
        report.store(json).map_err(failure)?;
    }
    failed.map_or(Ok(()), |e| Err(failure(e)))
}

/// A signal ends the run under way, whose files are removed, and what was found is kept.
pub fn until_signalled() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::with(FAILED))?;
    }
    Ok(stop)
}

/// Takes `LABEL=PID` of a process that serves one of the targets.
fn set_daemon(targets: &mut [Target], text: &str) -> Result<(), Failure> {
    let wrong = |why: &str| Failure::new(USAGE, format!("--daemon {text}: {why}"));
    let (label, pid) = text
        .split_once('=')
        .ok_or_else(|| wrong("write LABEL=PID"))?;
    let pid = pid.parse().map_err(|_| wrong("not a process id"))?;
    let target = targets
        .iter_mut()
        .find(|t| t.label == label)
        .ok_or_else(|| wrong("no --dir has this label"))?;
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(wrong("no such process"));
    }
    target.daemon = Some(pid);
    Ok(())
}
