//! Arguments of the commands that show something.

use clap::Args;
use quayfs_fuse::wire::Opcode;
use std::path::PathBuf;
use std::time::Duration;

const STATUS_HELP: &str = "\
A volume is `degraded` if it works and something is to be looked at (damage, reads that failed,
little room left, a daemon that died within a day, not unmounted cleanly), and `failed` if it does
not do what it is there for (read-only after a failure, a daemon that is dead or does not answer
within a second, a repair that has not ended). Lines at the top say why, the worst first, and those
at the end what to do about each. Where no daemon answers, the media are read; nothing is changed.

Examples:
  quayfs status                        all volumes that are mounted, or being closed
  quayfs status /mnt/q                 this one
  quayfs status /srv/vol --json | jq   the same for programs, as docs/status.md describes it

Exit codes: 0 ok, 1 degraded, 2 failed (the worst of those shown), 3 wrong usage, no such volume,
not permitted.";

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_HELP)]
pub struct Status {
    /// A volume, or where it is mounted; all that are mounted or being closed without it.
    #[arg(value_name = "MOUNTPOINT|VOLUME")]
    pub target: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const STATS_HELP: &str = "\
docs/stats.md (installed in share/doc/quayfs) describes the numbers. Counters begin at 0 with each
daemon.

Examples:
  quayfs stats /mnt/q                            a line for each number
  quayfs stats /mnt/q --openmetrics              as Prometheus and others read it
  quayfs stats /mnt/q --listen 127.0.0.1:9641    the same by HTTP, until it is interrupted

Exit codes: 0 shown, 1 failed, 2 wrong usage.";

/// Arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_help = STATS_HELP)]
pub struct Stats {
    /// Where the volume is mounted, or the volume itself.
    #[arg(value_name = "MOUNTPOINT")]
    pub target: PathBuf,
    /// Print one JSON object.
    #[arg(long, conflicts_with_all = ["openmetrics", "listen"])]
    pub json: bool,
    /// Print the text format of OpenMetrics.
    #[arg(long)]
    pub openmetrics: bool,
    /// Serve OpenMetrics by HTTP, to this machine only: unix:PATH or 127.0.0.1:PORT.
    #[arg(long, value_name = "PLACE")]
    pub listen: Option<String>,
}

const TOP_HELP: &str = "\
Requests of the kernel by kind, with how long the daemon took for them, the processes that make
them, what is staged and drained, and the disk below. What the kernel answers from its caches does
not get here. q, Esc or Ctrl-C ends it.

Examples:
  quayfs top                the volume that is mounted
  quayfs top /mnt/q         this one

Exit codes: 0 seen, 1 failed, 2 wrong usage.";

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = TOP_HELP)]
pub struct Top {
    /// Where the volume is mounted, or the volume itself; not needed if there is only one.
    #[arg(value_name = "MOUNTPOINT")]
    pub target: Option<PathBuf>,
}

const TRACE_HELP: &str = "\
Requests of the kernel as they are answered, a line each: when it was begun, the process, how long
the daemon took, what was asked, the result (bytes, or why not), and of which file: its path if
that was seen since the trace began, its inode otherwise; then offset+length. What the kernel
answers from its caches does not get here. The mount never waits for it: what comes too fast is
missing, and a line says how much. It ends with Ctrl-C, and with the mount. Root and the user who
mounted may do it.

Operations:
  lookup forget batch_forget getattr statx setattr access readlink symlink link mknod mkdir create
  tmpfile unlink rmdir rename rename2 open read write flush release fsync syncfs fallocate lseek
  copy_file_range copy_file_range_64 bmap opendir readdir readdirplus releasedir fsyncdir statfs
  getxattr setxattr listxattr removexattr getlk setlk setlkw ioctl poll notify_reply setupmapping
  removemapping interrupt init destroy

Examples:
  quayfs trace /mnt/q                               all
  quayfs trace /mnt/q --op write --op fsync         these
  quayfs trace /mnt/q --pid 4711 --slower 10ms      what this process has waited for
  quayfs trace /mnt/q --json | jq .path             for programs, as docs/trace.md describes it

