//! `quayfs migrate`: the region or the data of a volume, in another place.

use std::path::Path;
use std::sync::Arc;

use quayfs_fs::closing::CloseError;
use quayfs_fs::volume::glance;
use quayfs_migrate::{MigrateError, Moved, Part, migrate};
use quayfs_options::format_size;
use quayfs_pmem::Backend;

use super::args;
use super::asking;
use super::exit::{FAILED, Failure, say, warn};
use super::interrupted;
use super::media;
use super::progress::Progress;
use super::unopened::unopened;

mod live;

/// Moves what is asked for, and says where it was.
pub fn run(args: &args::Migrate) -> Result<(), Failure> {
    let (part, new) = wanted(args);
    let (path, mounted) = asking::find(&args.volume, FAILED)?;
    let [volume, left] = [&args.volume, new].map(quayfs_shown::argument);
    let line = format!(
        "`quayfs info {volume}` says where its {part} has been left; if that is not {left}, what is there is a copy that is of no use, \
         and --force overwrites it"
    );
    if mounted.is_none() {
        media::expect_answers(&path).map_err(Failure::with(FAILED))?;
    }
    interrupted::says(FAILED, line)?;
    let meter = Arc::default();
    let shown = Progress::of(&meter, args.quiet);
    let new = (new, args.force);
    let (moved, pause) = match mounted {
        Some(entry) => {
            let live = live::run(&entry, part, new, &meter);
            live.map(|live| (live.moved, live.pause))
        }
        None => migrate(&path, part, new, &meter)
            .map(|moved| (moved, None))
            .map_err(failed),
    }?;
    drop(shown);
    say(told(part, &moved));
    if let Some(pause) = pause {
        say(format_args!("nothing was answered for {pause} ms"));
    }
    if glance(&path).is_ok_and(|found| found.backend == Backend::Volatile) {
        warn(super::VOLATILE_WARNING);
    }
    Ok(())
}

/// Which part is to be where.
fn wanted(args: &args::Migrate) -> (Part, &Path) {
    match (&args.pmem, &args.data) {
        (Some(new), _) => (Part::Pmem, new),
        (None, Some(new)) => (Part::Data, new),
        (None, None) => unreachable!("one of them is required"),
    }
}

fn failed(e: MigrateError) -> Failure {
    match e {
        MigrateError::Volume(e) | MigrateError::Close(CloseError::Volume(e)) => unopened(FAILED)(e),
        other => Failure::new(FAILED, other),
    }
}

fn told(part: Part, moved: &Moved) -> String {
    let (old, new) = (
        quayfs_shown::path(&moved.old),
        quayfs_shown::path(&moved.new),
    );
    let left = match moved.is_gone {
        true => format!("{old} is gone"),
        false => format!("{old} is part of no volume any more"),
    };
    let size = format_size(moved.bytes);
    format!("{part}  {size}, in {new}\n{left}")
}
