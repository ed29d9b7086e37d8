//! `quayfs mkfs`.

use super::args;
use super::exit::{FAILED, Failure, say, warn};
use crate::config::format_size;
use crate::mkfs::{MkfsOptions, mkfs};
use quayfs_pmem::Backend;

/// Makes a volume and says what that means for its owner.
pub fn run(args: args::Mkfs) -> Result<(), Failure> {
    let options = MkfsOptions {
        pmem: args.pmem,
        pmem_size: args.pmem_size,
        data: args.data,
        data_size: args.data_size,
        sparse: args.sparse,
        label: args.label,
        force: args.force,
        buffers: args.buffers,
    };
    let made = mkfs(&args.volume, &options).map_err(Failure::with(FAILED))?;
    let volume = args.volume.display();
    let (geometry, backend) = (&made.geometry, made.backend);
    say(format_args!("made volume {} in {volume}", made.uuid));
    say(format_args!(
        "pmem region {}, backend `{backend}`: {}",
        format_size(geometry.pmem_len),
        durable_when(backend)
    ));
    let capacity = format_size(geometry.visible_blocks() * quayfs_layout::BLOCK as u64);
    say(format_args!(
        "room for {capacity} of data in about {} files",
        geometry.inodes()
    ));
    say(format_args!(
        "mount it with `quayfs mount {volume} MOUNTPOINT`"
    ));
    if backend == Backend::Volatile {
        warn(super::VOLATILE_WARNING);
    }
    if args.sparse {
        warn("--sparse: if the disk below fills up, writes fail and the mount may turn read-only");
    }
    Ok(())
}

/// When an operation on a volume with this backend is durable, unless mount options say otherwise.
pub fn durable_when(backend: Backend) -> &'static str {
    match backend {
        Backend::Dax => "durable when an operation returns, also across a power failure",
        Backend::File => "durable at fsync, and every 5 seconds",
        Backend::Volatile => "survives the death of the daemon, not of the machine",
    }
}
