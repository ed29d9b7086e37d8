//! Arguments of the commands that show something.

use clap::Args;
use std::path::PathBuf;

const STATUS_HELP: &str = "\
A volume is `degraded` if it works and something is to be looked at (damage, reads that failed, little room left, a
daemon that died within a day, not unmounted cleanly), and `failed` if it does not do what it is there for (read-only after
a failure, a daemon that is dead or does not answer within a second, a repair that has not ended). A line says why, and one
what to do. Where no daemon answers, it is told what the media say; nothing is changed.

Examples:
  quayfs status                        all volumes that are mounted
  quayfs status /mnt/q                 this one
  quayfs status /srv/vol --json | jq   the same for programs, as docs/status.md describes it

Exit codes: 0 ok, 1 degraded, 2 failed (the worst of those shown), 3 wrong usage, no such volume, not permitted.";

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_HELP)]
pub struct Status {
    /// A volume, or where it is mounted; all that are mounted without it.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    pub target: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const INFO_HELP: &str = "\
How a volume is, `quayfs status` says.

Examples:
  quayfs info /srv/vol             what was made, and where it is mounted
  quayfs info /mnt/q --json | jq   everything the daemon knows about itself

Exit codes: 0 shown, 1 failed, 2 wrong usage.";

/// Arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_HELP)]
pub struct Info {
    /// What `mkfs` made, or where it is mounted.
    pub target: PathBuf,
    /// Print one JSON object, of a mount with everything that its daemon knows.
    #[arg(long)]
    pub json: bool,
}
