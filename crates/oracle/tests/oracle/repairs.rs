//! The repairs that are crashed meet everything that a repair can do, and every place of it that orders
//! something.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quayfs_oracle::crash::Run;
use quayfs_oracle::options;
use quayfs_oracle::repair::Repair;
use quayfs_oracle::search::program::{Program, Text};
use quayfs_oracle::search::repairs::repairs;

/// What a repair says when it has done it; one of each.
const DONE: &[&str] = &[
    "of the configuration table is written again",
    "header of the data device is written again",
    "Epoch word of the superblock is healed",
    "Digested word of the superblock is healed",
    "CommitTs word of the superblock is computed again",
    "Clean word of the superblock is computed again",
    "Proposal(0) word of the superblock is computed again",
    "Proposal(1) word of the superblock is computed again",
    "Proposal(2) word of the superblock is computed again",
    "the superblock is written again, from its copy on the data device",
    "Head(1) word of the superblock is computed again",
    "Retired word of the superblock is computed again",
    "the log's commit word is healed",
    "undo records of the log are healed",
    "entries are undone, their blocks are still staged",
    "the log is closed",
    "the entry of node",
    "names page",
    "is cleared: it has no page",
    "is healed",
    "the page is given up",
    "are lost",
    "the bitmap is made anew",
    "the committed word is healed",
    "the committed word is lost",
    "slot headers are written again",
    "the header is healed",
    "the header is lost",
    "record's header is healed",
    ": record ",
    "given up: ",
    "behind the damage",
    "a new epoch begun",
    "pages of the inode table are written again",
    "bitmap pages are made anew",
    "that nothing refers to are freed",
    "directory is made anew from what can be read",
    "nothing named it any more",
    "its target is lost",
    "its extended attributes are lost",
    "the entry of LBN",
    "again, by its checksum",
    "nothing is lost",
    "is lost and reads as an error",
    "of the spare pool is in state zero again",
    "its newest content is lost",
    "a repair was interrupted",
];

fn run(program: &Program) -> Repair {
    match &program.text {
        Text::Repair(left, ills) => {
            let mode = options(program.mode.options);
            let with = (program.mode.backend, &mode);
            Repair::run(program.to_string(), *left, ills, program.dies, with)
        }
        _ => panic!("{program}"),
    }
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => sources(&path, out),
            false => out.push(path),
        }
    }
}

/// Lines of the repair that flush or drain, but for the helper that others are told through.
fn places() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("crates/fsck/src/repair.rs")];
    sources(&root.join("crates/fsck/src/repair"), &mut files);
    let mut out = BTreeSet::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("below").display();
        let text = std::fs::read_to_string(&file).expect("source");
        for (n, line) in text.lines().enumerate() {
            let orders = [".flush(", ".drain()", ".persist(", ".fence()"];
            if orders.iter().any(|o| line.contains(o)) && !line.contains("Ok(self.media") {
                out.insert(format!("{name}:{}", n + 1));
            }
        }
    }
    out
}

#[test]
fn every_place_and_everything_that_is_done_is_met() {
    let mut missing: BTreeSet<&str> = DONE.iter().copied().collect();
    let mut places = places();
    assert!(places.len() > 8, "{places:?}");
    for program in repairs() {
        let run = run(&program);
        for done in &run.report.done {
            missing.retain(|what| !done.what.contains(what));
        }
        for ordering in run.trace().orderings() {
            let at = format!("{}:{}", ordering.site.file(), ordering.site.line());
            places.retain(|place| !at.ends_with(place.as_str()));
        }
    }
    assert!(places.is_empty(), "nobody meets {places:?}");
    assert!(missing.is_empty(), "nobody sees {missing:?}");
}
