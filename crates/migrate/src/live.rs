//! Moving a part of a volume that is mounted: in three parts, since three processes have a share in it.
//!
//! The process that was asked to makes [`Moves`], and has the daemon replaced by one that notes what it writes
//! ([`crate::Watched`]). It copies, again and again, what has been written since ([`Live::round`]). When little is left the
//! daemon is replaced once more: the next one copies the rest before it opens the volume, and switches ([`finish`]).

use std::fs::File;
use std::iter::once;
use std::ops::Range;
use std::path::Path;

use quayfs_blockdev::{BlockDevice, FileDevice, Options};
use quayfs_fs::volume::{Opening, Place, Volume};
use quayfs_layout::BLOCK;
use quayfs_pmem::{Backend, MapOptions, Region};
use quayfs_restart::Moves;
use quayfs_shown::progress::{Meter, Unit};

use crate::copy::{Copier, CopyError, WINDOW};
use crate::target::Number;
use crate::{B, MigrateError, Part, Target, complete, in_parts, source};

/// So many daemons may die while they do it.
const TRIES: u64 = 2;

/// Copies what is marked, once from the first block to the last.
///
/// # Errors
/// [`CopyError`]; what was not copied is marked.
pub(crate) fn copy_marked(
    from: &dyn BlockDevice,
    to: &dyn BlockDevice,
    moves: &Moves,
    is_blank: bool,
    meter: &Meter,
) -> Result<(), CopyError> {
    let mut copier = Copier::new(from, to);
    let mut next = 0;
    loop {
        let taken = moves.take(next, WINDOW);
        let Some(last) = taken.last() else {
            return Ok(());
        };
        next = last.end;
        let copied = copier.copy(without_heads(&taken), is_blank, meter);
        copied.inspect_err(|_| moves.put_back(&taken))?;
    }
}

/// With its header the copy of a data device would be taken for one before it is whole.
fn without_heads(blocks: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> {
    let heads = Part::Data.heads();
    blocks
        .iter()
        .map(move |range| range.start.max(heads)..range.end)
        .filter(|range| !range.is_empty())
}

/// The data of a mounted volume, on their way to another place.
pub struct Live<'a> {
    old: FileDevice,
    target: &'a Target,
    moves: &'a Moves,
}

impl<'a> Live<'a> {
    /// Between the data device of a volume, which a daemon has open and whose writes it notes, and the new place.
    ///
    /// # Errors
    /// The old place cannot be opened to read.
    pub fn new(place: &Place, target: &'a Target, moves: &'a Moves) -> Result<Self, MigrateError> {
        let options = Options {
            read_only: true,
            ..Options::default()
        };
        let old = FileDevice::open(&place.data, options).map_err(MigrateError::Open)?;
        Ok(Self { old, target, moves })
    }

    /// Copies what has to be copied, once from the first block to the last. `first`: for the first time.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn round(&self, first: bool, meter: &Meter) -> Result<(), CopyError> {
        let is_blank = first && self.target.is_blank();
        let left = self.moves.marked().min(self.moves.blocks()) * B;
        let what = if first { "copying" } else { "copying again" };
        meter.begin(what, left, Unit::Bytes);
        copy_marked(&self.old, self.target.device(), self.moves, is_blank, meter)
    }
}

/// What a region at a new place would be on.
///
/// # Errors
/// It cannot be opened.
pub fn backend_of(path: &Path, blocks: u64) -> Result<Backend, MigrateError> {
    let options = MapOptions {
        read_only: true,
        len: Some(blocks * B),
        ..MapOptions::default()
    };
    Ok(Region::open(path, options)?.backend())
}

/// What the last daemon has left.
#[derive(Clone, Copy, Debug)]
pub struct LeftBehind<'a> {
    /// What it had stored to the region and what is not in it yet.
    pub stores: &'a File,
    /// The fencing token of the volume, if that is known.
    pub fencing_token: Option<u64>,
}

/// Copies the rest and switches, while no daemon has the volume open: as the next one, before that opens it. Durable when it
/// returns, and then the volume goes on from the new place as it would have from the old one. After it has been interrupted
/// it may be called again.
///
/// # Errors
/// [`MigrateError`]; but for [`MigrateError::Uncertain`] the volume goes on from the old place.
pub fn finish(
    path: &Path,
    moves: &Moves,
    how: Opening,
    left: &LeftBehind<'_>,
) -> Result<(), MigrateError> {
    let stores = left.stores;
    let place = in_parts(path)?;
    let part = Part::from_word(moves.part());
    if Number::at(part.of(&place)).is_ok_and(|number| number.words() == moves.number()) {
        // This was done before by a daemon that has died since.
        return forget(part, stores);
    }
    if moves.count_try() >= TRIES {
        return Err(MigrateError::Died);
    }
    let mut volume = Volume::open_with(path, how)?;
    if let Some(token) = left.fencing_token {
        volume.check_fencing_token(token)?;
    }
    let blocks = part.blocks(&volume.config().geometry);
    if blocks != moves.blocks() {
        return Err(MigrateError::Changed);
    }
    let target = Target::reopen(&moves.path(), moves.number(), blocks)?;
    match part {
        Part::Data => finish_data(&volume, moves, &target)?,
        Part::Pmem => finish_region(&volume, moves, (&target, stores))?,
    }
    let completed = complete(&mut volume, &place, part, &target);
    target.keep();
    drop(volume);
    match completed {
        // It goes on from the new place for now.
        Ok(()) | Err(MigrateError::Uncertain { .. }) => forget(part, stores)?,
        Err(_) => {}
    }
    completed
}

fn finish_data(volume: &Volume, moves: &Moves, target: &Target) -> Result<(), MigrateError> {
    if !moves.is_attached() {
        return Err(MigrateError::Changed);
    }
    // What the last daemon had under way has arrived.
    moves.attach();
    let mut copier = Copier::new(&**volume.device(), target.device());
    let (mut done, total) = (0, moves.marked() * B);
    loop {
        let some = moves.peek(0, WINDOW);
        if some.is_empty() {
            return Ok(());
        }
        copier.copy(without_heads(&some), false, &Meter::default())?;
        // Not before: the next daemon has to do what this one has not.
        moves.copied(&some);
        done += some
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
            * B;
        moves.tell(done, total.max(done));
    }
}

fn finish_region(
    volume: &Volume,
    moves: &Moves,
    (target, stores): (&Target, &File),
) -> Result<(), MigrateError> {
    let region = volume.region();
    if backend_of(target.path(), moves.blocks())? != region.backend() {
        // The kernel has been told by the old one when calls are durable.
        return Err(MigrateError::Unlike(target.path().into()));
    }
    let failed = |source| MigrateError::Io {
        path: target.path().into(),
        source,
    };
    volume.outlive(stores.try_clone().map_err(failed)?)?;
    let old = source(volume, Part::Pmem);
    let mut copier = Copier::new(&*old, target.device());
    let all = moves.blocks();
    for first in (Part::Pmem.heads()..all).step_by(WINDOW as usize) {
        let end = all.min(first + WINDOW);
        copier.copy(once(first..end), false, &Meter::default())?;
        moves.tell(end * BLOCK as u64, all * B);
    }
    Ok(())
}

/// What had been stored to the old region is in the new one, which may have another length.
fn forget(part: Part, stores: &File) -> Result<(), MigrateError> {
    match part {
        Part::Data => Ok(()),
        Part::Pmem => stores.set_len(0).map_err(|source| MigrateError::Io {
            path: "what daemons have stored".into(),
            source,
        }),
    }
}
