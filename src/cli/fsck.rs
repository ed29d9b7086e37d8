//! `quayfs fsck`.

use quayfs_fsck::FsckOptions;
use quayfs_fsck::repair::{self, Failed, Outcome};

use super::args;
use super::exit::{FSCK_DAMAGE, FSCK_FAILED, FSCK_REPAIRED, Failure, OK, say, say_json};
use super::progress::Progress;
use super::unopened::unopened;
use std::sync::Arc;

/// Checks or repairs a volume and returns the exit code.
pub fn run(args: &args::Fsck) -> Result<u8, Failure> {
    let options = FsckOptions {
        check_data: args.data,
    };
    if args.repair {
        return mend(args, &options);
    }
    let (meter, quiet) = (Arc::default(), args.quiet || args.json);
    let shown = Progress::of(&meter, quiet);
    let report = quayfs_fsck::check_measured(&args.volume, &options, &meter);
    drop(shown);
    let report = report.map_err(unopened(FSCK_FAILED))?;
    show(&report, args.json)?;
    if report.is_clean() {
        say_what_was_left_out(args);
        return Ok(OK);
    }
    say_what_names_files(args, report.unlisted);
    Ok(FSCK_DAMAGE)
}

fn mend(args: &args::Fsck, options: &FsckOptions) -> Result<u8, Failure> {
    let (meter, quiet) = (Arc::default(), args.quiet || args.json);
    let shown = Progress::of(&meter, quiet);
    let report = repair::repair(&args.volume, options, &meter);
    drop(shown);
    let report = report.map_err(|failed| match failed {
        Failed::Volume(e) => unopened(FSCK_FAILED)(e),
        other => Failure::new(FSCK_FAILED, other),
    })?;
    show(&report, args.json)?;
    if report.outcome == Outcome::Clean {
        say_what_was_left_out(args);
    }
    Ok(match report.outcome {
        Outcome::Clean => OK,
        Outcome::Repaired => FSCK_REPAIRED,
        Outcome::Left => {
            say_what_names_files(args, report.check.unlisted);
            FSCK_DAMAGE
        }
    })
}

/// Of many blocks only the first are listed, each by its inode.
fn say_what_names_files(args: &args::Fsck, unlisted: u64) {
    if args.data && !args.json && unlisted > 0 {
        let volume = quayfs_shown::path(&args.volume);
        say(format_args!(
            "`quayfs scrub {volume}` names all damaged files, with paths"
        ));
    }
}

/// A check of the structure is easily taken for one of everything.
fn say_what_was_left_out(args: &args::Fsck) {
    if !args.data && !args.json {
        say("what is in files was not read: that takes --data");
    }
}

fn show<T: serde::Serialize + std::fmt::Display>(report: &T, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(report).map_err(Failure::with(FSCK_FAILED))?;
        say_json(text);
    } else {
        say(report);
    }
    Ok(())
}
