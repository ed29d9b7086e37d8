//! Access to the extent map of an inode cell.

use std::ops::Range;

use crate::engine::Engine;
use crate::error::{FsError, Result};
use crate::ns::extent::ExtentMap;
use crate::ns::inode::Cell;
use crate::txn::Txn;
use quayfs_layout::inode::Inode;

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
        *slot =
            Some(ExtentMap::load(&e.nodes, cell.ino, &image).inspect_err(|err| e.damaged(err))?);
    }
    Ok(())
}

/// Looks at the map, which [`ensure`] has loaded.
pub fn with<T>(cell: &Cell, f: impl FnOnce(&ExtentMap) -> T) -> Result<T> {
    match cell.extents.read().as_ref() {
        Some(x) => Ok(f(x)),
        None => Err(FsError::io("the extent map is not loaded")),
    }
}

/// Changes the map under the commit mutex: reserves `places` first, then lets `f` change it.
/// If that fails, neither map nor image has changed.
pub fn change(
    cell: &Cell,
    txn: &mut Txn<'_>,
    image: &mut Inode,
    places: usize,
    f: impl FnOnce(&mut ExtentMap, &mut Txn<'_>, &mut Inode) -> Result<()>,
) -> Result<()> {
    let mut slot = cell.extents.write();
    let Some(x) = slot.as_mut() else {
        return Err(FsError::io("the extent map is not loaded"));
    };
    let root = image.root;
    let result = x
        .reserve(txn, cell.ino, image, places)
        .and_then(|()| f(x, txn, image));
    if result.is_err() {
        x.unreserve(root);
    }
    result
}

/// Loads the allocator groups of what is mapped in `range`, so that freeing it cannot fail later.
pub fn prepare_free(e: &Engine, cell: &Cell, range: Range<u64>) -> Result<()> {
    let mapped: Vec<_> = with(cell, |x| x.mapped(range))?;
    for r in mapped {
        e.lbns.prepare_free(r, &e.nodes, e)?;
    }
    Ok(())
}
