//! Access to the extent map of an inode handle. [`Edit::extents`](quayfs_store::txn::Edit::extents) changes it.

use std::ops::Range;

use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::extent::ExtentMap;
use quayfs_store::ns::inode::InodeHandle;

/// Loads the map if it is not in DRAM.
pub fn ensure(e: &Engine, handle: &InodeHandle) -> Result<()> {
    if handle.extents.read().is_some() {
        return Ok(());
    }
    let mut slot = handle.extents.write();
    if slot.is_none() {
        let image = handle.image();
        if !image.is_file() {
            return Err(FsError::Invalid);
        }
        *slot = Some(ExtentMap::load(&e.nodes, handle.ino, &image)?);
    }
    Ok(())
}

/// [`ensure`] and [`with`] in one.
pub fn read<T>(e: &Engine, handle: &InodeHandle, f: impl FnOnce(&ExtentMap) -> T) -> Result<T> {
    if let Some(x) = handle.extents.read().as_ref() {
        return Ok(f(x));
    }
    ensure(e, handle)?;
    with(handle, f)
}

/// Looks at the map, which [`ensure`] has loaded.
pub fn with<T>(handle: &InodeHandle, f: impl FnOnce(&ExtentMap) -> T) -> Result<T> {
    match handle.extents.read().as_ref() {
        Some(x) => Ok(f(x)),
        None => Err(FsError::internal("the extent map is not loaded")),
    }
}

/// Loads the allocator groups of what is mapped in `range`, so that freeing it cannot fail later.
pub fn prepare_free(e: &Engine, handle: &InodeHandle, range: Range<u64>) -> Result<()> {
    let mapped: Vec<_> = with(handle, |x| x.mapped(range))?;
    for r in mapped {
        e.lbns.prepare_free(r, &e.nodes, e)?;
    }
    Ok(())
}
