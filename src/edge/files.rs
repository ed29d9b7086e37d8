//! The open files of whoever asks. A request says on which inode, not through which descriptor; and of a
//! second file it has no more than the number of a descriptor.

use std::io;
use std::str::FromStr;

use quayfs_fuse::Errno;
use quayfs_layout::Ino;

use crate::edge::caller::task;
use crate::mount::table;

/// A descriptor of another process (`/proc/PID/fdinfo`, proc_pid_fdinfo(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    ino: Ino,
    mount: u64,
    flags: u32,
}

impl Open {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            Some(line.strip_prefix(':')?.trim())
        };
        Some(Self {
            ino: u64::from_str(field("ino")?).ok()?,
            mount: u64::from_str(field("mnt_id")?).ok()?,
            flags: u32::from_str_radix(field("flags")?, 8).ok()?,
        })
    }

    fn writes(self) -> bool {
        let (mode, path) = (libc::O_ACCMODE, libc::O_PATH);
        self.flags & mode.cast_unsigned() != libc::O_RDONLY.cast_unsigned()
            && self.flags & path.cast_unsigned() == 0
    }

    fn reads_and_writes(self) -> bool {
        let (mode, append) = (libc::O_ACCMODE, libc::O_APPEND);
        self.writes()
            && self.flags & mode.cast_unsigned() == libc::O_RDWR.cast_unsigned()
            && self.flags & append.cast_unsigned() == 0
    }
}

/// The descriptors of a process, as far as they are about one file system.
pub(super) struct Files {
    pid: u32,
    /// Its mounts, in the process's view.
    mounts: Vec<u64>,
}

impl Files {
    /// Of thread or process `pid`, about the file system with this device number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it cannot be seen from here: another namespace of processes; `EPERM` if the daemon may
    /// not look.
    pub(super) fn of(pid: u32, device: &str) -> Result<Self, Errno> {
        process_of(pid)?;
        let all = table::read_of(pid).map_err(|e| unseen(&e))?;
        let ours = all.into_iter().filter(|m| m.device == device);
        Ok(Self {
            pid,
            mounts: ours.map(|m| m.id).collect(),
        })
    }

    /// The inode that a descriptor is open for, reading and writing, but not at the end only.
    ///
    /// # Errors
    /// `EBADF` where that is not so, `EXDEV` if it is one of another file system.
    pub(super) fn writable(&self, fd: i32) -> Result<Ino, Errno> {
        let path = format!("/proc/{}/fdinfo/{fd}", self.pid);
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Errno::new(libc::EBADF),
            _ => unseen(&e),
        })?;
        let open = Open::parse(&text).ok_or(Errno::new(libc::EBADF))?;
        if !self.mounts.contains(&open.mount) {
            return Err(Errno::new(libc::EXDEV));
        }
        if !open.reads_and_writes() {
            return Err(Errno::new(libc::EBADF));
        }
        Ok(open.ino)
    }

    /// Whether some descriptor is open for this inode, reading and writing, but not at the end only.
    ///
    /// # Errors
    /// `EPERM` if the daemon may not look.
    pub(super) fn has_writable(&self, ino: Ino) -> Result<bool, Errno> {
        self.has(ino, Open::reads_and_writes)
    }

    /// Whether some descriptor is open for this inode and for writing, in whatever way.
    ///
    /// # Errors
    /// `EPERM` if the daemon may not look.
    pub(super) fn has_writer(&self, ino: Ino) -> Result<bool, Errno> {
        self.has(ino, Open::writes)
    }

    fn has(&self, ino: Ino, how: fn(Open) -> bool) -> Result<bool, Errno> {
        let path = format!("/proc/{}/fdinfo", self.pid);
        for entry in std::fs::read_dir(path).map_err(|e| unseen(&e))? {
            // What goes away meanwhile is not what the call was made on.
            let Ok(text) = entry.and_then(|e| std::fs::read_to_string(e.path())) else {
                continue;
            };
            let open = Open::parse(&text);
            if open.is_some_and(|o| o.ino == ino && self.mounts.contains(&o.mount) && how(o)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The process that a thread belongs to.
///
/// # Errors
/// `EOPNOTSUPP` if it cannot be seen from here.
pub(super) fn process_of(thread: u32) -> Result<u32, Errno> {
    let found = task(thread).and_then(|t| u32::try_from(t.tgid).ok());
    found.ok_or(Errno::new(libc::EOPNOTSUPP))
}

fn unseen(e: &io::Error) -> Errno {
    Errno::new(match e.kind() {
        io::ErrorKind::PermissionDenied => libc::EPERM,
        _ => libc::EOPNOTSUPP,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_descriptor() {
        let open = Open::parse("pos:\t0\nflags:\t0102002\nmnt_id:\t31\nino:\t77\n").unwrap();
        assert_eq!((open.ino, open.mount), (77, 31));
        assert!(!open.reads_and_writes(), "O_APPEND");
        assert!(
            Open::parse("flags:\t0100002\nmnt_id:\t31\nino:\t77\n")
                .unwrap()
                .reads_and_writes()
        );
        assert!(
            !Open::parse("flags:\t0100000\nmnt_id:\t31\nino:\t77\n")
                .unwrap()
                .reads_and_writes()
        );
        assert_eq!(Open::parse("flags:\t08\nmnt_id:\t31\nino:\t77\n"), None);
        assert_eq!(Open::parse("flags:\t02\nmnt_id:\t31\n"), None);
    }

    #[test]
    fn descriptors_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let write = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        let meta = write.metadata().unwrap();
        let number = |dev| format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let me = std::process::id();
        let files = Files::of(me, &number(meta.dev())).unwrap();
        assert_eq!(files.writable(write.as_raw_fd()), Ok(meta.ino()));
        assert_eq!(files.has_writable(meta.ino()), Ok(true));
        assert_eq!(files.has_writer(meta.ino()), Ok(true));
        let append = OpenOptions::new().append(true).open(&path).unwrap();
        let read = File::open(&path).unwrap();
        drop(write);
        assert_eq!(files.has_writable(meta.ino()), Ok(false));
        assert_eq!(files.has_writer(meta.ino()), Ok(true));
        drop(append);
        assert_eq!(files.has_writer(meta.ino()), Ok(false));
        assert_eq!(
            files.writable(read.as_raw_fd()).map_err(Errno::number),
            Err(libc::EBADF)
        );
        assert_eq!(files.has_writable(meta.ino()), Ok(false));
        let elsewhere = Files::of(me, "0:0").unwrap();
        assert_eq!(
            elsewhere.writable(read.as_raw_fd()).map_err(Errno::number),
            Err(libc::EXDEV)
        );
        assert_eq!(files.writable(-1).map_err(Errno::number), Err(libc::EBADF));
        assert_eq!(
            Files::of(0, "0:0").map(drop).map_err(Errno::number),
            Err(libc::EOPNOTSUPP)
        );
    }
}
