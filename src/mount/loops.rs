//! Files that loop devices make devices of, as `mount -o loop` does: their volumes are mounted by the name of the device.

use super::table::{self, Entry};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where the kernel lists block devices.
const BLOCK: &str = "/sys/block";

/// The newest mount of the volume in a file, given by its canonical path, that a loop device makes a device of.
///
/// # Errors
/// The mount table cannot be read.
pub fn mount_of(file: &Path) -> io::Result<Option<Entry>> {
    for device in devices(Path::new(BLOCK), file) {
        if let Some(entry) = table::mount_of(&device)? {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// The loop devices over a file.
fn devices(block: &Path, file: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(block).into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name());
    names
        .filter(|name| name.as_bytes().starts_with(b"loop"))
        .filter(|name| {
            let said = fs::read(block.join(name).join("loop/backing_file"));
            said.is_ok_and(|said| backing(&said) == file)
        })
        .map(|name| Path::new("/dev").join(name))
        .collect()
}

/// The file that is named there. One that was removed has ` (deleted)` behind its name: what has that name by now is another
/// one.
fn backing(said: &[u8]) -> PathBuf {
    let name = said.strip_suffix(b"\n").unwrap_or(said);
    OsString::from_vec(name.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_found_by_their_files() {
        let block = tempfile::tempdir().unwrap();
        for (name, file) in [
            ("loop0", "/srv/other\n"),
            ("loop3", "/srv/vol\n"),
            ("loop4", "/srv/vol (deleted)\n"),
            ("sda", "/srv/vol\n"),
        ] {
            let dir = block.path().join(name).join("loop");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("backing_file"), file).unwrap();
        }
        fs::create_dir(block.path().join("loop5")).unwrap();
        // What was removed is not what has its name by now.
        let found = devices(block.path(), Path::new("/srv/vol"));
        assert_eq!(found, [PathBuf::from("/dev/loop3")]);
    }
}
