//! The kernel's mount table, `/proc/self/mountinfo`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device number of its file system, as `MAJOR:MINOR`.
    pub device: String,
    /// Where it is mounted.
    pub target: PathBuf,
    /// File system type, for example `fuse.quayfs`.
    pub fstype: String,
    /// What is mounted: for a volume its path, unless `fsname=` said otherwise.
    pub source: OsString,
}

impl Entry {
    /// Whether the type says that this is ours.
    pub fn is_quayfs(&self) -> bool {
        self.fstype == "fuse.quayfs"
    }

    /// Whether this may be ours: `subtype=` hides it.
    pub fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }
}

/// Reads the table, in the order of mounting.
pub fn read() -> io::Result<Vec<Entry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount on exactly `target`, an absolute path; the topmost one if there are several.
pub fn mounted_on(target: &Path) -> io::Result<Option<Entry>> {
    Ok(read()?.into_iter().rfind(|e| e.target == target))
}

/// The newest mount of the volume at `source`, a canonical path.
pub fn mount_of(source: &Path) -> io::Result<Option<Entry>> {
    Ok(read()?
        .into_iter()
        .rfind(|e| e.is_fuse() && e.source == source.as_os_str()))
}

/// The mount that `path` (as [`resolve`] gives it) means: a mount point, or a volume that is mounted.
pub fn mount_for(path: &Path) -> io::Result<Option<Entry>> {
    match mounted_on(path)?.filter(Entry::is_fuse) {
        Some(entry) => Ok(Some(entry)),
        None => mount_of(path),
    }
}

fn parse(text: &[u8]) -> Vec<Entry> {
    text.split(|b| *b == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /root /target rw,noatime shared:1 - type source rw`
fn line(text: &[u8]) -> Option<Entry> {
    let mut words = text.split(|b| *b == b' ');
    let device = String::from_utf8(words.nth(2)?.to_vec()).ok()?;
    let target = unescape(words.nth(1)?);
    let mut rest = words.skip_while(|w| *w != b"-").skip(1);
    let fstype = String::from_utf8(rest.next()?.to_vec()).ok()?;
    let source = unescape(rest.next()?);
    Some(Entry {
        device,
        target: target.into(),
        fstype,
        source,
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let code = match (first, tail.get(..3)) {
            (b'\\', Some(octal)) => octal.iter().try_fold(0u16, |n, digit| match digit {
                b'0'..=b'7' => Some(n * 8 + u16::from(digit - b'0')),
                _ => None,
            }),
            _ => None,
        };
        match code.and_then(|n| u8::try_from(n).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// An absolute path that names a mount point as the mount table does, even if the mount on it is
/// dead: only its parent has to be reachable.
pub fn resolve(target: &Path) -> io::Result<PathBuf> {
    match target.canonicalize() {
        Err(e) if Errno::from_io_error(&e).map(super::gone) == Some(Errno::NOTCONN) => {}
        result => return result,
    }
    // Trailing slashes are not part of the last component.
    let target: PathBuf = target.components().collect();
    let name: &OsStr = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = match target.parent() {
        Some(p) if !p.as_os_str().as_bytes().is_empty() => p,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = b"22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n\
            40 22 0:33 / /mnt/a\\040b\\134 rw - fuse.quayfs /srv/vol\\0111 rw,user_id=0\n\
            41 22 0:34 / /mnt/c rw,nosuid shared:7 - fuse disk rw\n";
        let table = parse(text);
        assert_eq!(table.len(), 3);
        assert_eq!(
            table[1],
            Entry {
                device: "0:33".into(),
                target: "/mnt/a b\\".into(),
                fstype: "fuse.quayfs".into(),
                source: "/srv/vol\t1".into(),
            }
        );
        assert!(table[1].is_quayfs() && table[1].is_fuse());
        assert!(table[2].is_fuse() && !table[2].is_quayfs());
        assert!(!table[0].is_fuse());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).unwrap().is_some());
        assert_eq!(mounted_on(Path::new("/no/such/place")).unwrap(), None);
    }

    #[test]
    fn paths_are_made_absolute() {
        assert_eq!(resolve(Path::new("/proc/..")).unwrap(), Path::new("/"));
        assert!(resolve(Path::new("/no/such/place")).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&bytes);
            let _ = unescape(&bytes);
        }

        #[test]
        fn escaped_names_come_back(name in "[ -~\t\n]{0,40}") {
            let mut escaped = String::new();
            for c in name.chars() {
                match c {
                    ' ' | '\t' | '\n' | '\\' => escaped.push_str(&format!("\\{:03o}", c as u32)),
                    c => escaped.push(c),
                }
            }
            prop_assert_eq!(unescape(escaped.as_bytes()), OsString::from(name));
        }
    }
}
