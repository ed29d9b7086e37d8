//! `quayfs fsck`.

use super::args;
use super::exit::{FSCK_DAMAGE, FSCK_FAILED, Failure, OK, say};
use crate::fsck::{self, FsckOptions};

/// Checks a volume and returns the exit code.
pub fn run(args: &args::Fsck) -> Result<u8, Failure> {
    let options = FsckOptions {
        check_data: args.data,
    };
    let report = fsck::check(&args.volume, &options).map_err(Failure::with(FSCK_FAILED))?;
    if args.json {
        let text = serde_json::to_string(&report).map_err(Failure::with(FSCK_FAILED))?;
        say(text);
    } else {
        say(&report);
    }
    Ok(if report.is_clean() { OK } else { FSCK_DAMAGE })
}
