//! Files that have no name any more.

use std::os::fd::{AsFd, AsRawFd};

/// What the kernel writes behind the name that a file had.
const GONE: &[u8] = b" (deleted)";

/// Whether the name under which a file was opened has been removed since, or is another file's: then its content ends with
/// the last process that has it open. The file system is not asked, which may not answer; of a name that another host has
/// removed this may not know.
pub fn is_unlinked(fd: impl AsFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::readlink(link, Vec::new()).is_ok_and(|name| name.as_bytes().ends_with(GONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_file_loses_its_name_by_removal_and_by_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        let opened = |path| {
            fs::write(&path, b"1").unwrap();
            File::open(&path).unwrap()
        };
        let [one, two, three] = ["one", "two", "three"].map(|n| opened(name(n)));
        assert!(![&one, &two, &three].into_iter().any(is_unlinked));
        fs::remove_file(name("one")).unwrap();
        fs::rename(name("three"), name("two")).unwrap();
        assert_eq!([&one, &two, &three].map(is_unlinked), [true, true, false]);
    }
}
