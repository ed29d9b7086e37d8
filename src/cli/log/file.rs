//! The file that the log goes to: a regular file of our own, for no other user to read, and never a long one.
//!
//! The directory of a volume may belong to another user than the daemon's, who can then put anything under the log's
//! name. So the file is opened below a descriptor of its directory, no symbolic link is followed, and what is not
//! ours is put aside without being opened for writing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, ftruncate, openat,
    openat2, renameat, statat,
};
use rustix::io::{DupFlags, Errno, dup3};

/// Stands for the log that is open, under one number as long as the process runs, where the standard error does not.
static STAND_IN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The number of a descriptor that always stands for the log that is open.
pub(super) fn descriptor() -> RawFd {
    let stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
    stand_in
        .as_ref()
        .map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd)
}

/// How a log is opened. Without NONBLOCK a pipe without a reader would stop us.
const APPEND: OFlags = OFlags::WRONLY
    .union(OFlags::APPEND)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// For its owner alone.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A log longer than this is put aside; one predecessor is kept.
pub(super) const LONG: u64 = 8 << 20;

/// A log file: where it is, and the file itself while there is one.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// The user has named it: nothing that is there is put aside except a log of ours that has grown long.
    asked: bool,
    /// The longest that it may get.
    long: u64,
    dir: Option<OwnedFd>,
    file: Option<File>,
    /// Where messages go that do not come through the log, of the runtime and of libraries.
    takes_stderr: bool,
    /// The log goes to the standard error, and this has the same.
    is_copy: bool,
}

impl LogFile {
    /// A log at an absolute path, not opened yet.
    pub(super) fn new(path: PathBuf, asked: bool, takes_stderr: bool) -> Self {
        Self {
            path,
            asked,
            long: LONG,
            dir: None,
            file: None,
            takes_stderr,
            is_copy: false,
        }
    }

    /// One that has what is written to the standard error as well.
    pub(super) fn copy(path: PathBuf, asked: bool) -> Self {
        Self {
            is_copy: true,
            ..Self::new(path, asked, false)
        }
    }

    /// Opens whatever is at the path now.
    ///
    /// # Errors
    /// There is something that is not ours, or nothing can be made there.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        match (open_dir(&self.path, self.asked), &self.dir) {
            (Ok(dir), _) => self.dir = Some(dir),
            // What has no path any more may still be there.
            (Err(_), Some(_)) => {}
            (Err(e), None) => return Err(e),
        }
        self.open()
    }

    /// Whether nothing is in it, so that no line in there can have broken off.
    pub(super) fn is_empty(&self) -> bool {
        let stat = self.file.as_ref().map(fstat);
        stat.is_some_and(|stat| stat.is_ok_and(|stat| stat.st_size == 0))
    }

    /// Opens what has its name in its directory now.
    fn open(&mut self) -> io::Result<()> {
        self.file = None;
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let file = match open_ours(dir, name, self.asked) {
            Err(e) if !self.asked => {
                // We can rename what is there only if we own the directory or are root. What is there is a log of
                // another user who has mounted before, or a trap.
                put_aside(dir, name).map_err(|_| e)?;
                open_ours(dir, name, self.asked)?
            }
            opened => opened?,
        };
        if self.takes_stderr {
            // Without it some words of the runtime are lost.
            let _ = rustix::stdio::dup2_stderr(&file);
        } else if !self.is_copy {
            let mut stand_in = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *stand_in {
                Some(stand_in) => {
                    let _ = dup3(&file, stand_in, DupFlags::CLOEXEC);
                }
                None => *stand_in = file.try_clone().ok().map(OwnedFd::from),
            }
        }
        self.file = Some(file);
        Ok(())
    }

    /// Appends a line, to a file that is still where it was, and not too long.
    ///
    /// # Errors
    /// Part of it may have been written.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let stat = self.file.as_ref().map(fstat).transpose()?;
        match stat {
            // Removed while it was open: no one will read what is written there.
            None | Some(Stat { st_nlink: 0, .. }) => self.reopen()?,
            Some(stat)
                if is_regular(&stat) && stat.st_size as u64 + line.len() as u64 > self.long =>
            {
                self.rotate(&stat)?;
            }
            Some(_) => {}
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        write(file, line)
    }

    /// Puts the file aside and begins another one. If it has been put aside already, only the latter.
    fn rotate(&mut self, mine: &Stat) -> io::Result<()> {
        let (Some(dir), Some(name)) = (&self.dir, self.path.file_name()) else {
            return self.reopen();
        };
        let there = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_there = there.is_ok_and(|s| (s.st_dev, s.st_ino) == (mine.st_dev, mine.st_ino));
        if is_there && put_aside(dir, name).is_err() {
            // The directory is not ours. Better a log without a past than a full disk.
            let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
            return Ok(ftruncate(file, 0)?);
        }
        self.open()
    }

    #[cfg(test)]
    pub(super) fn limited_to(mut self, long: u64) -> Self {
        self.long = long;
        self
    }
}

