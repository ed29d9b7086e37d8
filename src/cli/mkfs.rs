//! `quayfs mkfs`.

use crate::mount::table;
use quayfs_mkfs::{MkfsError, MkfsOptions, MkfsReport, Plan, Undo, WriteCache};
use quayfs_options::format_size;

use super::args;
use super::exit::{FAILED, Failure, PROGRAM, say, warn};
use super::interrupted;
use super::media;
use super::progress::Progress;
use super::unopened;
use quayfs_pmem::Backend;
use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Makes a volume and says what that means for its owner.
pub fn run(args: args::Mkfs) -> Result<(), Failure> {
    let sizes = [args.size, args.data_size, args.pmem_size];
    let parts = [&args.pmem, &args.data];
    // All of it was left to mkfs, and nothing was there.
    let unasked = sizes.iter().all(Option::is_none)
        && parts.iter().all(|part| part.is_none())
        && !args.volume.join("data").exists();
    let options = MkfsOptions {
        pmem: args.pmem,
        pmem_size: args.pmem_size,
        data: args.data,
        data_size: args.data_size,
        size: args.size,
        sparse: args.sparse,
        label: args.label,
        force: args.force,
        buffers: args.buffers,
        mirror_size: args.mirror_size,
        owner: args.owner,
        mode: args.mode,
    };
    let watch = media::Watch::of(&args.volume);
    if let Some(volume) = mounted_on(&args.volume) {
        let (shown, volume) = (
            quayfs_shown::path(&args.volume),
            quayfs_shown::path(&volume),
        );
        let why = format!("{shown}: the volume {volume} is mounted there: name another place");
        return Err(Failure::new(FAILED, why));
    }
    let plan = Plan::new(&args.volume, &options).map_err(refused)?;
    for lost in plan.overwritten() {
        warn(format_args!("--force overwrites {lost}"));
    }
    for path in plan.made_private() {
        let path = quayfs_shown::path(path);
        warn(format_args!(
            "{path}: others could read it; its mode is 0600 now, but processes that have it open can still read it"
        ));
    }
    let undo = Arc::new(Undo::default());
    drop(watch);
    let may_lose = !plan.overwritten().is_empty();
    undo_on_signal(&undo, may_lose).map_err(Failure::with(FAILED))?;
    // In another thread: a signal goes to the first one, and is not seen while that waits for a disk.
    let meter = Arc::default();
    let shown = Progress::of(&meter, args.quiet);
    let make = || plan.carry_out_measured(&undo, &meter);
    let made = thread::scope(|scope| scope.spawn(make).join())
        .unwrap_or_else(|panic| resume_unwind(panic));
    drop(shown);
    let made = made.map_err(Failure::with(FAILED))?;
    if !args.quiet {
        report(&args.volume, &made, unasked);
    }
    if made.backend == Backend::Volatile {
        warn(super::VOLATILE_WARNING);
    }
    if args.sparse {
        warn(
            "--sparse: if the disk below fills up, writes fail and the mount may turn read-only; the pmem region is \
             allocated when it is mounted",
        );
    }
    Ok(())
}

/// The volume that is mounted on a directory.
fn mounted_on(directory: &Path) -> Option<PathBuf> {
    let entry = table::mounted_on(&table::resolve(directory).ok()?).ok()??;
    entry.is_quayfs().then(|| entry.source.into())
}

/// Why nothing is made; of what is mounted also where.
fn refused(why: MkfsError) -> Failure {
    let MkfsError::Busy(path) = &why else {
        return Failure::new(FAILED, why);
    };
    // It may be the region in a volume that is a directory.
    let volumes = [Some(path.as_path()), path.parent()];
    if let Some(line) = volumes.into_iter().flatten().find_map(unopened::mounted) {
        return Failure::new(FAILED, line);
    }
    match table::of_device(path) {
        Some(target) => {
            let (device, target) = (quayfs_shown::path(path), quayfs_shown::path(&target));
            Failure::new(
                FAILED,
                format_args!("{device}: in use: mounted on {target}"),
            )
        }
        None => Failure::new(FAILED, why),
    }
}

/// From here on a signal that asks for the end removes what has been made, if not all of it has, and ends the process.
fn undo_on_signal(undo: &Arc<Undo>, may_lose: bool) -> io::Result<()> {
    // Ignored: beyond the limit of file sizes is an error like others.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new(interrupted::heeded())?;
    let undo = Arc::clone(undo);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                undo.interrupt(|| {
                    let lost = match may_lose {
                        true => ", and what was to be overwritten may be lost",
                        false => "",
                    };
                    let line = format!(
                        "interrupted (signal {signal}): nothing is left of what was made{lost}"
                    );
                    Failure::new(FAILED, line).report(PROGRAM);
                    std::process::exit(FAILED.into());
                });
            }
        })?;
    Ok(())
}

/// `unasked`: where its parts are, and how long, was left to mkfs.
fn report(volume: &Path, made: &MkfsReport, unasked: bool) {
    let in_directory = volume.is_dir();
    let argument = quayfs_shown::argument(volume);
    let volume = quayfs_shown::path(volume);
    let (geometry, backend) = (&made.geometry, made.backend);
    say(format_args!("made volume {} in {volume}", made.uuid));
    if unasked && in_directory {
        let size = format_size(geometry.data_blocks * quayfs_layout::BLOCK as u64);
        say(format_args!(
            "a directory with two files, `pmem` and `data` ({size}: a quarter of what is free, at most 8 GiB); --size SIZE makes one file instead"
        ));
    }
    say(format_args!(
        "pmem region {}, backend `{backend}`: {}",
        format_size(geometry.pmem_len),
        durable_when(backend)
    ));
    match made.cache {
        Some(WriteCache::Volatile) => say(format_args!(
            "its disk has a write cache, which each commit flushes"
        )),
        Some(WriteCache::Safe) => say(format_args!(
            "its disk says that no power failure loses what it has taken (no write cache, or a protected one)"
        )),
        None => {}
    }
    let capacity = format_size(geometry.visible_blocks() * quayfs_layout::BLOCK as u64);
    say(format_args!(
        "room for {capacity} of data, and for up to about {} files",
        two_digits(geometry.files_about())
    ));
    say(format_args!(
        "mount it with `quayfs mount {argument} MOUNTPOINT`"
    ));
}

/// A number that is not known more exactly.
fn two_digits(n: u64) -> u64 {
    let unit = 10u64.pow(n.checked_ilog10().unwrap_or(0).saturating_sub(1));
    n / unit * unit
}

/// When an operation on a volume with this backend is durable, unless mount options say otherwise.
pub fn durable_when(backend: Backend) -> &'static str {
    match backend {
        Backend::Dax => "durable when an operation returns, also across a power failure",
        Backend::File => "durable at fsync, and every 5 seconds",
        Backend::Volatile => "survives the death of the daemon, not of the machine",
    }
}
