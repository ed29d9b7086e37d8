//! Access to the extent map of an inode cell.

use std::ops::Range;

use quayfs_layout::inode::Inode;
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::extent::ExtentMap;
use quayfs_store::ns::inode::Cell;
use quayfs_store::txn::Txn;

/// Loads the map if it is not in DRAM.
pub fn ensure(e: &Engine, cell: &Cell) -> Result<()> {
    if cell.extents.read().is_some() {
        return Ok(());
    }
    let mut slot = cell.extents.write();
    if slot.is_none() {
        let image = cell.image();
        if !image.is_file() {
            return Err(FsError::Invalid);
        }
        *slot = Some(ExtentMap::load(&e.nodes, cell.ino, &image)?);
    }
    Ok(())
}

/// [`ensure`] and [`with`] in one.
pub fn look<T>(e: &Engine, cell: &Cell, f: impl FnOnce(&ExtentMap) -> T) -> Result<T> {
    if let Some(x) = cell.extents.read().as_ref() {
        return Ok(f(x));
    }
    ensure(e, cell)?;
    with(cell, f)
}

/// Looks at the map, which [`ensure`] has loaded.
pub fn with<T>(cell: &Cell, f: impl FnOnce(&ExtentMap) -> T) -> Result<T> {
    match cell.extents.read().as_ref() {
        Some(x) => Ok(f(x)),
        None => Err(FsError::internal("the extent map is not loaded")),
    }
}

/// Changes the map under the commit mutex: reserves `places` first, then lets `f` change it. The
/// map is as it was before unless the record is appended and [`Changed::keep`] says so; if this
/// fails, so is the image.
pub fn change<'c>(
    cell: &'c Cell,
    txn: &mut Txn<'_>,
    image: &mut Inode,
    places: usize,
    f: impl FnOnce(&mut ExtentMap, &mut Txn<'_>, &mut Inode) -> Result<()>,
) -> Result<Changed<'c>> {
    let mut slot = cell.extents.write();
    let Some(x) = slot.as_mut() else {
        return Err(FsError::internal("the extent map is not loaded"));
    };
    let result = x
        .reserve(txn, cell.ino, image, places)
        .and_then(|()| f(x, txn, image));
    if let Err(err) = result {
        x.undo();
        return Err(err);
    }
    Ok(Changed { cell, kept: false })
}

/// Changes of an extent map whose record is not appended yet. Dropped without
/// [`Changed::keep`] they are taken back: a mount that becomes read-only because the record could
/// not be appended still shows the file as it was. The commit mutex is held longer than this.
#[must_use]
pub struct Changed<'c> {
    cell: &'c Cell,
    kept: bool,
}

impl Changed<'_> {
    /// The record was appended.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if let Some(x) = self.cell.extents.write().as_mut() {
            if self.kept {
                x.keep();
            } else {
                x.undo();
            }
        }
    }
}

/// Loads the allocator groups of what is mapped in `range`, so that freeing it cannot fail later.
pub fn prepare_free(e: &Engine, cell: &Cell, range: Range<u64>) -> Result<()> {
    let mapped: Vec<_> = with(cell, |x| x.mapped(range))?;
    for r in mapped {
        e.lbns.prepare_free(r, &e.nodes, e)?;
    }
    Ok(())
}
