//! Opening a path that may lead to a medium, or to anything else by now.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// Opens what a path leads to as `how` says, if it can be a medium: a file, a block device or a DAX device. `None`: it is
/// something else, which is not opened. A fifo would be waited for, and to open some devices does something: a tape winds, a
/// watchdog begins to count.
///
/// # Errors
/// Those of open(2).
pub fn open_medium(path: &Path, how: &OpenOptions) -> io::Result<Option<File>> {
    // A descriptor that only names it: what is looked at is what is opened, whatever becomes of the name.
    let named = File::from(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    if !can_be_medium(&named.metadata()?) {
        return Ok(None);
    }
    let again = PathBuf::from(format!("/proc/self/fd/{}", named.as_raw_fd()));
    match how.open(again) {
        // Without /proc there is the name.
        Err(e) if e.kind() == io::ErrorKind::NotFound => how.open(path).map(Some),
        opened => opened.map(Some),
    }
}

fn can_be_medium(meta: &Metadata) -> bool {
    let kind = meta.file_type();
    kind.is_file() || kind.is_block_device() || kind.is_char_device() && is_dax(meta.rdev())
}

fn is_dax(rdev: u64) -> bool {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let subsystem = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}/subsystem"));
    subsystem.is_ok_and(|path| path.ends_with("dax"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::io::Read as _;

    #[test]
    fn only_what_can_be_a_medium_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut how = OpenOptions::new();
        how.read(true);
        for other in [&fifo, Path::new("/dev/full"), dir.path()] {
            assert!(open_medium(other, &how).unwrap().is_none(), "{other:?}");
        }
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let mut text = String::new();
            let mut opened = open_medium(path, &how).unwrap().unwrap();
            opened.read_to_string(&mut text).unwrap();
            assert_eq!(text, "content");
        }
        let missing = open_medium(&dir.path().join("missing"), &how);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
