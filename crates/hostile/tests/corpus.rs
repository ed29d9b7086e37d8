//! Replays the inputs that are kept: what a fuzzer found worth keeping (`fuzz/corpus`), and what
//! once broke something (`fuzz/regressions`, named by what it broke).

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use quayfs_hostile::TARGETS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn inputs(kept: &str, target: &str) -> Vec<PathBuf> {
    let Ok(dir) = fs::read_dir(root().join(kept).join(target)) else {
        return Vec::new();
    };
    let mut files: Vec<_> = dir.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}

fn replay(kept: &str) {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        for file in inputs(kept, name) {
            let bytes = fs::read(&file).expect("an input");
            if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
                failed.push(file.display().to_string());
            }
        }
    }
    assert!(failed.is_empty(), "these fail: {failed:#?}");
}

#[test]
fn the_corpus_of_every_target_passes() {
    let missing: Vec<_> = TARGETS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| inputs("corpus", name).is_empty())
        .collect();
    assert!(missing.is_empty(), "no corpus for {missing:?}");
    replay("corpus");
}

#[test]
fn what_once_broke_something_passes() {
    replay("regressions");
}

#[test]
fn targets_and_kept_inputs_have_the_same_names() {
    let known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    for kept in ["corpus", "regressions"] {
        for dir in fs::read_dir(root().join(kept)).expect("a directory") {
            let name = dir.expect("an entry").file_name();
            assert!(known.iter().any(|k| name == **k), "{kept}: {name:?}");
        }
    }
}
