//! Every single fault of a fixed life: each call of the data device and each drain of the region
//! fails in each way, in every mode, and what follows is the table of docs/internals/crash-consistency.md.
//!
//! What must hold in each case is asserted by `life`: an error has no effect, everything stays
//! readable, nothing that was acknowledged is lost to the death of the daemon or to a power
//! failure, the checker finds nothing, and other threads can work while a call is held up.

mod life;
mod media;
mod program;
mod table;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use life::{Calls, Injection, Mode, OPS, Wrong, live};
use media::Base;
use parking_lot::Mutex;
use program::{Step, program};
use quayfs_pmem::Backend;
use table::Table;

const WRONG: [(Wrong, &str); 5] = [
    (Wrong::Once, "`EIO`, once"),
    (Wrong::Short, "half done, `EIO`"),
    (Wrong::NoSpace, "`ENOSPC`, once"),
    (Wrong::Forever, "`EIO` from then on"),
    (Wrong::Stall, "held up"),
];

fn modes() -> Vec<Mode> {
    let all = [
        ("op", "noatime,durability=op"),
        ("commit", "noatime,durability=commit"),
        ("ordered", "noatime,data=ordered"),
        ("writeback", "noatime,data=writeback"),
    ];
    let backends = [Backend::Dax, Backend::File];
    let modes = all.iter().flat_map(|&(name, options)| {
        backends.map(|backend| Mode {
            name,
            options,
            backend,
        })
    });
    modes.collect()
}

/// A life to be lived: where the fault is, and what it is.
struct Case {
    mode: Mode,
    step: usize,
    call: usize,
    fault: usize,
    injection: Injection,
}

/// All faults of one mode, from a life without any.
fn cases(base: &Base, mode: Mode, steps: &[Step]) -> Vec<Case> {
    let seen = live(base, mode, steps, None);
    assert_eq!(seen.len(), steps.len());
    assert!(
        seen.iter()
            .all(|(end, _)| end.error.is_none() && !end.read_only)
    );
    let mut out = Vec::new();
    let mut before: Calls = life::at_first_mount(base, mode);
    for (step, (_, after)) in seen.iter().enumerate() {
        for call in 0..before.len() {
            for n in before[call] + 1..=after[call] {
                let mut add = |fault, injection| {
                    out.push(Case {
                        mode,
                        step,
                        call,
                        fault,
                        injection,
                    });
                };
                match OPS.get(call) {
                    Some(op) => WRONG.iter().enumerate().for_each(|(fault, (wrong, _))| {
                        add(fault, Injection::Device(*op, n, *wrong));
                    }),
                    None => add(0, Injection::Drain(n)),
                }
            }
        }
        before = *after;
    }
    out
}

#[test]
fn every_single_fault() {
    let base = Base::new();
    let steps = program();
    let all: Vec<Case> = modes()
        .into_iter()
        .flat_map(|mode| cases(&base, mode, &steps))
        .collect();
    let table = Mutex::new(Table::default());
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                let mut mine = Table::default();
                while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let label = steps[case.step].label;
                    let what = format!("{:?}, {:?}, {label}", case.mode, case.injection);
                    let told = Told(&what);
                    let seen = live(&base, case.mode, &steps, Some(case.injection));
                    let (end, _) = &seen[case.step];
                    if matches!(case.injection, Injection::Device(_, _, Wrong::Stall)) {
                        assert_eq!(seen.len(), steps.len(), "held up, not failed");
                    }
                    mine.add(case.call, label, case.fault, end, case.mode.name);
                    std::mem::forget(told);
                }
                table.lock().merge(mine);
            });
        }
    });
    eprintln!("{} faults", all.len());
    let faults = WRONG.map(|(_, name)| name);
    compare(&table.into_inner().text(&faults));
}

/// Says which case a panic belongs to.
struct Told<'a>(&'a str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        eprintln!("failed: {}", self.0);
    }
}

/// The documented table is the observed one; QUAYFS_WRITE_TABLE=1 makes it so.
fn compare(seen: &str) {
    const BEGIN: &str = "<!-- faults: begin -->\n";
    const END: &str = "<!-- faults: end -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/internals/crash-consistency.md");
    let text = std::fs::read_to_string(&path).expect("docs");
    let begin = text.find(BEGIN).expect("begin") + BEGIN.len();
    let end = text.find(END).expect("end");
    if std::env::var_os("QUAYFS_WRITE_TABLE").is_some_and(|v| v == "1") {
        let new = [&text[..begin], seen, &text[end..]].concat();
        std::fs::write(&path, new).expect("write");
        return;
    }
    assert!(
        &text[begin..end] == seen,
        "{} does not say what happens; QUAYFS_WRITE_TABLE=1 writes it. Seen:\n{seen}",
        path.display()
    );
}
