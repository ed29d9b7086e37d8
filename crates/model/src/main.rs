//! Runs every model and every experiment, and prints what they found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::time::{Duration, Instant};

use quayfs_model::checker::Outcome;
use quayfs_model::suite::{Bounds, Case, Expect, Trial, cases, strolls, trials};

/// Random walks per configuration with large bounds.
const WALKS: u32 = 60_000;

fn main() -> std::process::ExitCode {
    // `--tables` leaves out the traces.
    let traces = std::env::args().nth(1).is_none_or(|arg| arg != "--tables");
    let began = Instant::now();
    let all = cases(Bounds::Full);
    let quick = cases(Bounds::Quick);
    let trials = trials();
    let mut jobs: Vec<Case> = all.clone();
    for trial in &trials {
        let bounds = if matches!(trial.expect, Expect::Holds(_)) {
            &all
        } else {
            &quick
        };
        let case = bounds.iter().find(|case| case.name() == trial.case);
        jobs.push(
            case.expect("a trial names a configuration")
                .without(trial.out),
        );
    }
    let results = run(&jobs);
    let (models, experiments) = results.split_at(all.len());
    let good = print_models(&all, models) & print_trials(&trials, experiments, traces);
    let good = good & print_strolls();
    println!(
        "\n{} runs in {:.1} s",
        jobs.len(),
        began.elapsed().as_secs_f64()
    );
    if good {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}

/// Runs the jobs on all processors, results in the order of the jobs.
fn run(jobs: &[Case]) -> Vec<(Outcome, Duration)> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Atomic::Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    let began = Instant::now();
                    let outcome = job.run();
                    let mut results = results.lock().expect("no worker panics");
                    results.push((at, outcome, began.elapsed()));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no worker panics");
    results.sort_by_key(|(at, ..)| *at);
    results
        .into_iter()
        .map(|(_, outcome, time)| (outcome, time))
        .collect()
}

fn print_models(cases: &[Case], results: &[(Outcome, Duration)]) -> bool {
    println!("| model | configuration | bounds | states | depth | s | result |");
    println!("|---|---|---|---:|---:|---:|---|");
    let mut good = true;
    for (case, (outcome, time)) in cases.iter().zip(results) {
        good &= outcome.holds();
        let result = match &outcome.counterexample {
            _ if outcome.holds() => "holds",
            Some(counterexample) => counterexample.property.text(),
            None => "not finished",
        };
        println!(
            "| {} | {} | {} | {} | {} | {:.1} | {result} |",
            case.model(),
            case.name(),
            case.bounds(),
            outcome.states,
            outcome.depth,
            time.as_secs_f64()
        );
    }
    println!();
    good
}

fn print_strolls() -> bool {
    println!("\n| random walks | bounds | walks | states | longest | result |");
    println!("|---|---|---:|---:|---:|---|");
    let strolls = strolls();
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for case in &strolls {
            let results = &results;
            scope.spawn(move || {
                if let Some(outcome) = case.stroll(0x9e37, WALKS) {
                    results
                        .lock()
                        .expect("no walk panics")
                        .push((case, outcome));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no walk panics");
    results.sort_by_key(|(case, _)| case.name());
    let mut good = true;
    for (case, outcome) in results {
        let result = outcome
            .counterexample
            .as_ref()
            .map(|found| found.property.text());
        let (states, depth) = (outcome.states, outcome.depth);
        let text = result.unwrap_or("nothing found");
        println!(
            "| {} | {} | {WALKS} | {states} | {depth} | {text} |",
            case.name(),
            case.bounds()
        );
        for line in outcome.counterexample.iter().flat_map(|found| &found.trace) {
            println!("  {line}");
        }
        good &= result.is_none();
    }
    good
}

fn print_trials(trials: &[Trial], results: &[(Outcome, Duration)], traces: bool) -> bool {
    println!("| ordering taken out | from | the rule | run in | steps | what happens without it |");
    println!("|---|---|---|---|---:|---|");
    let mut good = true;
    for (trial, (outcome, _)) in trials.iter().zip(results) {
        let ordering = trial.out[0];
        let names: Vec<String> = trial.out.iter().map(|o| format!("`{o:?}`")).collect();
        let (steps, text, fine) = match (&outcome.counterexample, trial.expect) {
            (Some(found), Expect::Breaks(property)) => (
                found.trace.len().to_string(),
                found.property.text(),
                found.property == property,
            ),
            (Some(found), Expect::Holds(_)) => {
                (found.trace.len().to_string(), found.property.text(), false)
            }
            (None, Expect::Holds(why)) => ("-".into(), why, outcome.complete),
            (None, Expect::Breaks(_)) => ("-".into(), "NO COUNTEREXAMPLE", false),
        };
        good &= fine;
        let mark = if fine { "" } else { " UNEXPECTED" };
        println!(
            "| {} | {} | {} | {} | {steps} | {text}{mark} |",
            names.join(" + "),
            ordering.section(),
            ordering.text(),
            trial.case
        );
    }
    if traces {
        for (trial, (outcome, _)) in trials.iter().zip(results) {
            if let Some(found) = &outcome.counterexample {
                println!(
                    "\nWithout {:?} ({}): {}",
                    trial.out,
                    trial.case,
                    found.property.text()
                );
                for (step, line) in found.trace.iter().enumerate() {
                    println!("  {:2} {line}", step + 1);
                }
            }
        }
    }
    good
}
