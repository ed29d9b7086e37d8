//! The tables of docs/internals/model.md are those of the models: `cargo run --release -p quayfs-model -- --tables` prints
//! them. All bounds take minutes, so only the small models are explored again.

use quayfs_model::suite::{Bounds, Expect, cases, strolls, trials};

/// What is explored again has at most so many states.
const SMALL: usize = 30_000;

/// The rows below a head of the page.
fn rows(head: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/internals/model.md");
    let below = page.lines().skip_while(|line| !line.starts_with(head));
    let rows = below.skip(2).take_while(|line| line.starts_with('|'));
    rows.collect()
}

/// Each row begins as its thing is called, and says what is known of it without a run.
fn agree(rows: &[&str], told: impl IntoIterator<Item = (String, String)>) {
    let told: Vec<_> = told.into_iter().collect();
    for (row, (begin, end)) in rows.iter().zip(&told) {
        assert!(
            row.starts_with(begin) && row.ends_with(end),
            "docs/internals/model.md has\n{row}\nfor\n{begin} … {end}\nquayfs-model --tables prints it"
        );
    }
    assert_eq!(rows.len(), told.len(), "docs/internals/model.md");
}

#[test]
fn models_and_their_bounds() {
    let rows = rows("| model | configuration | bounds | states |");
    let all = cases(Bounds::Full);
    let told = all.iter().map(|case| {
        let begin = format!(
            "| {} | {} | {} | ",
            case.model(),
            case.name(),
            case.bounds()
        );
        (begin, " | holds |".into())
    });
    agree(&rows, told);
    let mut again = 0;
    for (row, case) in rows.iter().zip(&all) {
        let cells: Vec<usize> = row.split(" | ").filter_map(|c| c.parse().ok()).collect();
        let [states, depth] = cells[..] else {
            panic!("{row}");
        };
        if states <= SMALL {
            let found = case.run();
            assert_eq!((found.states, found.depth), (states, depth), "{row}");
            again += 1;
        }
    }
    assert!(again > 10, "{again} explored again");
}

#[test]
fn rules_that_are_taken_out() {
    let told = trials().into_iter().map(|trial| {
        let names: Vec<String> = trial.out.iter().map(|o| format!("`{o:?}`")).collect();
        let first = trial.out[0];
        let (text, case) = (first.text(), trial.case);
        let begin = format!(
            "| {} | {} | {text} | {case} | ",
            names.join(" + "),
            first.section()
        );
        let end = match trial.expect {
            Expect::Breaks(property) => property.text(),
            Expect::Holds(why) => why,
        };
        (begin, format!(" | {end} |"))
    });
    agree(&rows("| ordering taken out | from |"), told);
}

#[test]
fn random_walks() {
    let mut all = strolls();
    all.sort_by_key(|case| case.name());
    let told = all.iter().map(|case| {
        let begin = format!("| {} | {} | ", case.name(), case.bounds());
        (begin, " | nothing found |".into())
    });
    agree(&rows("| random walks | bounds |"), told);
}
