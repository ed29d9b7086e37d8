//! Replays the inputs that are kept: what a fuzzer found worth keeping (`fuzz/corpus`), and what
//! once broke something (`fuzz/regressions`, named by what it broke).

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use quayfs_hostile::parsers::{HEADERS, LOGS, OBJECTS, Seen, choose};
use quayfs_hostile::{FAMILIES, TARGETS};

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

/// A selector that is off by one, or a checksum that no input gets right, would leave a structure
/// untested without any failure.
#[test]
fn the_corpus_reaches_all_that_decodes() {
    for (target, family) in FAMILIES {
        let mut reached: BTreeMap<&str, (usize, Seen)> = BTreeMap::new();
        for file in inputs("corpus", target) {
            let bytes = fs::read(&file).expect("an input");
            let (structure, rest) = choose(family, &bytes);
            let (count, seen) = reached.entry(structure.name).or_default();
            *count += 1;
            (structure.parse)(rest, seen);
        }
        for structure in family {
            let (count, seen) = reached.remove(structure.name).unwrap_or_default();
            let seen: Vec<_> = seen.names().collect();
            println!("{target} {}: {count} inputs, {seen:?}", structure.name);
            assert_eq!(seen, structure.decodes, "{target} {}", structure.name);
        }
    }
}

#[test]
fn a_selector_out_of_range_wraps() {
    let name = |family, data: &[u8]| choose(family, data).0.name;
    assert_eq!(name(HEADERS, &[]), "config");
    assert_eq!(name(HEADERS, &[3]), "superblock");
    assert_eq!(name(HEADERS, &[5]), "geometry");
    assert_eq!(name(LOGS, &[4]), "slot");
    assert_eq!(name(OBJECTS, &[255]), "extents");
    assert_eq!(choose(LOGS, &[9, 7, 8]).1, [7, 8]);
}

/// `impl` blocks of a source file and the functions in them whose name says that they decode.
fn decoders(module: &str, source: &str) -> Vec<String> {
    let (mut owner, mut out) = (String::new(), Vec::new());
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("impl ") {
            let name = rest.split([' ', '<', '{']).next().unwrap_or_default();
            owner = format!("{name}::");
        } else if line == "}" {
            owner.clear();
        }
        let line = line.trim_start();
        let public = line.strip_prefix("pub fn ");
        let Some(rest) = public.or_else(|| line.strip_prefix("pub const fn ")) else {
            continue;
        };
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        if name.contains("decode") || name.contains("parse") {
            out.push(format!("{module}::{owner}{name}"));
        }
    }
    out
}

/// The files of a folder and of those in it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let inside = paths.map(|path| {
        if path.is_dir() {
            sources(&path)
        } else {
            vec![path]
        }
    });
    inside.flatten().collect()
}

#[test]
fn the_documentation_says_which_target_runs_each_decoder() {
    let docs = fs::read_to_string(root().join("../docs/internals/testing.md"))
        .expect("docs/internals/testing.md");
    let mut found = 0;
    for file in sources(&root().join("../crates/layout/src")) {
        let module = file.file_stem().and_then(|s| s.to_str()).expect("a name");
        let source = fs::read_to_string(&file).expect("a source file");
        for decoder in decoders(module, &source) {
            found += 1;
            assert!(docs.contains(&format!("`{decoder}`")), "{decoder}");
        }
    }
    assert!(found > 15, "only {found} decoders found");
}
