//! `quayfs migrate`: the region or the data of a volume, in another place.

use std::path::Path;
use std::sync::Arc;

use quayfs_migrate::{MigrateError, Moved, Part, migrate};
use quayfs_options::format_size;

use super::args;
use super::exit::{FAILED, Failure, say};
use super::progress::Progress;
use super::unopened::{unopened, unreached};
use crate::mount::table;

/// Moves what is asked for, and says where it was.
pub fn run(args: &args::Migrate) -> Result<(), Failure> {
    let (part, new) = wanted(args);
    let path = table::resolve(&args.volume).map_err(|e| unreached(FAILED, &args.volume, &e))?;
    let meter = Arc::default();
    let shown = Progress::of(&meter, args.quiet);
    let moved = migrate(&path, part, (new, args.force), &meter);
    drop(shown);
    let moved = moved.map_err(failed)?;
    say(told(part, &moved));
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
        MigrateError::Volume(e) => unopened(FAILED)(e),
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
