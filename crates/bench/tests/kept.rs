//! What is kept of benchmarks in `benches/results`: figures, and the samples that they are made of in an archive.

use quayfs_bench::figures::kept;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn names(dir: &Path) -> BTreeSet<String> {
    let all = fs::read_dir(dir).unwrap();
    let names = all.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.ends_with(".json")).collect()
}

#[test]
fn the_kept_figures_are_those_of_the_samples() {
    let results = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
    let raw = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(results.join("raw-0.1.tar.xz"));
    assert!(
        tar.arg("-C").arg(raw.path()).status().unwrap().success(),
        "tar and xz are needed"
    );
    let archived = names(raw.path());
    assert!(archived.len() > 60, "{}", archived.len());
    for name in &archived {
        let made = kept(&raw.path().join(name)).unwrap();
        let there = fs::read_to_string(results.join(name)).unwrap_or_default();
        assert!(
            made == there,
            "{name} is not what benches/summarize makes of the archive"
        );
    }
    for name in names(&results).difference(&archived) {
        let text = fs::read_to_string(results.join(name)).unwrap();
        for word in ["\"kept\"", "\"samples\":[{", "\"samples\": [\n"] {
            assert!(
                !text.contains(word),
                "{name}: its samples are not in the archive (benches/summarize)"
            );
        }
    }
}
