//! `quayfs quota`: what projects, users and groups have and may have, on a mount or a volume at rest.

use quayfs_fs::volume::{Access, SETTLING, Volume};
use quayfs_fs::{Caller, Fs, Quota, SetQuota, Subject};
use quayfs_options::format_size;

use super::args;
use super::asking;
use super::at_rest;
use super::exit::{FAILED, Failure, USAGE, say, say_json, warn};
use super::media;
use super::units::span;
use super::unopened::unopened;
use crate::mount;
use nix::unistd::{Gid, Group, Uid, User};
use rustix::io::Errno;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

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

/// A quota, with the name of its user or group if it has one.
#[derive(Serialize)]
struct Named {
    #[serde(flatten)]
    quota: Quota,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl Named {
    fn of(quota: Quota) -> Self {
        let name = match quota.subject {
            Subject::Project(_) => None,
            Subject::User(id) => user(Uid::from_raw(id)),
            Subject::Group(id) => group(Gid::from_raw(id)),
        };
        Self { quota, name }
    }
}

fn user(id: Uid) -> Option<String> {
    Some(User::from_uid(id).ok()??.name)
}

fn group(id: Gid) -> Option<String> {
    Some(Group::from_gid(id).ok()??.name)
}

/// Sets limits if some are given, else lists.
pub fn run(args: &args::Quota) -> Result<(), Failure> {
    if args.means_all_by_one() {
        let why =
            "number 0 has no grace times of its own: `--users` or `--groups` sets those of all";
        return Err(Failure::new(USAGE, why));
    }
    let set = args.limits();
    let keeper = Keeper::of(&args.target, set.is_some())?;
    let result = match set {
        Some(set) => keeper.change(set),
        None => keeper.list(args),
    };
    if let Keeper::Here(fs) = &keeper {
        fs.shutdown().map_err(Failure::with(FAILED))?;
    }
    result
}

impl Keeper {
    fn of(target: &Path, change: bool) -> Result<Self, Failure> {
        let (path, entry) = asking::find(target, FAILED)?;
        if let Some(entry) = entry {
            asking::expect_answers(&entry, FAILED)?;
            return Ok(Self::Daemon(entry.target));
        }
        media::expect_answers(&path).map_err(Failure::with(FAILED))?;
        let access = match change {
            true => Access::ReadWrite,
            false => Access::ReadOnly,
        };
        let volume = Volume::open(&path, access, SETTLING).map_err(unopened(FAILED))?;
        let fs = at_rest::recover(volume).map_err(Failure::with(FAILED))?;
        Ok(Self::Here(fs))
    }

    /// Sets limits that can be kept, and says what has no effect.
    fn change(&self, set: SetQuota) -> Result<(), Failure> {
        let before = self.one(set.subject)?;
        if let Some(why) = contradiction(&before, &set) {
            return Err(Failure::new(FAILED, why));
        }
        self.set(set)?;
        // A grace time runs from when its limit is exceeded.
        idle_graces(&before, &set).for_each(warn);
        Ok(())
    }

    /// What one has; nothing if that is not known.
    fn one(&self, subject: Subject) -> Result<Quota, Failure> {
        let found = self
            .some(subject)?
            .into_iter()
            .find(|q| q.subject == subject);
        Ok(found.unwrap_or(Quota {
            subject,
            ..Quota::default()
        }))
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
        let (from, one) = args.shown();
        let all = match one {
            true => vec![self.one(from)?],
            false => self.all(from)?,
        };
        let all: Vec<Named> = all.into_iter().map(Named::of).collect();
        if args.json {
            say_json(serde_json::to_string(&all).map_err(Failure::with(FAILED))?);
        } else {
            say(listing(from, &all).trim_end());
        }
        Ok(())
    }

    fn all(&self, mut from: Subject) -> Result<Vec<Quota>, Failure> {
        let mut all: Vec<Quota> = Vec::new();
        loop {
            let some = self.some(from)?;
            let last = some.last().map(|q| q.subject.id());
            all.extend(some);
            match last.and_then(|last| last.checked_add(1)) {
                Some(next) => from = from.with_id(next),
                None => return Ok(all),
            }
        }
    }

