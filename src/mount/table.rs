//! The kernel's mount table, `/proc/self/mountinfo`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use quayfs_options::MountOptions;

use quayfs_fs::volume::PMEM;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the mount: no other one has it while this one exists.
    pub id: u64,
    /// That of the mount that it is mounted on.
    pub parent: u64,
    /// The device number of its file system, as `MAJOR:MINOR`.
    pub device: String,
    /// The directory of that file system that is seen there; `/` is all of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Flags of this mount, as words with commas between them.
    pub options: String,
    /// File system type, for example `fuse.quayfs`.
    pub fstype: String,
    /// What is mounted: for a volume its path, unless `fsname=` said otherwise.
    pub source: OsString,
    /// Options of the file system, wherever it is mounted, as words with commas between them.
    pub superblock: String,
}

impl Entry {
    /// Whether the type says that this is ours.
    pub fn is_quayfs(&self) -> bool {
        self.fstype == "fuse.quayfs"
    }

    /// Whether the kernel lets nothing be written to the file system.
    pub fn is_read_only(&self) -> bool {
        self.superblock.split(',').any(|word| word == "ro")
    }

    /// Whether this may be ours: `subtype=` hides it.
    pub fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }

    /// The user who mounted, of a FUSE file system.
    pub fn user_id(&self) -> Option<u32> {
        self.number("user_id=")
    }

    /// The group of the user who mounted, of a FUSE file system.
    pub fn group_id(&self) -> Option<u32> {
        self.number("group_id=")
    }

    fn number(&self, key: &str) -> Option<u32> {
        let mut words = self.superblock.split(',');
        words.find_map(|w| w.strip_prefix(key)?.parse().ok())
    }
}

/// What the table shows as the source of a volume. Programs print the table as it is, so nothing is in it that a terminal
/// obeys.
pub fn source(volume: &Path, options: &MountOptions) -> PathBuf {
    match &options.fsname {
        Some(name) => name.into(),
        None => quayfs_shown::path(volume).into(),
    }
}

/// Reads the table, in the order of mounting.
pub fn read() -> io::Result<Vec<Entry>> {
    read_of(Path::new("/proc/self"))
}

/// The table of another process, given its directory in `/proc`.
pub fn read_of(process: &Path) -> io::Result<Vec<Entry>> {
    Ok(parse(&std::fs::read(process.join("mountinfo"))?))
}

/// Whether a mount has left the table since it was read.
pub fn is_gone(entry: &Entry) -> bool {
    let is_it = |e: &Entry| e.id == entry.id && e.device == entry.device;
    read().is_ok_and(|table| !table.iter().any(is_it))
}

/// The mount on exactly `target`, an absolute path; the topmost one if there are several.
pub fn mounted_on(target: &Path) -> io::Result<Option<Entry>> {
    let table = read()?;
    let is_there = |e: &&Entry| e.target == target;
    let is_seen = |e: &&Entry| is_there(e) && covering(&table, e).is_none();
    let topmost = table.iter().rfind(is_seen);
    Ok(topmost.or_else(|| table.iter().rfind(is_there)).cloned())
}

/// A mount of the volume at a canonical path: the newest one that shows its root and is not hidden, or else the newest
/// one. Any user who mounts something can have the table show any source: the table is believed about mounts of root, of
/// the caller, and of the owners of the volume.
pub fn mount_of(volume: &Path) -> io::Result<Option<Entry>> {
    let source = source(volume, &MountOptions::default());
    let table = read()?;
    let is_of_volume = |e: &Entry| e.is_fuse() && e.source == source.as_os_str();
    let mounts_of = |is_believed: &dyn Fn(u32) -> bool| {
        let is = |e: &Entry| is_of_volume(e) && e.user_id().is_some_and(is_believed);
        best(&table, is).cloned()
    };
    // The volume is looked at last: what it lies on may not answer.
    let owns = |path: &Path, user| std::fs::metadata(path).is_ok_and(|meta| meta.uid() == user);
    let owner = |user| owns(volume, user) || owns(&volume.join(PMEM), user);
    Ok(mounts_of(&is_believed_at_once).or_else(|| mounts_of(&owner)))
}

