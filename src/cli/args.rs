//! The command line as clap sees it, and the help that teaches it.

mod changing;
mod mkfs;
mod quota;
mod watching;

pub use changing::{Dump, Kind, Migrate, Resize, Tune};
pub use mkfs::Mkfs;
pub use quota::Quota;
pub use watching::{Doctor, Info, Stats, Status, Top, Trace};

use quayfs_options::{format_size, parse_size};

use crate::mount::UnmountMode;
use crate::mount::probe::{Question, User};
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// A FUSE file system for an SSD, alone or behind a little persistent memory.
#[derive(Debug, Parser)]
#[command(name = "quayfs", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  quayfs mkfs /dev/nvme0n1p3                           a volume on an ordinary SSD
  quayfs mkfs /srv/vol --size 8G                       the same in a file, to try it
  quayfs mkfs /srv/vol --pmem /mnt/pmem0/q --pmem-size 16G --data /dev/nvme0n1
                                                       on persistent memory and an SSD
  quayfs mount /srv/vol /mnt/q                         mount it
  quayfs status                                        whether all that is mounted is well
  quayfs umount /mnt/q                                 unmount, and wait until all is written
  quayfs fsck /srv/vol                                 look for damage, unmounted
  quayfs fsck --repair /srv/vol                        repair it
  quayfs scrub /mnt/q --rate 50M                       look for damaged blocks while it is mounted
  quayfs quota /mnt/q --user alice --bytes 10G         limit a user, a group or a directory tree

Each command explains itself: quayfs mount --help";

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume.
    Mkfs(Mkfs),
    /// Mount a volume.
    Mount(Mount),
    /// Unmount, and wait until the volume is clean.
    Umount(Umount),
    /// Check or repair a volume that is not mounted.
    Fsck(Fsck),
    /// Verify every block and page, also while mounted.
    Scrub(Scrub),
    /// Show what users, groups and projects (directory trees) have and may have, or set it.
    Quota(Quota),
    /// Show whether volumes are well: health, fill, errors, and what to do.
    Status(Status),
    /// Show all that a mount counts, or serve it to a monitoring system.
    Stats(Stats),
    /// Watch what a mount is doing, second by second.
    Top(Top),
    /// Watch what is asked of a mount, request by request.
    Trace(Trace),
    /// Look whether this machine can mount, and what durability it gives.
    Doctor(Doctor),
    /// Show what a volume is.
    Info(Info),
    /// Give a volume more or less room.
    Resize(Resize),
    /// Move the region or the data of a volume to another device or file.
    Migrate(Migrate),
    /// Show what the structures of a volume hold.
    Dump(Dump),
    /// Change the label of a volume and the mount options that it keeps.
    Tune(Tune),
    /// Replace the daemon of a mount, for instance by a newer one, while the mount is in use.
    Restart(Restart),
    /// Say what this program can take over from another one, for that one.
    #[command(hide = true)]
    Succession(Succession),
    /// Ask a mount or a volume how it is, for this program itself: a process that can be left waiting.
    #[command(hide = true)]
    Probe(Probe),
    /// What udev is to know of a device that is a volume.
    #[command(hide = true)]
    Identify(Identify),
    /// What the daemon leaves to another process when its mount has failed.
    #[command(hide = true)]
    TurnReadOnly(TurnReadOnly),
}

/// Arguments of `turn-read-only`.
#[derive(Debug, Args)]
pub struct TurnReadOnly {
    /// Number of the mount in the mount table.
    pub device: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// Where it is mounted; or a volume.
    pub target: PathBuf,
    /// What is asked.
    #[arg(long, value_enum, default_value_t)]
    pub of: Question,
    /// Which user and group ask.
    #[arg(long, value_name = "UID:GID", value_parser = user)]
    pub user: Option<User>,
    /// In which groups that user is besides.
    #[arg(long, value_name = "GID", value_delimiter = ',')]
    pub groups: Vec<u32>,
    /// The device number of the file system that is asked.
    #[arg(long, value_name = "MAJOR:MINOR")]
    pub device: Option<String>,
}