Exit codes: 0 ended, 1 failed, 2 wrong usage.";

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_HELP)]
pub struct Trace {
    /// Where the volume is mounted, or the volume itself.
    #[arg(value_name = "MOUNTPOINT")]
    pub target: PathBuf,
    /// Only this operation (see below); may be repeated.
    #[arg(long, value_name = "OP", value_parser = parse_op)]
    pub op: Vec<Opcode>,
    /// Only requests of the process or thread with this number; may be repeated.
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Vec<u32>,
    /// Only what took at least so long: 500us, 10ms, 1s.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub slower: Option<Duration>,
    /// Print a JSON object for each request.
    #[arg(long)]
    pub json: bool,
}

/// An operation by its name.
fn parse_op(text: &str) -> Result<Opcode, String> {
    let named = |op: &&Opcode| op.name() == text;
    Opcode::ALL
        .iter()
        .find(named)
        .copied()
        .ok_or_else(|| match &*nearest(text) {
            [] => "there is no such operation".into(),
            near => format!(
                "there is no such operation; {} may be meant",
                near.join(" or ")
            ),
        })
}

/// Names of operations that this may stand for: those that begin as it does, or else are about as long and
/// begin with its letter.
fn nearest(text: &str) -> Vec<&'static str> {
    const ALIKE: usize = 3;
    const NAMED: usize = 4;
    let text = text.to_ascii_lowercase();
    let same = |name: &str| {
        let pairs = name.bytes().zip(text.bytes());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let names = || Opcode::ALL.iter().map(|op| op.name());
    let near: Vec<_> = names().filter(|n| same(n) >= ALIKE).take(NAMED).collect();
    let far = |n: &&str| same(n) > 0 && n.len().abs_diff(text.len()) <= 1;
    match near.is_empty() {
        true => names().filter(far).take(NAMED).collect(),
        false => near,
    }
}

/// The number of a process.
fn parse_pid(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    number.ok_or_else(|| "the number of a process is wanted, as `pidof NAME` prints it".into())
}

const DOCTOR_HELP: &str = "\
Each line begins with ok, note or problem; the line below a note or problem says what to do.
Nothing is changed.

Examples:
  quayfs doctor                   this machine
  quayfs doctor /dev/nvme0n1p3    the same, and what a volume there would be

Exit codes: 0 all is ok, 1 notes, 2 problems, 3 wrong usage.";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP)]
pub struct Doctor {
    /// A device or directory for a volume, or a volume.
    #[arg(value_name = "PLACE")]
    pub target: Option<PathBuf>,
}

const INFO_HELP: &str = "\
`quayfs status` shows whether it is well, `quayfs stats` what it counts.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_every_operation() {
        let (_, list) = TRACE_HELP.split_once("Operations:\n").unwrap();
        let (list, _) = list.split_once("\n\n").unwrap();
        let mut told: Vec<_> = list.split_whitespace().collect();
        let mut all: Vec<_> = Opcode::ALL.iter().map(|op| op.name()).collect();
        told.sort_unstable();
        all.sort_unstable();
        assert_eq!(told, all);
    }

    #[test]
    fn a_wrong_operation_is_answered_with_those_that_are_like_it() {
        for (text, said) in [
            ("writ", "there is no such operation; write may be meant"),
            (
                "Rename",
                "there is no such operation; rename or rename2 may be meant",
            ),
            ("x", "there is no such operation"),
        ] {
            assert_eq!(parse_op(text), Err(said.into()));
        }
        assert_eq!(parse_op("write"), Ok(Opcode::Write));
    }

    #[test]
    fn a_process_has_a_number() {
        assert_eq!(parse_pid("4711"), Ok(4711));
        for text in ["bash", "", "-1"] {
            assert!(parse_pid(text).unwrap_err().contains("number of a process"));
        }
    }
}