/// Of the mounts that are meant, in the order of mounting, the one that its file system is to be asked through.
fn best(table: &[Entry], is_meant: impl Fn(&Entry) -> bool) -> Option<&Entry> {
    let meant = (0..table.len()).filter(|at| is_meant(&table[*at]));
    let at = meant.max_by_key(|at| {
        let entry = &table[*at];
        let is_seen = covering(table, entry).is_none();
        (is_seen && entry.root == Path::new("/"), is_seen, *at)
    });
    at.map(|at| &table[at])
}

/// The mount that hides another one: what is mounted on it, or on a directory that leads there. The order of the table does not
/// tell, since mounts can be moved.
pub fn covering<'t>(table: &'t [Entry], entry: &Entry) -> Option<&'t Entry> {
    let on_it = |e: &&Entry| e.id != entry.id && e.parent == entry.id && e.target == entry.target;
    if let Some(over) = table.iter().rfind(on_it) {
        return Some(over);
    }
    let mut below = entry;
    // A table that was read while it changed may have no end.
    for _ in 0..table.len() {
        let on_the_way = |e: &&Entry| {
            e.id != below.id
                && e.parent == below.parent
                && e.target != below.target
                && below.target.starts_with(&e.target)
        };
        if let Some(over) = table.iter().rfind(on_the_way) {
            return Some(over);
        }
        let is_parent = |e: &&Entry| e.id == below.parent && e.id != e.parent;
        below = table.iter().find(is_parent)?;
    }
    None
}

/// Of each file system of ours, the mount that it is to be asked through.
pub fn each_once(table: &[Entry]) -> Vec<&Entry> {
    let mut seen = BTreeSet::new();
    let ours = table.iter().filter(|e| e.is_quayfs());
    let devices = ours
        .map(|e| &e.device)
        .filter(|device| seen.insert(*device));
    devices
        .filter_map(|device| best(table, |e| e.is_quayfs() && e.device == *device))
        .collect()
}

