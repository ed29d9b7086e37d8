//! Files that have no name any more.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

/// Whether this is a regular file whose last name was removed: its content ends with the last process that has it open. The
/// file system answers from what it has cached, so this does not wait, and may not know yet what another host has removed.
pub fn is_unlinked(fd: impl AsFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::NLINK;
    statx(fd, "", flags, wanted).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        stat.stx_mask & wanted.bits() == wanted.bits()
            && kind == FileType::RegularFile
            && stat.stx_nlink == 0
    })
}

/// How long a regular file is, as far as its file system knows without waiting for anything.
pub fn known_len(fd: impl AsFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE;
    let stat = statx(fd, "", flags, wanted).ok()?;
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    (is_file && stat.stx_mask & wanted.bits() == wanted.bits()).then_some(stat.stx_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_file_loses_its_last_name_by_removal_and_by_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        let opened = |path| {
            fs::write(&path, b"1").unwrap();
            File::open(&path).unwrap()
        };
        let files = ["one", "two", "three", "four", "five (deleted)"].map(|n| opened(name(n)));
        let unlinked = || files.each_ref().map(is_unlinked);
        assert_eq!(unlinked(), [false; 5]);
        fs::remove_file(name("one")).unwrap();
        fs::rename(name("three"), name("two")).unwrap();
        fs::hard_link(name("four"), name("other")).unwrap();
        fs::remove_file(name("four")).unwrap();
        assert_eq!(unlinked(), [true, true, false, false, false]);
        assert!(!is_unlinked(File::open("/dev/null").unwrap()));
    }
}
