//! Running `quayfs-bench` as a user does, and `quayfs`, which mounts what it measures.

// What is included serves other tests as well.
#![allow(dead_code)]

#[path = "../../../../tests/program/run.rs"]
mod run;
#[path = "../../../../tests/program/start.rs"]
mod start;

pub use run::{Run, can_be_root, can_mount, eventually};
pub use start::Start;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The binary under test.
pub const BENCH: &str = env!("CARGO_BIN_EXE_quayfs-bench");
/// What its messages begin with.
pub const NAME: &str = "quayfs-bench";

/// Runs the program.
pub fn bench<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    run(Path::new(BENCH), args)
}

/// Runs `quayfs`.
pub fn quayfs<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    run(mounter(), args)
}

fn run<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Run {
    let mut command = Command::new(program);
    command
        .args(args)
        .capture()
        .expect("the binary runs")
        .into()
}

/// `quayfs`, as it is now, beside the program, where that looks for it. For the tests of a package Cargo builds the
/// programs of that package only. Built is what `cargo test --workspace` has built, so that this finds nothing to do then.
pub fn mounter() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Path::new(BENCH).with_file_name("quayfs");
        // Without Cargo a test takes the program that is there.
        if let Some(cargo) = std::env::var_os("CARGO") {
            let directory = built.parent().unwrap();
            let profile = match directory.file_name().unwrap() {
                name if name == "debug" => OsStr::new("dev"),
                name => name,
            };
            let run = Command::new(cargo)
                .args([
                    "test",
                    "--quiet",
                    "--workspace",
                    "--no-run",
                    "--test",
                    "cli",
                    "--profile",
                ])
                .arg(profile)
                .arg("--target-dir")
                .arg(directory.parent().unwrap())
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .capture();
            Run::from(run.expect("Cargo runs")).ok();
        }
        built
    })
}
