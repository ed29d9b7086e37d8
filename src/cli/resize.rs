//! `quayfs resize`: a data device or a region of another length.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use quayfs_fs::closing::CloseError;
use quayfs_fs::volume::{Place, config_of, locate};
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::Geometry;
use quayfs_options::format_size;
use quayfs_resize::{ResizeError, Resized, Wanted, resize, resize_region};
use signal_hook::consts::SIGXFSZ;

use super::args;
use super::asking;
use super::exit::{FAILED, Failure, say, warn};
use super::interrupted;
use super::media;
use super::progress::Progress;
use super::status::Below;
use super::unopened::unopened;

mod mounted;

/// One of the two media, and its size.
#[derive(Clone, Copy)]
enum Change {
    Data(Wanted),
    Pmem(u64),
}

/// Resizes, and says what has become of the volume.
pub fn run(args: &args::Resize) -> Result<(), Failure> {
    let (path, entry) = asking::find(&args.volume, FAILED)?;
    if let Some(entry) = entry {
        let shown = quayfs_shown::argument(&entry.target);
        let line =
            format!("the mount goes on; whether it is resized is said by `quayfs info {shown}`");
        interrupted::says(FAILED, line)?;
        return mounted::resize(&entry, args);
    }
    media::expect_answers(&path).map_err(Failure::with(FAILED))?;
    // Beyond the limit of file sizes is an error like others.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(Failure::with(FAILED))?;
    let config = config_of(&path).map_err(unopened(FAILED))?;
    let shown = quayfs_shown::argument(&args.volume);
    let left = match args.pmem {
        Some(_) => {
            "; what there is of a new region lies beside the old one, and the next `resize --pmem` removes it"
        }
        None => "",
    };
    let line = format!(
        "the volume is as it was or as it was to be: `quayfs info {shown}` says which{left}"
    );
    interrupted::says(FAILED, line)?;
    for change in changes(args, config.geometry.pmem_len) {
        let resized = at_rest(&path, change, args.quiet)?;
        say(told(&resized));
        if let (Change::Data(wanted), Ok(place)) = (change, locate(&path)) {
            let all = (wanted == Wanted::All && resized.before == resized.after)
                .then(|| has_all(&place, &resized.after));
            all.flatten().into_iter().for_each(say);
            warn_of_holes(&place);
        }
    }
    Ok(())
}

/// What is to be done, in the order in which it is possible: a larger page table has more room in a larger region.
fn changes(args: &args::Resize, pmem_now: u64) -> Vec<Change> {
    let (data, pmem) = (args.data.map(Change::Data), args.pmem.map(Change::Pmem));
    let both = match args.pmem.is_some_and(|pmem| pmem < pmem_now) {
        true => [data, pmem],
        false => [pmem, data],
    };
    both.into_iter().flatten().collect()
}

fn at_rest(path: &Path, change: Change, quiet: bool) -> Result<Resized, Failure> {
    let meter = Arc::default();
    let shown = Progress::of(&meter, quiet);
    let resized = match change {
        Change::Data(wanted) => resize(path, wanted, &meter),
        Change::Pmem(bytes) => resize_region(path, bytes, &meter),
    };
    drop(shown);
    resized.map_err(|failed| match failed {
        ResizeError::Volume(e) | ResizeError::Close(CloseError::Volume(e)) => unopened(FAILED)(e),
        other => Failure::new(FAILED, other),
    })
}

/// What `max` means where the data have all that there is.
fn has_all(place: &Place, now: &Geometry) -> Option<String> {
    let room = quayfs_resize::room(place).ok()?;
    let data = quayfs_shown::path(&place.data);
    let size = format_size(room.blocks * BLOCK as u64);
    let why = match room.is_file {
        true => format!("{data} is a file: `max` is its length; `--data SIZE` makes it longer"),
        false => format!("{data} has no more room; `max` takes what a device has"),
    };
    (room.blocks == now.data_blocks).then(|| format!("the data have {size} already: {why}"))
}

/// A file that was not allocated in full can need more than there is.
fn warn_of_holes(place: &Place) {
    if let Some(below) = Below::of(&place.path)
        && let Some(why) = holes(below.hole_bytes, below.free_bytes)
    {
        warn(format_args!("{}: {why}", quayfs_shown::path(&below.part)));
    }
}

/// What to say where so many bytes are not allocated and so many are free.
fn holes(missing: u64, free: u64) -> Option<String> {
    let [lacks, has] = [missing, free].map(format_size);
    (missing > free).then(|| {
        format!(
            "{lacks} of the volume are not allocated, and {has} are free on its file system: if that fills up, writes fail and the \
             mount may turn read-only"
        )
    })
}

/// What has become of a volume, in lines.
pub fn told(resized: &Resized) -> String {
    let Resized { before, after } = resized;
    let change = |what: &str, size: &dyn Fn(&Geometry) -> u64| {
        let [old, new] = [before, after].map(|g| format_size(size(g) * BLOCK as u64));
        match size(before).cmp(&size(after)) {
            Ordering::Equal => format!("{what}  {new}, as before"),
            Ordering::Less => format!("{what}  {new}, larger than {old}"),
            Ordering::Greater => format!("{what}  {new}, smaller than {old}"),
        }
    };
    [
        change("pmem region", &|g| g.pmem_len / BLOCK as u64),
        change("data device", &|g| g.data_blocks),
        change("room for data", &|g| g.visible_blocks()),
        change("staging", &|g| g.buffers * g.slots_per_buffer),
        change("metadata", &|g| g.node_pages),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_that_cannot_be_filled_are_told() {
        assert_eq!(holes(1 << 30, 1 << 30), None);
        let why = holes(3 << 30, 1 << 30).unwrap();
        assert!(
            why.starts_with("3 GiB of the volume are not allocated, and 1 GiB are free on its")
        );
    }
}