fn user(text: &str) -> Result<User, String> {
    let numbers = text.split_once(':');
    let numbers = numbers.and_then(|(uid, gid)| uid.parse().ok().zip(gid.parse().ok()));
    numbers.ok_or_else(|| "no UID:GID".into())
}

/// Arguments of `identify`.
#[derive(Debug, Args)]
pub struct Identify {
    /// The device.
    pub device: PathBuf,
}

/// Arguments of `succession`.
#[derive(Debug, Args)]
pub struct Succession {
    /// Options of the mount.
    #[arg(short = 'o', long = "options")]
    pub options: Vec<String>,
}

const RESTART_HELP: &str = "\
For mounts that outlive their daemon (-o restart, and by default where that is possible). The
daemon answers the requests that it has begun, and ends; the next one recovers the volume and
answers all others. Programs that use the mount notice a pause and nothing else: nothing is
unmounted, and files stay open. A program that cannot go on with this volume is refused
beforehand. If the new daemon does not serve, the old program serves again, even if its file was
replaced or removed. The supervisor of the mount stays as it is until the mount is unmounted.

Root, and the user who mounted, can ask for it.

Examples:
  quayfs restart /mnt/q                          after an upgrade of the package
  quayfs restart /mnt/q --binary ./quayfs        with this program

Exit codes: 0 served by the new daemon, 1 failed: the line says what serves, 2 wrong usage.";

/// Arguments of `restart`.
#[derive(Debug, Args)]
#[command(after_help = RESTART_HELP)]
pub struct Restart {
    /// Where the volume is mounted.
    pub mountpoint: PathBuf,
    /// The program to go on with [default: the one at the path that the present daemon was started from].
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// How long the old daemon may take to end, and the new one to answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub within: u64,
}

