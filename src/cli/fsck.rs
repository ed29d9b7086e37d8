//! `quayfs fsck`.

use super::args;
use super::exit::{FSCK_FAILED, Failure};

/// Checks a volume and returns the exit code.
pub fn run(args: &args::Fsck) -> Result<u8, Failure> {
    let _ = (&args.volume, args.json);
    Err(Failure::new(FSCK_FAILED, "`fsck` is not yet implemented in this version"))
}