/// Whether the table is believed about mounts of this user, whatever volume it shows.
pub fn is_believed_at_once(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Where a block device is mounted, by this name or another one; the first place.
pub fn of_device(device: &Path) -> Option<PathBuf> {
    let number = block_device(device)?;
    let is_it = |entry: &Entry| {
        let by_name = || block_device(Path::new(&entry.source)) == Some(number);
        entry.device == format!("{}:{}", libc::major(number), libc::minor(number)) || by_name()
    };
    Some(read().ok()?.into_iter().find(is_it)?.target)
}

/// Its number.
fn block_device(path: &Path) -> Option<u64> {
    // Names of other kinds may not answer.
    let meta = path.starts_with("/dev").then(|| path.metadata())?.ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// The mount that `path` (as [`resolve`] gives it) means: a mount point, or a volume that is mounted. Of a mount point that shows a
/// part of a file system it is the one that shows all of it, if there is one in sight.
pub fn mount_for(path: &Path) -> io::Result<Option<Entry>> {
    match mounted_on(path)?.filter(Entry::is_fuse) {
        Some(entry) if entry.root == Path::new("/") => Ok(Some(entry)),
        Some(part) => {
            let table = read()?;
            let whole = best(&table, |e| e.is_fuse() && e.device == part.device);
            let is_whole = |e: &&Entry| e.root == Path::new("/") && covering(&table, e).is_none();
            Ok(Some(whole.filter(is_whole).cloned().unwrap_or(part)))
        }
        None => mount_of(path),
    }
}

fn parse(text: &[u8]) -> Vec<Entry> {
    text.split(|b| *b == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /root /target rw,noatime shared:1 - type source rw`
fn line(text: &[u8]) -> Option<Entry> {
    let text_of = |word: &[u8]| String::from_utf8(word.to_vec()).ok();
    let mut words = text.split(|b| *b == b' ');
    let id = text_of(words.next()?)?.parse().ok()?;
    let parent = text_of(words.next()?)?.parse().ok()?;
    let device = text_of(words.next()?)?;
    let root = unescape(words.next()?);
    let target = unescape(words.next()?);
    let options = text_of(words.next()?)?;
    let mut rest = words.skip_while(|w| *w != b"-").skip(1);
    let fstype = text_of(rest.next()?)?;
    let source = unescape(rest.next()?);
    // Words of other file systems may be of any bytes.
    let superblock = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(Entry {
        id,
        parent,
        device,
        root: root.into(),
        target: target.into(),
        options,
        fstype,
        source,
        superblock,
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
pub(super) fn unescape(word: &[u8]) -> OsString {
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

/// An absolute path that names a mount point as the mount table does, even if the mount on it is dead or its daemon
/// does not answer: only its parent has to be reachable.
pub fn resolve(target: &Path) -> io::Result<PathBuf> {
    // Without the slashes and dots behind it, which would be looked up in it.
    let target: PathBuf = target.components().collect();
    let found = rustix::fs::open(&target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    std::fs::read_link(super::place::by_descriptor(&found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = b"22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n\
            40 22 0:33 / /mnt/a\\040b\\134 rw - fuse.quayfs /srv/vol\\0111 rw,user_id=7,group_id=0\n\
            41 22 0:34 / /mnt/c rw,nosuid shared:7 - fuse disk rw\n";
        let table = parse(text);
        assert_eq!(table.len(), 3);
        assert_eq!(
            table[1],
            Entry {
                id: 40,
                parent: 22,
                device: "0:33".into(),
                root: "/".into(),
                target: "/mnt/a b\\".into(),
                options: "rw".into(),
                fstype: "fuse.quayfs".into(),
                source: "/srv/vol\t1".into(),
                superblock: "rw,user_id=7,group_id=0".into(),
            }
        );
        assert_eq!(
            (table[1].user_id(), table[1].group_id()),
            (Some(7), Some(0))
        );
        assert_eq!(
            (table[2].options.as_str(), table[2].user_id()),
            ("rw,nosuid", None)
        );
        assert!(table[1].is_quayfs() && table[1].is_fuse());
        assert!(table[2].is_fuse() && !table[2].is_quayfs());
        assert!(!table[0].is_fuse());
    }

    #[test]
    fn a_volume_is_asked_where_its_root_is_seen() {
        let of = |text: &str| {
            let table = parse(text.as_bytes());
            best(&table, |e| e.source == "/srv/vol").map(|e| e.id)
        };
        let whole = "40 22 0:33 / /mnt rw - fuse.quayfs /srv/vol rw\n";
        let newer = "41 22 0:33 / /also rw - fuse.quayfs /srv/vol rw\n";
        let part = "42 22 0:33 /part /home rw - fuse.quayfs /srv/vol rw\n";
        let over =
            |parent: u64, place: &str| format!("39 {parent} 0:50 / {place} rw - tmpfs none rw\n");
        assert_eq!(of(&format!("{whole}{newer}")), Some(41));
        assert_eq!(of(&format!("{whole}{part}")), Some(40));
        // What lies over it may be older, and have been moved there.
        for covered in [
            format!("{newer}{}", over(41, "/also")),
            over(41, "/also") + newer,
        ] {
            assert_eq!(of(&format!("{whole}{covered}")), Some(40));
        }
        let below = "43 44 0:33 / /dir/mnt rw - fuse.quayfs /srv/vol rw\n";
        let dir = "44 22 0:51 / /dir rw - tmpfs none rw\n";
        assert_eq!(of(&format!("{whole}{dir}{below}")), Some(43));
        let covered = over(44, "/dir");
        assert_eq!(of(&format!("{whole}{dir}{below}{covered}")), Some(40));
        let covered = "39 22 0:50 / /a rw - tmpfs none rw\n44 22 0:51 / /a/b rw - tmpfs none rw\n";
        let below = below.replace("/dir/mnt", "/a/b/mnt");
        assert_eq!(of(&format!("{whole}{covered}{below}")), Some(40));
        assert_eq!(of(&format!("{whole}{}", over(40, "/mnt/below"))), Some(40));
        assert_eq!(of(part), Some(42));
        assert_eq!(of(&over(22, "/")), None);
    }

    #[test]
    fn a_file_system_is_asked_once_where_it_is_seen() {
        let table = parse(
            b"40 22 0:33 / /m1 rw - fuse.quayfs /srv/vol rw\n41 22 0:33 / /m2 rw - fuse.quayfs /srv/vol rw\n\
            42 40 0:50 / /m1 rw - tmpfs none rw\n43 22 0:34 / /m3 rw - fuse.quayfs /srv/other rw\n",
        );
        let found: Vec<u64> = each_once(&table).iter().map(|e| e.id).collect();
        assert_eq!(found, [41, 43]);
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