    fn some(&self, from: Subject) -> Result<Vec<Quota>, Failure> {
        let mnt = match self {
            Self::Here(fs) => return fs.quotas(ME, from).map_err(Failure::with(FAILED)),
            Self::Daemon(mnt) => mnt,
        };
        let text = mount::quotas(mnt, from).map_err(|e| Failure::new(FAILED, refused(mnt, e)))?;
        serde_json::from_str(&text).map_err(Failure::with(FAILED))
    }
}

fn refused(mnt: &Path, e: Errno) -> String {
    let mnt = quayfs_shown::argument(mnt);
    match e {
        Errno::NOTCONN => format!("the daemon of {mnt} is gone: `quayfs umount {mnt}`"),
        Errno::PERM | Errno::ACCESS => {
            format!(
                "only root (CAP_SYS_ADMIN), or the ordinary user who mounted {mnt}, may set quotas there and see those of others"
            )
        }
        Errno::OPNOTSUPP => format!(
            "{mnt} is not the root of a QuayFS mount, or its volume was made before there were such quotas"
        ),
        Errno::NODATA => format!("{mnt} is not QuayFS"),
        Errno::NOSPC => format!("the quota table of {mnt} is full"),
        e => format!("{mnt}: {e}"),
    }
}

/// Why limits cannot be so: a soft one above the hard one would never be met. Those that stay as they are stay so.
fn contradiction(before: &Quota, set: &SetQuota) -> Option<String> {
    let both = |soft: Option<u64>, hard: Option<u64>, had: [u64; 2]| {
        let wanted = [soft.unwrap_or(had[0]), hard.unwrap_or(had[1])];
        let is_above = wanted[1] != 0 && wanted[0] > wanted[1];
        (soft.or(hard).is_some() && is_above).then_some(wanted)
    };
    let said = |what: &str, soft: &str, hard: &str| {
        format!("the soft limit of {what} ({soft}) is above the hard one ({hard}): set both")
    };
    let bytes = [before.bytes_soft, before.bytes_hard];
    if let Some([soft, hard]) = both(set.bytes_soft, set.bytes_hard, bytes) {
        return Some(said("bytes", &format_size(soft), &format_size(hard)));
    }
    let inodes = [before.inodes_soft, before.inodes_hard];
    let [soft, hard] = both(set.inodes_soft, set.inodes_hard, inodes)?;
    Some(said("inodes", &soft.to_string(), &hard.to_string()))
}

/// Grace times for one that is not beyond the soft limit that they are about.
fn idle_graces<'a>(before: &'a Quota, set: &'a SetQuota) -> impl Iterator<Item = String> + 'a {
    let bytes = set.bytes_soft.unwrap_or(before.bytes_soft);
    let inodes = set.inodes_soft.unwrap_or(before.inodes_soft);
    let of_one = set.subject.id() != 0;
    [
        (set.bytes_grace, before.bytes, bytes, "bytes"),
        (set.inodes_grace, before.inodes, inodes, "inodes"),
    ]
    .into_iter()
    .filter(move |(grace, has, soft, _)| of_one && grace.is_some() && (*soft == 0 || has <= soft))
    .map(|(.., what)| {
        format!("--{what}-grace has no effect: the soft limit of {what} is not exceeded now")
    })
}

/// Which limits are exceeded, as repquota(8) shows it: `+` for bytes, then for inodes. Also hard ones, which can have been
/// set below what there is.
fn exceeded(q: &Quota) -> String {
    let sign = |has: u64, limits: [u64; 2]| {
        let beyond = |limit: &u64| *limit != 0 && has > *limit;
        if limits.iter().any(beyond) { '+' } else { '-' }
    };
    [
        sign(q.bytes, [q.bytes_soft, q.bytes_hard]),
        sign(q.inodes, [q.inodes_soft, q.inodes_hard]),
    ]
    .into_iter()
    .collect()
}

/// What is left of a grace time.
fn grace(q: &Quota, ends: u64) -> String {
    // Those of number 0 are lengths, and hold for the others.
    if ends == 0 || q.subject.id() == 0 {
        return "-".into();
    }
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    match ends.saturating_sub(now) {
        0 => "over".into(),
        left => span(left),
    }
}

/// A table with a line for each project, user or group.
fn listing(kind: Subject, all: &[Named]) -> String {
    let size = |n: u64| if n == 0 { "-".into() } else { format_size(n) };
    let count = |n: u64| if n == 0 { "-".into() } else { n.to_string() };
    let kind = match kind {
        Subject::Project(_) => "project",
        Subject::User(_) => "user",
        Subject::Group(_) => "group",
    };
    let head = [
        kind, "", "used", "soft", "hard", "grace", "inodes", "soft", "hard", "grace",
    ];
    let mut rows = vec![head.map(String::from)];
    let shown = all.iter().filter(|n| n.quota.subject != Subject::default());
    rows.extend(shown.map(|Named { quota: q, name }| {
        let id = q.subject.id();
        let shown = |name: &String| quayfs_shown::text(name);
        [
            name.as_ref().map_or_else(|| id.to_string(), shown),
            exceeded(q),
            format_size(q.bytes),
            size(q.bytes_soft),
            size(q.bytes_hard),
            grace(q, q.bytes_grace),
            q.inodes.to_string(),
            count(q.inodes_soft),
            count(q.inodes_hard),
            grace(q, q.inodes_grace),
        ]
    }));
    let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 10]| {
        let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(kind: Subject, all: &[Named]) -> Vec<Vec<String>> {
        let text = listing(kind, all);
        let words = |line: &str| line.split_whitespace().map(String::from).collect();
        text.lines().map(words).collect()
    }

    #[test]
    fn a_line_for_each_project() {
        let subject = Subject::Project(7);
        let q = Quota {
            subject,
            bytes: 4096,
            bytes_hard: 1 << 20,
            inodes: 12,
            inodes_soft: 11,
            ..Quota::default()
        };
        let words = words(subject, &[Named::of(q)]);
        assert_eq!(words.len(), 2);
        // A size is a number and a unit.
        assert_eq!((words[0].len(), words[1].len()), (9, 12));
        assert_eq!(words[1][..2], ["7", "-+"]);
        assert_eq!(words[1][words[1].len() - 4..], ["12", "11", "-", "-"]);
    }

    #[test]
    fn what_is_left_of_a_grace_time_is_shown() {
        let now = UNIX_EPOCH.elapsed().unwrap().as_secs();
        let of = |id, ends| {
            let q = Quota {
                subject: Subject::User(id),
                ..Quota::default()
            };
            grace(&q, ends)
        };
        assert_eq!((of(7, 0), of(7, now)), ("-".into(), "over".into()));
        assert_eq!(of(7, now + 86_400 * 3 + 60), "3 d");
        assert_eq!(of(0, 604_800), "-");
    }

    #[test]
    fn what_is_beyond_a_limit_is_marked() {
        let q = |bytes, soft, hard| {
            exceeded(&Quota {
                bytes,
                bytes_soft: soft,
                bytes_hard: hard,
                inodes: 2,
                inodes_hard: 2,
                ..Quota::default()
            })
        };
        for inside in [q(9, 0, 0), q(9, 9, 9), q(9, 10, 0)] {
            assert_eq!(inside, "--");
        }
        for beyond in [q(9, 8, 0), q(9, 8, 10), q(9, 0, 8), q(9, 9, 8)] {
            assert_eq!(beyond, "+-");
        }
    }

    #[test]
    fn limits_that_contradict_each_other_are_refused() {
        let before = Quota {
            bytes_hard: 10 << 20,
            inodes_soft: 5,
            ..Quota::default()
        };
        let of = |set| contradiction(&before, &set);
        let soft = |bytes| SetQuota {
            bytes_soft: Some(bytes),
            ..SetQuota::default()
        };
        assert_eq!((of(soft(10 << 20)), of(soft(0))), (None, None));
        let why = of(soft(11 << 20)).unwrap();
        assert!(
            why.contains("bytes (11 MiB) is above the hard one (10 MiB)"),
            "{why}"
        );
        let hard = |inodes| SetQuota {
            inodes_hard: Some(inodes),
            ..SetQuota::default()
        };
        assert_eq!((of(hard(5)), of(hard(0))), (None, None));
        assert!(of(hard(4)).unwrap().contains("inodes (5)"));
        let old = Quota {
            bytes_soft: 11 << 20,
            ..before
        };
        assert_eq!(contradiction(&old, &hard(9)), None, "of the other kind");
    }

    #[test]
    fn a_grace_time_that_has_no_effect_is_told() {
        let before = Quota {
            subject: Subject::User(7),
            inodes: 6,
            inodes_soft: 5,
            ..Quota::default()
        };
        let set = |id| SetQuota {
            subject: Subject::User(id),
            bytes_grace: Some(1),
            inodes_grace: Some(1),
            ..SetQuota::default()
        };
        let told = |set| idle_graces(&before, &set).collect::<Vec<_>>();
        let said = told(set(7));
        assert!(
            said.len() == 1 && said[0].contains("--bytes-grace"),
            "{said:?}"
        );
        assert_eq!(told(set(0)), [""; 0], "those of all are for later");
    }

    #[test]
    fn users_and_groups_have_their_names() {
        let of = |subject| {
            let q = Quota {
                subject,
                inodes: 1,
                ..Quota::default()
            };
            words(subject, &[Named::of(q)])[1][..2].to_vec()
        };
        assert_eq!(of(Subject::User(0)), ["root", "--"]);
        assert_eq!(of(Subject::Group(0)), ["root", "--"]);
        // No user has this number.
        assert_eq!(of(Subject::User(u32::MAX - 7)), ["4294967288", "--"]);
        let json = serde_json::to_value(Named::of(Quota {
            subject: Subject::User(0),
            ..Quota::default()
        }))
        .unwrap();
        assert_eq!((&json["user"], &json["name"]), (&0.into(), &"root".into()));
        assert_eq!(json["project"], serde_json::Value::Null);
    }
}
