//! Stores what `quayfs-bench run` and `papers` found without the samples: `summarize FILE... DIRECTORY`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let Some(to) = files.pop().filter(|to| to.is_dir() && !files.is_empty()) else {
        eprintln!("usage: summarize FILE... DIRECTORY");
        return ExitCode::from(2);
    };
    for file in files {
        let done = quayfs_bench::figures::kept(&file).map_err(|e| e.to_string());
        let name = file.file_name().unwrap_or_default();
        let written = done.and_then(|text| {
            let at = to.join(name);
            std::fs::write(&at, text).map_err(|e| format!("{}: {e}", at.display()))
        });
        if let Err(why) = written {
            eprintln!("summarize: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
