//! Making backing files.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a regular file of `len` bytes, all zero, mode 0600, and makes it durable. All of it is
/// allocated unless `sparse`; when the space of a sparse file runs out later, writes fail with
/// `ENOSPC`. Nothing is left behind on failure.
///
/// # Errors
/// Those of the system: `AlreadyExists` if there is anything at `path`, `ENOSPC`, ...
pub fn create_file(path: &Path, len: u64, sparse: bool) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let result = quayfs_pmem::fill_new(&file, path, len, sparse);
    if result.is_err() {
        // The file was made by this call. The first error is the one to report.
        let _ = std::fs::remove_file(path);
    }
    result
}
