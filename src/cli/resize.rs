//! `quayfs resize`: a data device of another length.

use std::sync::Arc;

use quayfs_layout::BLOCK;
use quayfs_layout::geometry::Geometry;
use quayfs_options::format_size;
use quayfs_resize::{ResizeError, Resized, resize};

use super::args;
use super::exit::{FAILED, Failure, say};
use super::progress::Progress;
use super::unopened::{unopened, unreached};
use crate::mount::table;

mod mounted;

/// Resizes, and says what has become of the volume.
pub fn run(args: &args::Resize) -> Result<(), Failure> {
    let path = table::resolve(&args.volume).map_err(|e| unreached(FAILED, &args.volume, &e))?;
    let entry = table::mount_for(&path)
        .map_err(|e| Failure::new(FAILED, format_args!("mount table: {e}")))?;
    if let Some(entry) = entry {
        say(mounted::resize(&entry, args)?);
        return Ok(());
    }
    let meter = Arc::default();
    let shown = Progress::of(&meter, args.quiet);
    let resized = resize(&path, args.data, &meter);
    drop(shown);
    let resized = resized.map_err(|failed| match failed {
        ResizeError::Volume(e) => unopened(FAILED)(e),
        other => Failure::new(FAILED, other),
    })?;
    say(told(&resized));
    Ok(())
}

/// What has become of a volume, in lines.
pub fn told(resized: &Resized) -> String {
    let Resized { before, after } = resized;
    let change = |what: &str, size: &dyn Fn(&Geometry) -> u64| {
        let [old, new] = [before, after].map(|g| format_size(size(g) * BLOCK as u64));
        match old == new {
            true => format!("{what}  {new}, as before"),
            false => format!("{what}  {new}, before {old}"),
        }
    };
    [
        change("data device", &|g| g.data_blocks),
        change("room for data", &|g| g.visible_blocks()),
        change("staging", &|g| g.buffers * g.slots_per_buffer),
        change("metadata", &|g| g.node_pages),
    ]
    .join("\n")
}
