//! Arguments of `mkfs`.

use std::path::PathBuf;

use clap::Args;
use quayfs_options::parse_size;

use super::quota::{parse_group, parse_user};

const MKFS_HELP: &str = "\
The pmem region holds all metadata, and the data on its way to the data device. Where it lies
decides when an operation is durable:
  on a file system mounted with DAX   `dax`: when it returns; survives a power failure
  on an ordinary file or block device `file`: at fsync, and every 5 seconds
  on tmpfs                            `volatile`: lost when the machine goes down; for tests

Both are allocated in full now, so that no write can fail later for want of space below;
--sparse leaves that of the data to chance, and that of the region to the next mount for writing.

Access to them is access to every file. What mkfs makes is open to its owner alone; a
file that is there already has to be that, too (mode 0600, yours or root's), here and at each mount.

On one device or file the region comes first and the data behind it: DEVICE, or FILE with --size if
it is not there yet. Else VOLUME is a directory that holds or names the two.

Examples:
  quayfs mkfs /dev/nvme0n1p3
  quayfs mkfs /srv/vol --size 8G
  quayfs mkfs /srv/vol --pmem /mnt/pmem0/region --pmem-size 16G --data /dev/nvme0n1
  quayfs mkfs /srv/vol --pmem /dev/shm/region --pmem-size 256M --data-size 2G --sparse
  quayfs mkfs /srv/vol --owner alice:staff --mode 750   the root directory belongs to another user

Sizes are bytes, or K, M, G, T in powers of 1024.
Exit codes: 0 made, 1 failed or interrupted (nothing is left of what was made, and nothing was
overwritten unless --force was given), 2 wrong usage.";

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
#[command(after_help = MKFS_HELP)]
pub struct Mkfs {
    /// Block device, or with --size file, that holds the volume; or directory that holds or names its two
    /// parts, created if missing.
    pub volume: PathBuf,
    /// File or device for the pmem region [default: VOLUME/pmem].
    #[arg(long, value_name = "PATH")]
    pub pmem: Option<PathBuf>,
    /// Size of the pmem region [default: that of an existing PATH, or 256M; of one device a sixteenth,
    /// 64M to 4G, and not less than a 64th].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub pmem_size: Option<u64>,
    /// File or block device for the data [default: VOLUME/data].
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Size of the data [default: that of an existing PATH, or a quarter of the free space, at most
    /// 8G].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub data_size: Option<u64>,
    /// Size of a file that is to hold the whole volume, and is made if missing.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Do not allocate files in full: a write may find the disk below full.
    #[arg(long)]
    pub sparse: bool,
    /// Name of the volume, at most 64 bytes.
    #[arg(short = 'L', long)]
    pub label: Option<String>,
    /// Number of staging buffers, 1 to 16 [default: at most 4, by the size of the pmem region].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub buffers: Option<u32>,
    /// Space of the data device that is reserved for a copy of the metadata, which this version does not write [default: a 128th].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub mirror_size: Option<u64>,
    /// Whose the root directory is, by name or number [default: yours].
    #[arg(long, value_name = "USER[:GROUP]", value_parser = parse_owner)]
    pub owner: Option<(u32, Option<u32>)>,
    /// Permissions of the root directory, in octal [default: 755].
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// Overwrite what looks like a file system or a volume, and is named then; take over what others
    /// have access to; use a directory with other things in it.
    #[arg(long)]
    pub force: bool,
    /// Print no more than warnings, and do not show how far it is.
    #[arg(short, long)]
    pub quiet: bool,
}

/// A user, and perhaps a group, by name or number.
fn parse_owner(text: &str) -> Result<(u32, Option<u32>), String> {
    match text.split_once(':') {
        Some((user, group)) => Ok((parse_user(user)?, Some(parse_group(group)?))),
        None => Ok((parse_user(text)?, None)),
    }
}

/// Permission bits in octal.
fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "permissions are octal, 0 to 7777".into())
}
