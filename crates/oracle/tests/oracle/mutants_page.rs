//! docs/internals/mutants.md says, for each place that flushes, fences or drains, named by its function, and for each check, what
//! notices when it is forgotten. Trying them all takes long (`make mutants`); here the places and the names have to be
//! those of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quayfs_crashsim::Trace;
use quayfs_layout::Guard;
use quayfs_oracle::search::mutants::{TESTS, Witness, rows};
use quayfs_oracle::search::place::Place;
use quayfs_oracle::search::program::{Program, Text};

fn page() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/internals/mutants.md"
    );
    std::fs::read_to_string(path).unwrap()
}

/// What stands in backticks in a cell of a row.
fn cell(row: &str, nth: usize) -> &str {
    let cell = row.split(" | ").nth(nth);
    cell.map_or("", |c| c.trim_matches(['|', ' ', '`']))
}

fn places(trace: &Trace) -> BTreeSet<Place> {
    trace.orderings().into_iter().map(Place::of).collect()
}

/// The places that a run meets, or a recovery from one of its images.
fn met(line: &str) -> BTreeSet<Place> {
    // Not noticed in the time that there was, or by a test.
    if line.starts_with("**alive**") || line.starts_with("test `") {
        return BTreeSet::new();
    }
    let (program, image) = match line.split_once(" #") {
        Some((program, image)) => (program, image.parse::<usize>().ok()),
        None => (line, None),
    };
    let program: Program = program.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
    // Which places threads meet depends on their interleaving.
    if matches!(program.text, Text::Threads(..)) {
        return BTreeSet::new();
    }
    let run = program.run();
    let Some(nth) = image else {
        return places(&run.trace());
    };
    let trace = run.trace();
    let image = trace.explore(&program.depth().budget).nth(nth - 1);
    let image = image.unwrap_or_else(|| panic!("{line}: no such image"));
    let recoveries = run.recoveries(&image).unwrap_or_default();
    recoveries.iter().flat_map(|r| places(&r.trace())).collect()
}

fn counted<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.into_iter()
        .for_each(|x| *counts.entry(x).or_insert(0) += 1);
    counts
}

#[test]
fn the_places_are_those_of_the_code() {
    let page = page();
    let rows = rows(&page);
    assert!(rows.len() > 50, "{} rows", rows.len());
    let lines: BTreeSet<&str> = rows.iter().map(|row| cell(row, 1)).collect();
    let met: BTreeMap<&str, BTreeSet<Place>> = lines.into_iter().map(|l| (l, met(l))).collect();
    let told = counted(rows.iter().map(|row| cell(row, 0).to_string()));
    let again =
        "`crash --mutants --place NAME` tells what notices, `make mutants` writes the table";
    let meets = |row: &&&str| {
        let of_line = &met[cell(row, 1)];
        of_line.is_empty() || of_line.iter().any(|p| p.to_string() == cell(row, 0))
    };
    let stale: Vec<_> = rows.iter().filter(|row| !meets(row)).collect();
    assert!(stale.is_empty(), "not met any more: {stale:?}; {again}");
    let all: BTreeSet<&Place> = met.values().flatten().collect();
    let all = counted(all.into_iter().map(Place::to_string));
    let short = |(place, times): &(&String, &usize)| told.get(*place).is_none_or(|n| n < times);
    let missing: Vec<_> = all.iter().filter(short).collect();
    assert!(
        missing.is_empty(),
        "not in docs/internals/mutants.md: {missing:?}; {again}"
    );
}

/// What the table leaves to tests is noticed by tests that there are.
#[test]
fn tests_that_notice_are_there() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for Witness {
        place, file, test, ..
    } in TESTS
    {
        let text = std::fs::read_to_string(top.join(file)).unwrap();
        assert!(
            text.contains(&format!("#[test]\nfn {test}()")),
            "{file}: no {test}"
        );
        let page = page();
        let row = rows(&page)
            .into_iter()
            .find(|row| cell(row, 1) == format!("test `{test}"));
        assert_eq!(row.map(|row| cell(row, 0)), Some(place));
    }
}

#[test]
fn the_checks_are_those_of_the_code() {
    let page = page();
    let (_, table) = page.split_once("| without | noticed by | as |\n").unwrap();
    let told: BTreeSet<&str> = table
        .lines()
        .skip(1)
        .take_while(|l| l.starts_with('|'))
        .map(|row| cell(row, 0).split(' ').next().unwrap_or_default())
        .collect();
    let all: BTreeSet<&str> = Guard::ALL.iter().map(|guard| guard.name()).collect();
    assert_eq!(told, all, "`scripts/guards` tells what notices");
}

/// Lines move with every change, and prose does not follow them.
#[test]
fn no_document_names_a_line() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["docs", "docs/internals"].map(|name| std::fs::read_dir(top.join(name)).unwrap());
    let pages = folders
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    let others = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| top.join(name));
    let mut seen = 0;
    for path in pages.chain(others) {
        if path.extension().is_none_or(|e| e != "md") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for (n, line) in text.lines().enumerate() {
            let named = [".rs:", ".py:", ".sh:"].iter().any(|kind| {
                let mut after = line.split(kind).skip(1);
                after.any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            });
            assert!(!named, "{}, line {}: {line}", path.display(), n + 1);
        }
    }
    assert!(seen > 10, "{seen} documents");
}

/// The functions of the places that are named beside the table are there.
#[test]
fn functions_that_are_named_are_there() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seen = 0;
    let page = page();
    // What programs have said may be cut short, in a quotation too.
    let quoted = page.lines().flat_map(|line| match line.starts_with('|') {
        true => vec![cell(line, 0)],
        false => line.split('`').skip(1).step_by(2).collect(),
    });
    for quoted in quoted {
        let Some((place, function)) = quoted.split_once(".rs: ") else {
            continue;
        };
        let Some(file) = place.split(' ').next_back() else {
            continue;
        };
        let path = top.join(format!("{file}.rs"));
        let text = std::fs::read_to_string(&path);
        let text = text.unwrap_or_else(|e| panic!("{quoted}: {e}"));
        assert!(
            [format!("fn {function}("), format!("fn {function}<")]
                .iter()
                .any(|f| text.contains(f)),
            "{quoted}: no such function"
        );
        seen += 1;
    }
    assert!(seen > 50, "{seen} places");
}
