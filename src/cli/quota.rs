//! `quayfs quota`: what projects have and may have, on a mount or a volume at rest.

use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs, Quota, SetQuota};
use quayfs_options::{MountOptions, format_size};

use super::args;
use super::exit::{FAILED, Failure, say, say_json};
use super::unopened::{unopened, unreached};
use crate::mount::{self, table};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The owner of the process may do with a volume at rest what the daemon would let root do.
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// The process that knows the quotas.
enum Keeper {
    /// The daemon of the mount there.
    Daemon(PathBuf),
    /// This process.
    Here(Arc<Fs>),
}

/// Sets limits if some are given, else lists.
pub fn run(args: &args::Quota) -> Result<(), Failure> {
    let set = args.limits();
    let keeper = Keeper::of(&args.target, set.is_some())?;
    let result = match set {
        Some(set) => keeper.set(set),
        None => keeper.list(args),
    };
    if let Keeper::Here(fs) = &keeper {
        fs.shutdown().map_err(Failure::with(FAILED))?;
    }
    result
}

impl Keeper {
    fn of(target: &Path, change: bool) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new(FAILED, why);
        let path = table::resolve(target).map_err(|e| unreached(FAILED, target, &e))?;
        let entry = table::mount_for(&path).map_err(|e| failed(format!("mount table: {e}")))?;
        if let Some(entry) = entry {
            return Ok(Self::Daemon(entry.target));
        }
        let access = match change {
            true => Access::ReadWrite,
            false => Access::ReadOnly,
        };
        let volume = Volume::open(&path, access, Duration::ZERO).map_err(unopened(FAILED))?;
        let options = MountOptions {
            read_only: !change,
            ..MountOptions::default()
        };
        let fs = Fs::mount(volume, &options).map_err(Failure::with(FAILED))?;
        Ok(Self::Here(fs))
    }

    fn set(&self, set: SetQuota) -> Result<(), Failure> {
        match self {
            Self::Daemon(mnt) => {
                mount::set_quota(mnt, &set).map_err(|e| Failure::new(FAILED, refused(mnt, e)))
            }
            Self::Here(fs) => fs.set_quota(ME, set).map_err(Failure::with(FAILED)),
        }
    }

    fn list(&self, args: &args::Quota) -> Result<(), Failure> {
        let mut all: Vec<Quota> = Vec::new();
        let mut from = args.project.unwrap_or(0);
        loop {
            let some = self.some(from)?;
            let last = some.last().map(|q| q.project);
            all.extend(some);
            match last.and_then(|last| last.checked_add(1)) {
                Some(next) if args.project.is_none() => from = next,
                _ => break,
            }
        }
        all.retain(|q| args.project.is_none_or(|p| q.project == p));
        if args.json {
            say_json(serde_json::to_string(&all).map_err(Failure::with(FAILED))?);
        } else {
            say(listing(&all).trim_end());
        }
        Ok(())
    }

    fn some(&self, from: u32) -> Result<Vec<Quota>, Failure> {
        let mnt = match self {
            Self::Here(fs) => return fs.quotas(ME, from).map_err(Failure::with(FAILED)),
            Self::Daemon(mnt) => mnt,
        };
        let text = mount::quotas(mnt, from).map_err(|e| Failure::new(FAILED, refused(mnt, e)))?;
        serde_json::from_str(&text).map_err(Failure::with(FAILED))
    }
}

fn refused(mnt: &Path, e: Errno) -> String {
    let mnt = quayfs_shown::path(mnt);
    match e {
        Errno::NOTCONN => format!("the daemon of {mnt} is gone: `quayfs umount {mnt}`"),
        Errno::PERM | Errno::ACCESS => {
            format!(
                "only root (CAP_SYS_ADMIN) and the user who mounted see and set quotas of {mnt}; \
                 if that is an ordinary user, only that user"
            )
        }
        Errno::OPNOTSUPP => format!(
            "{mnt} is not the root of a QuayFS mount, or its volume was made without quotas"
        ),
        Errno::NODATA => format!("{mnt} is not QuayFS"),
        Errno::NOSPC => format!("the quota table of {mnt} is full"),
        e => format!("{mnt}: {e}"),
    }
}

/// A table with a line for each project.
fn listing(all: &[Quota]) -> String {
    let size = |n: u64| if n == 0 { "-".into() } else { format_size(n) };
    let count = |n: u64| if n == 0 { "-".into() } else { n.to_string() };
    let head = ["project", "used", "soft", "hard", "inodes", "soft", "hard"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(all.iter().map(|q| {
        [
            q.project.to_string(),
            format_size(q.bytes),
            size(q.bytes_soft),
            size(q.bytes_hard),
            q.inodes.to_string(),
            count(q.inodes_soft),
            count(q.inodes_hard),
        ]
    }));
    let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_project() {
        let q = Quota {
            project: 7,
            bytes: 4096,
            bytes_hard: 1 << 20,
            inodes: 12,
            inodes_soft: 100,
            ..Quota::default()
        };
        let text = listing(&[q]);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(words.len(), 2);
        assert_eq!(words[0].len(), 7);
        assert_eq!(words[1].first(), Some(&"7"));
        assert_eq!(words[1][words[1].len() - 3..], ["12", "100", "-"]);
    }
}