/// Appends lines to a log of this owner, which is made if there is none and the owner is this process.
///
/// # Errors
/// There is something else, or nothing can be made there.
pub(super) fn add(path: &Path, owner: u32, lines: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = open_dir(path, false)?;
    let create = match owner == rustix::process::geteuid().as_raw() {
        true => OFlags::CREATE,
        false => OFlags::empty(),
    };
    let file = openat(&dir, name, APPEND | create, PRIVATE)?;
    expect_log_of(owner, &fstat(&file)?)?;
    write(file, lines)
}

/// Writes a line by one system call, so that lines of two daemons do not mix.
pub(super) fn write(to: impl std::os::fd::AsFd, line: &[u8]) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(&to, line))? {
        n if n == line.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn open_dir(path: &Path, asked: bool) -> io::Result<OwnedFd> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The path of a volume has no symbolic links any more; a path that the user asked for may have some.
    let dir = if asked {
        openat(CWD, dir, flags, Mode::empty())
    } else {
        openat2(CWD, dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
    };
    Ok(dir?)
}

/// Opens a file of ours for appending, or makes it.
fn open_ours(dir: &OwnedFd, name: &OsStr, asked: bool) -> io::Result<File> {
    let file = openat(dir, name, APPEND | OFlags::CREATE, PRIVATE).map_err(|e| match e {
        Errno::LOOP => other("it is a symbolic link"),
        Errno::NXIO => other("it is a pipe or a socket"),
        e => e.into(),
    })?;
    let stat = fstat(&file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if asked && kind == FileType::CharacterDevice {
        return Ok(file.into());
    }
    expect_log_of(rustix::process::geteuid().as_raw(), &stat)?;
    // A log that the user has named may be for others to read.
    if !asked && stat.st_mode & 0o177 != 0 {
        fchmod(&file, PRIVATE)?;
    }
    Ok(file.into())
}

/// Refuses what is no file of this user alone.
fn expect_log_of(owner: u32, stat: &Stat) -> io::Result<()> {
    if !is_regular(stat) {
        return Err(other("it is not a regular file"));
    }
    if stat.st_uid != owner {
        return Err(other("it belongs to another user"));
    }
    match stat.st_nlink > 1 {
        true => Err(other("it has another name (a hard link)")),
        false => Ok(()),
    }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn put_aside(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let mut old = OsString::from(name);
    old.push(".old");
    renameat(dir, name, dir, old)
}

fn other(why: &str) -> io::Error {
    io::Error::other(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    fn log(dir: &Path) -> LogFile {
        LogFile::new(dir.join("log"), false, false)
    }

    fn text(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name)).unwrap()
    }

    #[test]
    fn it_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        log.append(b"one\n").unwrap();
        let mode = |m: fs::Metadata| m.mode() & 0o7777;
        assert_eq!(mode(dir.path().join("log").metadata().unwrap()), 0o600);
        // As earlier versions have made it.
        let open = fs::Permissions::from_mode(0o644);
        fs::set_permissions(dir.path().join("log"), open).unwrap();
        log.reopen().unwrap();
        log.append(b"two\n").unwrap();
        assert_eq!(mode(dir.path().join("log").metadata().unwrap()), 0o600);
        assert_eq!(text(dir.path(), "log"), "one\ntwo\n");
    }

    /// Links and pipes are put aside, unopened; what was asked for is refused instead.
    #[test]
    fn traps_are_put_aside() {
        type Lay = fn(&Path, &Path);
        let lay: [(&str, Lay); 3] = [
            ("symbolic link", |victim, log| symlink(victim, log).unwrap()),
            ("hard link", |victim, log| {
                fs::hard_link(victim, log).unwrap()
            }),
            ("pipe", |_, log| {
                rustix::fs::mknodat(CWD, log, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }),
        ];
        for (about, lay) in lay {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            fs::write(path("victim"), "victim").unwrap();
            lay(&path("victim"), &path("log"));
            let mut asked = LogFile::new(path("log"), true, false);
            let why = asked.append(b"line\n").unwrap_err().to_string();
            assert!(why.contains(about), "{about}: {why}");
            assert!(!path("log.old").exists());
            log(dir.path()).append(b"line\n").unwrap();
            assert_eq!(text(dir.path(), "victim"), "victim", "{about}");
            assert_eq!(text(dir.path(), "log"), "line\n", "{about}");
            assert!(path("log.old").symlink_metadata().is_ok(), "{about}");
        }
    }

    #[test]
    fn the_directory_is_not_found_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs::create_dir(&real).unwrap();
        symlink(&real, dir.path().join("link")).unwrap();
        assert!(log(&dir.path().join("link")).append(b"line\n").is_err());
        let mut asked = LogFile::new(dir.path().join("link/log"), true, false);
        asked.append(b"line\n").unwrap();
        assert_eq!(text(&real, "log"), "line\n");
    }

    #[test]
    fn it_is_put_aside_while_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path()).limited_to(10);
        for n in 0..6 {
            log.append(format!("line{n}\n").as_bytes()).unwrap();
        }
        assert_eq!(text(dir.path(), "log.old"), "line4\n");
        assert_eq!(text(dir.path(), "log"), "line5\n");
    }

    /// logrotate moves it, an administrator removes it.
    #[test]
    fn it_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = log(dir.path());
        log.append(b"one\n").unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        log.append(b"two\n").unwrap();
        log.reopen().unwrap();
        log.append(b"three\n").unwrap();
        assert_eq!(text(dir.path(), "moved"), "one\ntwo\n");
        assert_eq!(text(dir.path(), "log"), "three\n");
        fs::remove_file(&path).unwrap();
        log.append(b"four\n").unwrap();
        assert_eq!(text(dir.path(), "log"), "four\n");
    }

    /// A directory that was made anew, or on which another disk is mounted by now.
    #[test]
    fn it_comes_back_where_its_directory_is() {
        let dir = tempfile::tempdir().unwrap();
        let (sub, moved) = (dir.path().join("sub"), dir.path().join("moved"));
        fs::create_dir(&sub).unwrap();
        let mut log = log(&sub);
        log.append(b"one\n").unwrap();
        fs::remove_dir_all(&sub).unwrap();
        log.append(b"lost\n").unwrap_err();
        fs::create_dir(&sub).unwrap();
        log.append(b"two\n").unwrap();
        assert_eq!(text(&sub, "log"), "two\n");
        fs::rename(&sub, &moved).unwrap();
        log.reopen().unwrap();
        log.append(b"three\n").unwrap();
        assert_eq!(text(&moved, "log"), "two\nthree\n");
        fs::create_dir(&sub).unwrap();
        log.reopen().unwrap();
        log.append(b"four\n").unwrap();
        assert_eq!(text(&sub, "log"), "four\n");
    }

    #[test]
    fn what_was_moved_is_not_put_aside_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path()).limited_to(10);
        log.append(b"line0\n").unwrap();
        fs::rename(dir.path().join("log"), dir.path().join("moved")).unwrap();
        fs::write(dir.path().join("log"), "new\n").unwrap();
        log.append(b"line1\n").unwrap();
        assert_eq!(text(dir.path(), "log"), "new\nline1\n");
        assert!(!dir.path().join("log.old").exists());
    }

    #[test]
    fn devices_are_for_those_who_name_them() {
        let mut null = LogFile::new("/dev/null".into(), true, false);
        null.append(b"line\n").unwrap();
        let mut nowhere = LogFile::new("/no/such/place".into(), true, false);
        assert!(nowhere.append(b"line\n").is_err());
    }
}