const MOUNT_HELP: &str = "\
Options after -o, separated by commas:
  ro                         read-only: nothing is written to either device; with a warning also
                             where one of them is write-protected
  norecovery, noload         accepted with ro, which recovers in memory what a crash has left
  data=journal               all data goes through pmem (default)
      =ordered               data goes to the data device before its record commits
      =writeback             only metadata is journaled
  durability=op              an operation is durable when it returns
                             (default on `dax` and `volatile`)
            =commit          durable at fsync, at O_SYNC writes and every commit= seconds
                             (default on `file`)
  commit=SECONDS             1 to 300 (default 5)
  writethrough               each write(2) reaches the daemon (default)
  writeback                  the kernel collects writes: durable at fsync
  atomic_writes              several writes as one, by F2FS's calls, as SQLite uses them, and XFS's
                             exchange of ranges; files open for writing bypass the page cache
  open=answer                answer each open (default)
      =elide                 no open reaches the daemon: cheaper, no parallel O_DIRECT writes
  permissions=kernel         the kernel checks them for every caller (default)
             =owner          only the mounting user may enter, and may do everything: fewer messages
  acl                        access control lists, setfacl(1) (default with permissions=kernel)
  noacl                      none: what is stored is kept and not looked at
  usrquota grpquota quota    limits of users and groups hold (default where the volume counts them;
                             with it, a volume that does not is not mounted)
  noquota                    no limits hold, not of directory trees either; all is counted
  idmap                      mounts of this one may map ids, mount --bind -o X-mount.idmap=
  errors=remount-ro          damaged metadata turns the mount read-only (default)
        =continue            the operation gets EIO, the rest goes on
  checkpoint=adaptive        or swap, inplace: how rounds write to the data device; or double:
                             everything twice, as with a journal on it, to compare with
  buffers=N                  use only N of the staging buffers
  threads=N                  threads that serve requests (default: by the number of CPUs)
  transport=auto             /dev/fuse; with norestart FUSE over io_uring where the kernel has it
                             switched on
           =dev              /dev/fuse
           =uring            FUSE over io_uring; without it, /dev/fuse and a line in the log
  restart                    if the daemon dies, another one goes on, and applications wait for it
                             (default over /dev/fuse, since Linux 6.9)
  norestart                  the mount ends with its daemon
  idle=auto                  idle CPUs poll while requests come fast: in small virtual machines, as
                             root
      =poll                  on any machine, as root
      =halt                  never: saves power, costs up to 20 us a request
  read_ahead=SIZE            how far the kernel reads ahead of a sequential reader, as root
                             (default 4M)
  large=SIZE                 writes of at least this size go to the data device directly
                             (default: 128K with a region on a disk, elsewhere 0: none)
  memory=SIZE                memory of the daemon for metadata and, with a region on a disk, for
                             staged data, from 32M (default: a quarter of the machine's memory, or
                             of its control group's limit)
  allow_other                other users may enter
  nosuid nodev noexec nosymfollow noatime relatime strictatime nodiratime sync
                             as in mount(8)
  fsname=NAME subtype=NAME   what the mount table shows; subtype=none: type `fuse`
  remount                    change ro, nosuid, nodev, noexec, nosymfollow and their opposites of a
                             live mount; a request to change anything else is refused
  ablation=KEY:VALUE         for measurements, without one mechanism: staging:central,
                             checkpoint:swap, checkpoint:inplace, checkpoint:double, locking:file,
                             nodelog:ssd, workers:1, messages:all

What a volume keeps (`quayfs tune`) holds unless something is said here about the same thing. A
SIZE is bytes, or K, M, G, T in powers of 1024.

Examples:
  quayfs mount /srv/vol /mnt/q
  quayfs mount /srv/vol /mnt/q -o ro,allow_other
  quayfs mount /srv/vol /mnt/q --foreground        log to the terminal; Ctrl-C unmounts
  mount -t quayfs /dev/nvme0n1p3 /mnt/q            with mount.quayfs installed (make install)
  /dev/nvme0n1p3  /mnt/q  quayfs  allow_other,nofail  0 0   the same in /etc/fstab, for all users

The command returns when the mount answers. The daemon logs to quayfs.log in a volume that is a
directory, to quayfs-NAME.log beside one in a file, and to /var/log/quayfs-NAME.log for a device. At
8 MiB the log is renamed, with .old behind its name, and a new one is begun. QUAYFS_LOG=debug logs
more. SIGTERM and SIGINT unmount, SIGHUP reopens the log.
Exit codes, as of mount(8): 0 mounted, 1 wrong usage, 32 failed.";

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = MOUNT_HELP)]
pub struct Mount {
    /// What `mkfs` made a volume: a device, file or directory.
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub volume: PathBuf,
    /// Directory to mount on.
    pub mountpoint: PathBuf,
    /// Mount options (see below); may be repeated.
    #[arg(short = 'o', long = "options", value_name = "OPT,...")]
    pub options: Vec<String>,
    /// Stay in the foreground and log to the terminal.
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// Log to this file instead (see below); it must be a regular file of the caller, or a device.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Report on the standard output when the mount answers, then let go of it.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

const UMOUNT_HELP: &str = "\
All that is staged in pmem is written to the data device first, so this can take a while: how much
is left and how long that takes is shown when it takes more than a second. With --no-drain it
stays staged, where the region is durable (backends `dax` and `file`): the volume is clean, and
belongs to its region until it has been mounted again. It ends well when the volume is closed. If
it could not be, the line says why, what that means and what to do.

Where the file system is mounted in other places too (bind mounts, other mount namespaces), it
lives on there; that is said, and the command returns at once. With --lazy it does not wait for
the daemon, with --force no longer than for one that goes on. A mount whose daemon is dead, and
which no other one goes on with, is taken away from programs that use it without either.

Exit codes, as of umount(8): 0 unmounted, 1 wrong usage, 32 failed, in use, or the volume is not
closed.";

/// Arguments of `umount`.
#[derive(Debug, Args)]
#[command(after_help = UMOUNT_HELP)]
pub struct Umount {
    /// Where the volume is mounted, or the volume itself.
    pub mountpoint: PathBuf,
    /// Take the tree out of sight at once; the mount ends when it is no longer in use.
    #[arg(short, long)]
    pub lazy: bool,
    /// Take the tree away from those who use it: their calls fail. Works where the daemon does not answer.
    #[arg(short, long, conflicts_with = "lazy")]
    pub force: bool,
    /// Leave what is staged in the region, for the next mount.
    #[arg(long, conflicts_with = "lazy")]
    pub no_drain: bool,
    /// Do not show how far it is.
    #[arg(short, long)]
    pub quiet: bool,
}

impl Umount {
    /// How to unmount a tree that is in use.
    pub fn mode(&self) -> UnmountMode {
        match (self.force, self.lazy) {
            (true, _) => UnmountMode::Force,
            (false, true) => UnmountMode::Lazy,
            (false, false) => UnmountMode::Normal,
        }
    }
}

const FSCK_HELP: &str = "\
Without --repair nothing is changed; what a crash has left is no damage, and the next mount
recovers it. With --repair damage is repaired as far as the rest of the volume shows how. Each
file that loses something is named; files that have lost their names go to /lost+found.

Examples:
  quayfs fsck /srv/vol                   is anything damaged?
  quayfs fsck --data /srv/vol            and does every block match its checksum?
  quayfs fsck --repair --data /srv/vol   repair it

Exit codes, as of fsck(8): 0 no damage, 1 repaired and nothing lost, 4 damage is left, or repaired
with losses, 8 could not check or repair, 16 wrong usage, 32 a repair was interrupted.";

/// Arguments of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = FSCK_HELP)]
pub struct Fsck {
    /// What `mkfs` made: a device, file or directory. It must not be mounted.
    pub volume: PathBuf,
    /// Put right what is damaged.
    #[arg(long)]
    pub repair: bool,
    /// Also read every block of every file and verify its checksum.
    #[arg(long)]
    pub data: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Do not show how far it is.
    #[arg(long)]
    pub quiet: bool,
}

const SCRUB_HELP: &str = "\
Every block of every file, staged or on the data device, and every page of metadata is read and
its checksum verified. Damaged files are listed by name with the bytes that cannot be read;
nothing of that is changed. Pages of metadata that a mount has whole in memory, and that have
rotted on the disk below, are written again; page table and slots are compared only where the
mount has changed them.

The volume may be in use: the daemon does the work, and logs what it finds. Only CAP_SYS_ADMIN, or
the user who mounted, may start it. Ctrl-C stops it.

fsck proves more (that all structures fit together), but needs the volume unmounted.

Examples:
  quayfs scrub /mnt/q                  as fast as the devices allow
  quayfs scrub /mnt/q --rate 50M/s     at most so fast
  quayfs scrub /srv/vol --json         a volume at rest, for scripts
  quayfs status /mnt/q                 how the last one went

Exit codes: 0 nothing found, 1 failed or stopped, 2 wrong usage, 4 damage found.";

/// Arguments of `scrub`.
#[derive(Debug, Args)]
#[command(after_help = SCRUB_HELP)]
pub struct Scrub {
    /// What `mkfs` made, or where it is mounted.
    pub target: PathBuf,
    /// Most bytes to read in a second, at least 64K; K, M, G are powers of 1024 [default: no limit].
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Do not show how far it is.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Slower than that no scrub comes to an end: then the unit was left out.
const LEAST_RATE: u64 = 64 << 10;

/// A size, `/s` behind it or not.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text.strip_suffix("/s").unwrap_or(text)) {
        Ok(rate) if rate < LEAST_RATE => Err(format!(
            "{} a second are too few, the least is 64K: write the unit too, as in 100M",
            format_size(rate)
        )),
        Ok(rate) => Ok(rate),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use quayfs_options::{MountOptions, OptionError};

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What is longer is broken where it is shown, and no longer stands in its columns.
    #[test]
    fn help_fits_a_hundred_columns_as_it_is_written() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            for line in help.unwrap_or_default().lines() {
                assert!(
                    line.chars().count() <= 100,
                    "{}: {line}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn sizes_and_paths_are_read() {
        let cli = Cli::try_parse_from([
            "quayfs",
            "mkfs",
            "/v",
            "--pmem",
            "/p",
            "--pmem-size",
            "1G",
            "--data-size",
            "8g",
            "--sparse",
            "--label",
            "x",
            "--force",
            "--buffers",
            "2",
            "--mirror-size",
            "64M",
        ]);
        let Command::Mkfs(m) = cli.unwrap().command else {
            panic!("not mkfs")
        };
        assert_eq!(m.volume, PathBuf::from("/v"));
        assert_eq!(m.pmem, Some(PathBuf::from("/p")));
        assert_eq!((m.pmem_size, m.data_size), (Some(1 << 30), Some(8 << 30)));
        assert_eq!((m.data, m.buffers), (None, Some(2)));
        assert_eq!(m.mirror_size, Some(64 << 20));
        assert!(m.sparse && m.force);
    }

    #[test]
    fn rates_are_read() {
        for (text, rate) in [("50M", 50 << 20), ("50M/s", 50 << 20), ("65536", 64 << 10)] {
            assert_eq!(parse_rate(text), Ok(rate));
        }
        for text in ["100", "100/s", "0", "63K"] {
            let why = parse_rate(text).unwrap_err();
            assert!(
                why.ends_with("the least is 64K: write the unit too, as in 100M"),
                "{why}"
            );
        }
        for text in ["", "/s", "0/s", "5M/h", "fast"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_may_be_repeated() {
        let cli = Cli::try_parse_from(["quayfs", "mount", "v", "m", "-o", "ro", "-osync", "-f"]);
        let Command::Mount(m) = cli.unwrap().command else {
            panic!("not mount")
        };
        assert_eq!(m.options, ["ro", "sync"]);
        assert!(m.foreground && !m.daemon);
    }

    #[test]
    fn every_mount_option_is_in_the_help() {
        for word in [
            "ro",
            "data=",
            "=ordered",
            "=writeback",
            "durability=",
            "commit=",
            "checkpoint=",
            "writeback",
            "writethrough",
            "atomic_writes",
            "open=",
            "=elide",
            "permissions=",
            "=owner",
            "acl",
            "noacl",
            "usrquota",
            "grpquota",
            "noquota",
            "idmap",
            "errors=",
            "=continue",
            "transport=",
            "restart",
            "norestart",
            "idle=",
            "read_ahead=",
            "large=",
            "memory=",
            "buffers=",
            "ablation=",
            "allow_other",
            "nosuid",
            "nodev",
            "noexec",
            "nosymfollow",
            "noatime",
            "relatime",
            "strictatime",
            "threads=",
            "fsname=",
            "subtype=",
            "remount",
            "sync",
        ] {
            assert!(MOUNT_HELP.contains(word), "{word}");
        }
    }

    /// What the help says of `-o`: the names at the beginning of its lines, without values.
    fn options_of_the_help() -> Vec<&'static str> {
        let (list, _) = MOUNT_HELP.split_once("\n\nExamples:").unwrap();
        let lines = list.lines().filter_map(|l| l.strip_prefix("  "));
        lines
            .filter(|l| !l.starts_with(' '))
            .flat_map(|l| l.split("  ").next().unwrap().split([' ', ',']))
            .filter(|word| !word.is_empty())
            .map(|word| word.split('=').next().unwrap())
            .collect()
    }

    #[test]
    fn the_parser_and_the_readme_have_every_option_of_the_help() {
        let readme = include_str!("../../README.md");
        let (_, table) = readme.split_once("<!-- ANCHOR: options -->").unwrap();
        let (table, _) = table.split_once("<!-- ANCHOR_END: options -->").unwrap();
        let quoted = table.split('`').skip(1).step_by(2);
        let told: Vec<_> = quoted.map(|w| w.split('=').next().unwrap()).collect();
        let all = options_of_the_help();
        assert!(all.len() > 30, "{all:?}");
        for option in all {
            let parsed = MountOptions::parse(&[option]);
            let known = !matches!(parsed, Err(OptionError::Unknown(_)));
            assert!(known, "{option}: nothing in crates/options/src/parse.rs");
            assert!(told.contains(&option), "{option}: no row in README.md");
        }
    }
}
