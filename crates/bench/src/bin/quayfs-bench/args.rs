//! The command line as clap sees it, and the help that teaches it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use quayfs_options::parse_size;
use std::path::PathBuf;

const HELP: &str = "\
Figures of a shared machine move; ratios of runs in turn do not. So name what you compare with, and
the workloads run on each directory in turn, several times.

Examples:
  quayfs-bench list                                    what there is
  quayfs-bench run overwrite-fsync --dir e=/mnt/ext4 --dir q=/mnt/q
  quayfs-bench run durable fxmark --dir e=/mnt/ext4 --dir q=/mnt/q --repeat 5 --json found.json
  quayfs-bench show found.json                         the same table again
  quayfs-bench report found.json --out found.html      plots of it, one page for a browser
  quayfs-bench report idle=i1.json idle=i4.json busy=b1.json busy=b4.json --out threads.html
  quayfs-bench papers staging                          what an idea brings: see quayfs-bench papers --help

Exit codes: 0 done, 1 failed or stopped (what was found until then is shown and stored), 2 wrong
usage.";

/// Measures mounted file systems side by side, and what the ideas behind QuayFS bring.
#[derive(Debug, Parser)]
#[command(name = "quayfs-bench", version, after_help = HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the workloads.
    List,
    /// Run workloads.
    Run(Box<Run>),
    /// Compare the papers' mechanisms with mounts that do without them.
    Papers(Box<Papers>),
    /// Show stored reports.
    Show {
        /// What `run --json` and `papers --json` wrote.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Write one HTML page with plots of stored reports. Those that differ in nothing but the number of
    /// threads become lines over threads.
    Report {
        /// What `run --json` and `papers --json` wrote. Files with different names are never joined.
        #[arg(required = true, value_name = "[NAME=]FILE")]
        files: Vec<String>,
        /// The page.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Run {
    /// Workloads or families of them, as `quayfs-bench list` shows them, or `all`.
    #[arg(required = true)]
    pub workloads: Vec<String>,
    /// A directory to run in, with a label for tables; at least one. Ratios are to the first.
    #[arg(long = "dir", value_name = "LABEL=PATH", required = true)]
    pub dirs: Vec<String>,
    /// Threads [default: the workload's].
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Measured time of a run [default: 5].
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Unmeasured time before it, in seconds [default: 1].
    #[arg(long, value_name = "SECONDS")]
    pub warmup: Option<f64>,
    /// Runs of each workload in each directory.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repeat: u32,
    /// End a run after so many operations of each thread.
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// Size of each thread's file [default: the workload's].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_size: Option<u64>,
    /// Number of files [default: the workload's].
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// Seed of all random numbers [default: 1].
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long a QuayFS mount may take to empty its staging area before and after a run.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub settle: f64,
    /// Bind threads to CPUs, in turn.
    #[arg(long)]
    pub pin: bool,
    /// Do not drop the kernel's caches before a run (only root can).
    #[arg(long)]
    pub keep_caches: bool,
    /// The process that serves a directory, if that is not QuayFS: its CPU time is reported.
    #[arg(long = "daemon", value_name = "LABEL=PID")]
    pub daemons: Vec<String>,
    /// Write all that was found to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The commit that is measured, for the report [default: that of the build, if it was told].
    #[arg(long)]
    pub commit: Option<String>,
}

const PAPERS_HELP: &str = "\
Each run has a volume of its own: a region below --pmem, data below --data, which are best a tmpfs (or
DAX) and a file system on a disk. Variants take turns. At the level `ops` the workloads call the file
system as a library, without a kernel; at the level `mount` the program `quayfs` mounts it below --dir.
There `transcm` has ext4 beside it, which takes root, losetup, mke2fs and mount.

Experiments: staging, ppt, transcm, rangelock, nodelog, together.

Examples:
  quayfs-bench papers                                     all, on the operation layer
  quayfs-bench papers staging rangelock --threads 1,16 --data /mnt/ssd --json found.json
  quayfs-bench papers nodelog --level both --repeat 5

Exit codes: 0 done, 1 failed or stopped (what was found until then is shown and stored), 2 wrong
usage.";

/// Arguments of `papers`.
#[derive(Debug, Args)]
#[command(after_help = PAPERS_HELP)]
pub struct Papers {
    /// Experiments [default: all].
    pub experiments: Vec<String>,
    /// Of those only rows with these workloads [default: all].
    #[arg(long = "workload", value_name = "NAME,...", value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Of each row only these variants [default: all].
    #[arg(long = "variant", value_name = "NAME,...", value_delimiter = ',')]
    pub variants: Vec<String>,
    /// What the workloads run on.
    #[arg(long, value_enum, default_value_t = Level::Ops)]
    pub level: Level,
    /// Numbers of threads, of those that an experiment has [default: all of them].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub threads: Vec<u32>,
    /// Measured time of a run; some rows take longer ones.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Unmeasured time before it, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub warmup: f64,
    /// Runs of each variant.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repeat: u32,
    /// End a run after so many operations of each thread.
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// Size of each thread's file [default: the experiment's].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_size: Option<u64>,
    /// Number of files [default: the experiment's].
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// Seed of all random numbers [default: 1].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Numbers of files of volumes that recover, in `transcm`. Their regions grow by 768 bytes for each.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1000, 10_000, 100_000])]
    pub recovery_files: Vec<u64>,
    /// Sizes of sparse data devices of volumes that recover, in `transcm`. Their regions grow by 20 bytes
    /// for each 4 KiB.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size, default_value = "1G,16G")]
    pub recovery_data: Vec<u64>,
    /// More mount options, for all variants.
    #[arg(short, long, value_name = "OPT,...")]
    pub options: Option<String>,
    /// Directory for data, and for regions that shall be on the disk [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Directory for regions [default: /dev/shm].
    #[arg(long, value_name = "DIR")]
    pub pmem: Option<PathBuf>,
    /// Directory to mount below [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The program that mounts [default: `quayfs` beside this one, else in $PATH].
    #[arg(long, value_name = "PROGRAM")]
    pub quayfs: Option<PathBuf>,
    /// Size of a region: small, so that its staging slots are used many times.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "96M")]
    pub pmem_size: u64,
    /// Size of the data.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "2G")]
    pub data_size: u64,
    /// Write all that was found to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The commit that is measured, for the report [default: that of the build, if it was told].
    #[arg(long)]
    pub commit: Option<String>,
}

/// What the workloads of `papers` run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// The operation layer, without a kernel.
    Ops,
    /// A mount.
    Mount,
    /// First one, then the other.
    Both,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
