//! The documents and the book that is made of them: every link leads somewhere, every page is in the book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder whose names end in `.md`.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(below(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            all.push(path);
        }
    }
    all
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = top
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    for folder in ["docs", "crates", "tests", "lab", "benches", ".github"] {
        all.extend(below(&root().join(folder)));
    }
    assert!(all.len() > 25, "{} documents", all.len());
    all
}

/// The lines of a document that are not code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((n + 1, line))
    })
}

/// A line without what is in backquotes.
fn spoken(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// What the links of a line lead to.
fn links(line: &str) -> Vec<String> {
    let line = spoken(line);
    let ends = line.split("](").skip(1);
    ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The text of a heading, with that of its links only.
fn heading(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_start_matches('#').trim();
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text + rest
}

/// The anchors of a document, as GitHub and mdbook make them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, l)| l.starts_with('#')) {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let text: String = heading(line).to_lowercase().chars().filter(kept).collect();
        let name = text.replace(' ', "-");
        let again = |n: usize| match n {
            0 => name.clone(),
            n => format!("{name}-{n}"),
        };
        let free = (0..).map(again).find(|name| !all.contains(name)).unwrap();
        all.insert(free);
    }
    all
}

/// The file that a page consists of, if it includes one, and the part of it.
fn included(line: &str) -> Option<(&str, Option<&str>)> {
    let what = line.strip_prefix("{{#include ")?.strip_suffix("}}")?;
    Some(match what.split_once(':') {
        Some((file, part)) => (file, Some(part)),
        None => (what, None),
    })
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    let mut seen = 0;
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        for (n, line) in prose(&text) {
            for link in links(line).iter().filter(|l| !l.contains("://")) {
                seen += 1;
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => page.clone(),
                    path => page.parent().unwrap().join(path),
                };
                let there = match anchor {
                    "" => target.exists(),
                    anchor => fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).contains(anchor)),
                };
                if !there {
                    dead.push(format!("{name}:{n}: {link}"));
                }
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(seen > 200, "{seen} links");
}

#[test]
fn what_pages_include_is_there() {
    let mut seen = 0;
    for page in below(&root().join("docs")) {
        let text = fs::read_to_string(&page).unwrap();
        for (file, part) in text.lines().filter_map(included) {
            seen += 1;
            let path = page.parent().unwrap().join(file);
            let whole =
                fs::read_to_string(&path).unwrap_or_else(|e| panic!("{page:?}: {file}: {e}"));
            for mark in part
                .iter()
                .flat_map(|p| [format!("ANCHOR: {p}"), format!("ANCHOR_END: {p}")])
            {
                let marked = whole.lines().filter(|l| l.contains(&format!("{mark} ")));
                assert_eq!(marked.count(), 1, "{page:?}: {mark} in {file}");
            }
        }
    }
    assert!(seen > 5, "{seen} includes");
}

#[test]
fn the_book_has_every_page_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = fs::read_to_string(&summary).unwrap();
    let mut listed: Vec<PathBuf> = text.lines().flat_map(links).map(|l| docs.join(l)).collect();
    listed.sort_unstable();
    let mut there = below(&docs);
    there.retain(|page| *page != summary);
    there.sort_unstable();
    assert_eq!(listed, there, "docs/SUMMARY.md");
}

#[test]
fn links_and_anchors_are_recognized() {
    assert_eq!(
        links("see [a](b.md#c), `[d](e)` and [`f`](g)"),
        ["b.md#c", "g"]
    );
    let all = anchors("# A `b`, c: [d](e)\n```\n# no\n```\n## Two\n## Two\n## O_DIRECT in each\n");
    let want = ["a-b-c-d", "o_direct-in-each", "two", "two-1"];
    assert_eq!(all.iter().map(String::as_str).collect::<Vec<_>>(), want);
    assert_eq!(
        included("{{#include ../x.md:use}}"),
        Some(("../x.md", Some("use")))
    );
    assert_eq!(included("{{#include ../x.md}}"), Some(("../x.md", None)));
}
