//! Making backing files.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a regular file of `len` bytes, all zero, mode 0600, and makes it durable. All of it is
/// allocated unless `sparse`; when the space of a sparse file runs out later, writes fail with
/// `ENOSPC`. Nothing is left behind on failure.
///
/// # Errors
/// Those of the system: `AlreadyExists` if there is anything at `path`, `ENOSPC`, ...
pub fn create_file(path: &Path, len: u64, sparse: bool) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let result = fill(&mut file, len, sparse).and_then(|()| {
        file.sync_all()?;
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    });
    if result.is_err() {
        // The file was made by this call. The first error is the one to report.
        let _ = std::fs::remove_file(path);
    }
    result
}

fn fill(file: &mut File, len: u64, sparse: bool) -> io::Result<()> {
    if sparse || len == 0 {
        return file.set_len(len);
    }
    loop {
        match fallocate(&*file, FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => break,
            Err(e) => return Err(e.into()),
        }
    }
    // The file system cannot allocate ahead: writing zeros does it.
    let zeros = vec![0; 1 << 20];
    let mut left = len;
    while left > 0 {
        let piece = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}
