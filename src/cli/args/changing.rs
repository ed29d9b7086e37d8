//! Arguments of the commands that change a volume as a whole.

use clap::Args;
use std::path::PathBuf;

const TUNE_HELP: &str = "\
Without an option it shows what is so, and changes nothing. The volume must not be mounted. A crash leaves the old
or the new.

Stored options hold at each mount unless something is said about the same thing with -o or in /etc/fstab. A volume
keeps only how QuayFS works (data=, durability=, commit=, noatime, ...), not who may use it (allow_other, suid,
permissions=, ...).

Examples:
  quayfs tune /srv/vol                                   what is so
  quayfs tune /dev/nvme0n1p3 --label photos              the name, as LABEL= finds it
  quayfs tune /srv/vol --options commit=30,noatime       at each mount from now on
  quayfs tune /srv/vol --options ''                      no longer

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Arguments of `tune`.
#[derive(Debug, Args)]
#[command(after_help = TUNE_HELP)]
pub struct Tune {
    /// What `mkfs` made a volume; it must not be mounted.
    pub volume: PathBuf,
    /// Name of the volume, at most 64 bytes; an empty one takes it away.
    #[arg(short = 'L', long)]
    pub label: Option<String>,
    /// Mount options that the volume keeps, at most 1024 bytes, in place of those that it has.
    #[arg(short = 'o', long, value_name = "OPT,...")]
    pub options: Option<String>,
}
