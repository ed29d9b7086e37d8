//! Access to the extent map of an inode cell. [`Edit::extents`](quayfs_store::txn::Edit::extents) changes it.

use std::ops::Range;

use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::extent::ExtentMap;
use quayfs_store::ns::inode::Cell;

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

/// Loads the allocator groups of what is mapped in `range`, so that freeing it cannot fail later.
pub fn prepare_free(e: &Engine, cell: &Cell, range: Range<u64>) -> Result<()> {
    let mapped: Vec<_> = with(cell, |x| x.mapped(range))?;
    for r in mapped {
        e.lbns.prepare_free(r, &e.nodes, e)?;
    }
    Ok(())
}
