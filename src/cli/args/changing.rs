//! Arguments of the commands that change a volume as a whole.

use clap::{ArgGroup, Args, ValueEnum};
use quayfs_options::parse_size;
use quayfs_resize::Wanted;
use std::path::PathBuf;

const TUNE_HELP: &str = "\
Without an option it shows what is so, and changes nothing. The volume must not be mounted. A
crash leaves the old or the new.

Stored options hold at each mount unless something is said about the same thing with -o or in
/etc/fstab. A volume keeps only how QuayFS works (data=, durability=, commit=, noatime, ...), not
who may use it (allow_other, suid, permissions=, ...).

Examples:
  quayfs tune /srv/vol                                   what is so
  quayfs tune /dev/nvme0n1p3 --label photos              the name, as LABEL= finds it
  quayfs tune /srv/vol --options commit=30,noatime       at each mount from now on
  quayfs tune /srv/vol --options ''                      no longer
  quayfs tune /srv/vol --upgrade                         what new volumes have, for an earlier one

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
    /// Take on what volumes have that are made now, as far as that can be: a copy of its tables, and the owners of
    /// files are counted and can have quotas. Builds that do not know that refuse the volume afterwards.
    #[arg(long, conflicts_with_all = ["label", "options"])]
    pub upgrade: bool,
}

const DUMP_HELP: &str = "\
Structures:
  superblock         which volume it is, where its areas lie, the words of the journal (the default)
  records            records that are not digested, with what they change
  slots              blocks that are staged
  batches            heads of the batch log, and batches that a replay would apply
  table-log          the page-table log, and what an unfinished transaction would put back
  page-table         where each block is, a line for each run of blocks
  nodes              the node address table, with what each page is
  node N             a page of metadata, by its node id
  inode N            an inode, by its number (ls -i), with its extents or its target
  directory N        the entries of a directory, by its inode number
  free               free blocks, inodes, node ids and node pages

Nothing is changed. The volume must not be mounted. Logs are shown as they lie on the media, the
rest as the next mount would find it. What is damaged is said where it would be; `quayfs fsck`
lists all that is.

Examples:
  quayfs dump /srv/vol
  quayfs dump /srv/vol inode 1
  quayfs dump /srv/vol page-table --first 100000 --lines 20
  quayfs dump /srv/vol nodes --lines 1000000 --json | jq '.nodes[] | select(.kind == \"damaged\")'

Exit codes: 0 shown, 1 failed, 2 wrong usage.";

/// Arguments of `dump`.
#[derive(Debug, Args)]
#[command(after_help = DUMP_HELP)]
pub struct Dump {
    /// What `mkfs` made a volume; it must not be mounted.
    pub volume: PathBuf,
    /// Which structure (see below).
    #[arg(value_enum, default_value = "superblock", hide_possible_values = true)]
    pub structure: Kind,
    /// Which node, inode or directory.
    #[arg(value_name = "N")]
    pub number: Option<u64>,
    /// Where to begin in a long list: an LBN, a node id, a number of a record, batch or entry.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u64,
    /// Most lines of a long list; if there would be more, `next` says where to go on.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub lines: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A kind of structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Which volume it is, and in which state.
    Superblock,
    /// Records that are not digested.
    Records,
    /// Blocks that are staged.
    Slots,
    /// The batch log.
    Batches,
    /// The page-table log.
    TableLog,
    /// Where each block is.
    PageTable,
    /// The node address table.
    Nodes,
    /// A page of metadata.
    Node,
    /// An inode.
    Inode,
    /// The entries of a directory.
    Directory,
    /// What is free.
    Free,
}

const RESIZE_HELP: &str = "\
For a volume that is unmounted, or mounted: then programs wait meanwhile, and files stay open. The
mount has to be one that outlives its daemon, as is the default. A crash at any moment leaves the
volume as it was or as it is to be.

A file that holds the data is made longer or shorter; a device has to be made larger beforehand,
and can be made smaller afterwards. More data take more of the region for their page table, 12
bytes for each 4 KiB, which staging gives up, or free pages of metadata; what can be had is said
where it is too much. Less can be had down to the last block in use.

A region of another size is a new file beside the old one, which then takes its place; where the
data are in the same file they are copied, unless the file system can share blocks. A region that
is a device stays as it is.

Sizes are bytes, or K, M, G, T in powers of 1024.

Examples:
  quayfs resize /srv/vol --data 20G
  quayfs resize /mnt/q --data 20G
  quayfs resize /srv/vol --pmem 2G
  lvextend -L +100G vg/data && quayfs resize /srv/vol --data max

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Arguments of `resize`.
#[derive(Debug, Args)]
#[command(after_help = RESIZE_HELP)]
#[command(group = ArgGroup::new("size").args(["data", "pmem"]).required(true).multiple(true))]
pub struct Resize {
    /// What `mkfs` made a volume, or where it is mounted.
    pub volume: PathBuf,
    /// Size of the data device, as of `mkfs --data-size`, or `max` for all there is; of a volume on one device or file,
    /// what is behind the region.
    #[arg(long, value_name = "SIZE|max", value_parser = parse_wanted)]
    pub data: Option<Wanted>,
    /// Size of the pmem region, as of `mkfs --pmem-size`; it has to be a file.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub pmem: Option<u64>,
    /// Do not show how far it is.
    #[arg(short, long)]
    pub quiet: bool,
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "max" => Ok(Wanted::All),
        _ => parse_size(text)
            .map(Wanted::Bytes)
            .map_err(|e| e.to_string()),
    }
}

const MIGRATE_HELP: &str = "\
The volume has a place for its region and one for its data; one of them is moved. It goes on from
the new place when all has been copied, has been read again and is as it was; a crash at any
moment leaves it with the old place or the new one. The old place is part of no volume from then
on.

NEW is a device, or a file, which is made if it does not exist. What is there is overwritten only
with --force.

If the volume is mounted, it is used on meanwhile. Data are copied while files are written, and
again what has been written since; only the last of it has programs wait. A region is copied while
they wait, which takes some seconds for each GiB. If anything fails, the mount goes on with the
old place.

Examples:
  quayfs migrate /srv/vol --data /dev/vg/larger     the data, to another disk
  quayfs migrate /mnt/q --data /dev/vg/larger       the same, of what is mounted there
  quayfs migrate /srv/vol --pmem /mnt/pmem/region   the region, to persistent memory

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Arguments of `migrate`.
#[derive(Debug, Args)]
#[command(after_help = MIGRATE_HELP)]
#[command(group = ArgGroup::new("part").args(["pmem", "data"]).required(true))]
pub struct Migrate {
    /// The directory of a volume, or where it is mounted.
    #[arg(value_name = "VOLUME|MOUNTPOINT")]
    pub volume: PathBuf,
    /// Where the region goes.
    #[arg(long, value_name = "NEW")]
    pub pmem: Option<PathBuf>,
    /// Where the data go.
    #[arg(long, value_name = "NEW")]
    pub data: Option<PathBuf>,
    /// Overwrite what is there.
    #[arg(short, long)]
    pub force: bool,
    /// Do not show how far it is.
    #[arg(short, long)]
    pub quiet: bool,
}
