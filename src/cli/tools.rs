//! What fsck(8) and mkfs(8) call: this program under the names `fsck.quayfs` and `mkfs.quayfs`. Each takes the options of
//! the command that it stands for, and besides them the letters that such helpers have in common.

use quayfs_options::parse_size;

use super::exit::{self, FSCK_USAGE, Failure};
use super::{args, fsck, mkfs};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;

/// A helper of fsck(8), which also starts it at boot, with `-a`.
#[derive(Debug, Parser)]
#[command(name = "fsck.quayfs", version, disable_version_flag = true)]
struct FsckCall {
    #[command(flatten)]
    fsck: args::Fsck,
    /// Repair without asking, as -p and -y do.
    #[arg(short, visible_short_aliases = ['p', 'y'])]
    all: bool,
    /// Repair nothing.
    #[arg(short, conflicts_with_all = ["all", "repair"])]
    no: bool,
    /// Also if it was unmounted cleanly, as always.
    #[arg(short)]
    force: bool,
    /// Say more: there is nothing more to say.
    #[arg(short)]
    verbose: bool,
    /// Descriptor to show progress on: none is shown there.
    #[arg(short = 'C', value_name = "FD")]
    progress: Option<i32>,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// A helper of mkfs(8).
#[derive(Debug, Parser)]
#[command(name = "mkfs.quayfs", version, disable_version_flag = true)]
struct MkfsCall {
    #[command(flatten)]
    mkfs: args::Mkfs,
    /// Size of the device, of a volume in a directory that of its data, in KiB unless it has a unit.
    #[arg(value_name = "SIZE", value_parser = parse_blocks, conflicts_with_all = ["data_size", "size"])]
    blocks: Option<u64>,
    /// As --force.
    #[arg(short = 'f', visible_short_alias = 'F')]
    overwrite: bool,
    /// Say more: there is nothing more to say.
    #[arg(short)]
    verbose: bool,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// What can be said on the command lines of `mkfs.quayfs` and `fsck.quayfs`.
pub fn definitions() -> [clap::Command; 2] {
    [
        MkfsCall::command().about("Make a QuayFS volume, as mkfs(8) calls it."),
        FsckCall::command().about("Check or repair a QuayFS volume, as fsck(8) calls it."),
    ]
}

/// Runs `fsck.quayfs` with its arguments, the name in front.
pub fn run_fsck(args: Vec<OsString>) -> Result<u8, Failure> {
    let Some(mut call) = parse::<FsckCall>(args, ("fsck", FSCK_USAGE))? else {
        return Ok(exit::OK);
    };
    call.fsck.repair |= call.all;
    fsck::run(&call.fsck)
}

/// Runs `mkfs.quayfs` with its arguments, the name in front.
pub fn run_mkfs(args: Vec<OsString>) -> Result<u8, Failure> {
    let Some(mut call) = parse::<MkfsCall>(args, ("mkfs", exit::USAGE))? else {
        return Ok(exit::OK);
    };
    call.mkfs.force |= call.overwrite;
    // A size is that of the device; of a volume in a directory that of its data.
    match std::fs::metadata(&call.mkfs.volume) {
        Ok(meta) if !meta.is_dir() => call.mkfs.size = call.mkfs.size.or(call.blocks),
        _ => call.mkfs.data_size = call.mkfs.data_size.or(call.blocks),
    }
    mkfs::run(call.mkfs).map(|()| exit::OK)
}

/// Reads arguments; `None` if they ask for help or the version, which is printed. `usage`: whose help to name, and the
/// exit code of a wrong call.
fn parse<T: Parser>(args: Vec<OsString>, usage: (&str, u8)) -> Result<Option<T>, Failure> {
    match T::try_parse_from(args) {
        Ok(call) => Ok(Some(call)),
        Err(error) if !error.use_stderr() => {
            // A closed pipe is the reader's choice.
            let _ = error.print();
            Ok(None)
        }
        Err(error) => Err(Failure::new(
            usage.1,
            exit::usage_line(&error, Some(usage.0)),
        )),
    }
}

/// A size as mkfs(8) has it: blocks of 1 KiB, unless there is a unit.
fn parse_blocks(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(blocks) => blocks
            .checked_mul(1024)
            .ok_or_else(|| "larger than any device".into()),
        Err(_) => parse_size(text).map_err(|e| e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fsck(line: &str) -> Result<FsckCall, clap::Error> {
        FsckCall::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definitions_are_consistent() {
        FsckCall::command().debug_assert();
        MkfsCall::command().debug_assert();
    }

    #[test]
    fn fsck8_is_understood() {
        for line in [
            "fsck -a /v",
            "fsck -p -f /v",
            "fsck /v -y -v -C0",
            "fsck -C 3 -a /v",
        ] {
            assert!(fsck(line).unwrap().all, "{line}");
        }
        for line in ["fsck -n /v", "fsck -f /v", "fsck -fn --data /v"] {
            let call = fsck(line).unwrap();
            assert!(!call.all && !call.fsck.repair, "{line}");
        }
        for line in [
            "fsck",
            "fsck -n -a /v",
            "fsck -n --repair /v",
            "fsck -r /v",
            "fsck /v /w",
        ] {
            assert!(fsck(line).is_err(), "{line}");
        }
    }

    #[test]
    fn mkfs8_is_understood() {
        let mkfs = |line: &str| MkfsCall::try_parse_from(line.split_whitespace());
        let call = mkfs("mkfs -q -F -L name --pmem-size 32M --sparse /v 2048").unwrap();
        assert_eq!(
            (call.blocks, call.mkfs.label.as_deref()),
            (Some(2 << 20), Some("name"))
        );
        assert!(call.mkfs.quiet && call.overwrite && call.mkfs.sparse);
        assert_eq!(mkfs("mkfs /v 1G").unwrap().blocks, Some(1 << 30));
        for line in [
            "mkfs",
            "mkfs /v 1X",
            "mkfs /v 1 --data-size 1G",
            "mkfs /v 1 --size 1G",
            "mkfs -L a --label b /v",
        ] {
            assert!(mkfs(line).is_err(), "{line}");
        }
    }
}
