//! Arguments of `quota`.

use clap::{ArgGroup, Args};
use nix::unistd::{Group, User};
use quayfs_fs::{SetQuota, Subject};
use quayfs_options::parse_size;
use std::path::PathBuf;

const QUOTA_HELP: &str = "\
What each user and each group owns is counted from the beginning. A project is a number that files
have in common. A directory passes it on, and with it what is made below it is counted:
  chattr -R -p 7 /mnt/q/tree; chattr +P /mnt/q/tree     all of it, and all that is to come
  lsattr -p /mnt/q                                      which is which

Nothing grows beyond a hard limit (EDQUOT). Those of users and groups do not hold for callers with
CAP_SYS_RESOURCE, as root is one; those of projects hold for root too, and df of such a directory
shows the limit as its size. A soft limit may be exceeded for a grace time, seven days by default;
after that nothing grows until it is not exceeded any more. A `+` marks what is beyond a limit: +-
bytes, -+ inodes. `none` takes a limit away. It takes CAP_SYS_ADMIN, or being the user who
mounted, to set limits and to see those of others.

Examples:
  quayfs quota /mnt/q --users                           what users have, as repquota(8) shows it
  quayfs quota /mnt/q --user alice --bytes 10G --inodes 100000
  quayfs quota /mnt/q --group staff --bytes none
  quayfs quota /mnt/q --users --bytes-grace 3days       of all users, once beyond a soft limit
  quayfs quota /mnt/q --user alice --bytes-grace 1day   of alice alone, from now on
  quayfs quota /mnt/q                                   all projects
  quayfs quota /mnt/q --project 7 --bytes 10G
  quayfs quota /srv/vol --groups --json                 a volume at rest, for scripts

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// See [`QUOTA_HELP`].
#[derive(Debug, Args)]
#[command(after_help = QUOTA_HELP)]
#[command(group(ArgGroup::new("one").args(["project", "user", "group"])))]
#[command(group(ArgGroup::new("which").args(["project", "user", "group", "users", "groups"])))]
pub struct Quota {
    /// What `mkfs` made a volume, or where it is mounted.
    pub target: PathBuf,
    /// What all users have and may have, instead of all projects.
    #[arg(long)]
    pub users: bool,
    /// What all groups have and may have.
    #[arg(long)]
    pub groups: bool,
    /// Only this user, by name or number.
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub user: Option<u32>,
    /// Only this group, by name or number.
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub group: Option<u32>,
    /// Only this project.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub project: Option<u32>,
    /// It can have so many bytes, and no more; K, M, G, T are powers of 1024 (10MB is 10 MiB).
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "one")]
    pub bytes: Option<u64>,
    /// It can have more than so many bytes for a while only.
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "one")]
    pub bytes_soft: Option<u64>,
    /// It can have so many inodes, and no more.
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "one")]
    pub inodes: Option<u64>,
    /// It can have more than so many inodes for a while only.
    #[arg(long, value_name = "N", value_parser = parse_count, requires = "one")]
    pub inodes_soft: Option<u64>,
    /// For so long from now on the soft limit of bytes may be exceeded, if it is just now. Without a user, group or
    /// project: for so long it may be from the moment when it is.
    #[arg(long, value_name = "TIME", value_parser = parse_grace)]
    pub bytes_grace: Option<u32>,
    /// The same for the soft limit of inodes.
    #[arg(long, value_name = "TIME", value_parser = parse_grace)]
    pub inodes_grace: Option<u32>,
    /// Print one JSON array.
    #[arg(long)]
    pub json: bool,
}

impl Quota {
    fn one(&self) -> Option<Subject> {
        let user = || self.user.map(Subject::User);
        let group = || self.group.map(Subject::Group);
        self.project
            .map(Subject::Project)
            .or_else(user)
            .or_else(group)
    }

    /// From where on subjects are to be shown, and whether only that one is.
    pub fn shown(&self) -> (Subject, bool) {
        match self.one() {
            Some(one) => (one, true),
            None if self.users => (Subject::User(0), false),
            None if self.groups => (Subject::Group(0), false),
            None => (Subject::Project(0), false),
        }
    }

    /// Whether grace times of all of a kind would be set as if they were those of one.
    pub fn means_all_by_one(&self) -> bool {
        let grace = self.bytes_grace.or(self.inodes_grace);
        grace.is_some() && self.one().is_some_and(|one| one.id() == 0)
    }

    /// The limits that are to be set, if any. Grace times of a kind belong to its number 0.
    pub fn limits(&self) -> Option<SetQuota> {
        let set = SetQuota {
            subject: self.shown().0,
            bytes_soft: self.bytes_soft,
            bytes_hard: self.bytes,
            inodes_soft: self.inodes_soft,
            inodes_hard: self.inodes,
            bytes_grace: self.bytes_grace,
            inodes_grace: self.inodes_grace,
        };
        let nothing = SetQuota {
            subject: set.subject,
            ..SetQuota::default()
        };
        (set != nothing).then_some(set)
    }
}

/// A limit, which may be none.
fn parse_limit(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        _ => parse_size(text).map_err(|e| e.to_string()),
    }
}

/// The same of a number of files.
fn parse_count(text: &str) -> Result<u64, String> {
    parse_limit(text).map_err(|_| {
        format!("`{text}` is not a number of files: write a whole number, `none`, or one of K, M, G (powers of 1024)")
    })
}

/// A time, in seconds.
fn parse_grace(text: &str) -> Result<u32, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    // No time is none because it is short.
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let seconds = u32::try_from(whole).ok();
    seconds.ok_or_else(|| "longer than a century".into())
}

/// A user, by name or number.
pub(super) fn parse_user(text: &str) -> Result<u32, String> {
    let found = User::from_name(text).map(|user| user.map(|u| u.uid.as_raw()));
    id(text, found, "user")
}

/// A group, by name or number.
pub(super) fn parse_group(text: &str) -> Result<u32, String> {
    let found = Group::from_name(text).map(|group| group.map(|g| g.gid.as_raw()));
    id(text, found, "group")
}

/// The number that has been found for a name, or that the name is. The last number means nobody.
fn id(text: &str, found: nix::Result<Option<u32>>, kind: &str) -> Result<u32, String> {
    let number = || text.parse().ok().filter(|n| *n != u32::MAX);
    match found {
        Ok(found) => (found.or_else(number)).ok_or_else(|| format!("no {kind} is called `{text}`")),
        Err(e) => number().ok_or_else(|| e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_time_is_one() {
        let seconds = ["0s", "1us", "500ms", "2s", "1h 1ms"].map(parse_grace);
        assert_eq!(seconds, [0, 1, 1, 2, 3601].map(Ok));
        assert!(parse_grace("200years").is_err() && parse_grace("5").is_err());
    }

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        assert_eq!(parse_user("root"), Ok(0));
        assert_eq!(parse_group("root"), Ok(0));
        assert_eq!(parse_user("4000000000"), Ok(4_000_000_000));
        assert_eq!(parse_group("12345"), Ok(12345));
        for none in ["", "-1", "4294967295", "no such name"] {
            assert!(parse_user(none).is_err(), "{none}");
            assert!(parse_group(none).is_err(), "{none}");
        }
    }
}
