//! The control groups that a process is in, and where their files are.

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, MountInfos, Process};
use procfs::{FromBufRead, ProcResult, ProcessCGroups};

/// How a hierarchy of groups names its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for some controllers.
    One,
    /// One hierarchy for all.
    Two,
}

/// The directories of a group and of those that it is in, outer ones first, as far as they can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub version: Version,
    pub directories: Vec<PathBuf>,
}

/// The groups of this process that can limit what `controller` (of version 1) is about.
pub fn of_this_process(controller: &str) -> Vec<Group> {
    let read = || -> ProcResult<Vec<Group>> {
        Ok(find(
            Process::myself()?.cgroups()?,
            mount_table()?,
            controller,
        ))
    };
    read().unwrap_or_default()
}

/// What is mounted, as this process sees it.
///
/// # Errors
/// `/proc` cannot be read, or says something unknown.
pub fn mount_table() -> ProcResult<MountInfos> {
    mounts(&std::fs::read("/proc/self/mountinfo")?)
}

/// Names are bytes, and the table has those of strangers: one that is no text must not hide all others.
fn mounts(table: &[u8]) -> ProcResult<MountInfos> {
    MountInfos::from_buf_read(String::from_utf8_lossy(table).as_bytes())
}

fn find(groups: ProcessCGroups, mounts: MountInfos, controller: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for group in groups {
        let version = match group.hierarchy {
            0 => Version::Two,
            _ if group.controllers.iter().any(|c| c == controller) => Version::One,
            _ => continue,
        };
        let is_of = |m: &&MountInfo| match version {
            Version::Two => m.fs_type == "cgroup2",
            Version::One => m.fs_type == "cgroup" && m.super_options.contains_key(controller),
        };
        let mount = mounts.0.iter().find(is_of);
        found.extend(mount.map(|m| Group {
            version,
            directories: directories(m, &group.pathname),
        }));
    }
    found
}

/// In a container the mount often begins further in than the names of groups do; a group that is not below it cannot be
/// seen, but the mount's own limits hold.
fn directories(mount: &MountInfo, group: &str) -> Vec<PathBuf> {
    let mut at = mount.mount_point.clone();
    let mut all = vec![at.clone()];
    if let Ok(inside) = Path::new(group).strip_prefix(&mount.root) {
        for part in inside {
            at.push(part);
            all.push(at.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(groups: &str, table: &str, controller: &str) -> Vec<Group> {
        let groups = ProcessCGroups::from_buf_read(groups.as_bytes()).unwrap();
        find(groups, mounts(table.as_bytes()).unwrap(), controller)
    }

    fn group(version: Version, directories: &[&str]) -> Group {
        Group {
            version,
            directories: directories.iter().map(PathBuf::from).collect(),
        }
    }

    const BOTH: &str = "\
        30 1 0:26 / /cg/memory rw - cgroup cgroup rw,memory\n\
        31 1 0:27 / /cg/unified rw - cgroup2 cgroup2 rw\n\
        32 1 0:28 / /cg/pids rw - cgroup cgroup rw,pids\n";

    #[test]
    fn each_version_is_found_where_it_is_mounted() {
        let groups = "4:memory:/a/b\n3:pids:/c\n0::/d\n";
        let expected = [
            group(
                Version::One,
                &["/cg/memory", "/cg/memory/a", "/cg/memory/a/b"],
            ),
            group(Version::Two, &["/cg/unified", "/cg/unified/d"]),
        ];
        assert_eq!(found(groups, BOTH, "memory"), expected);
        assert_eq!(found(groups, BOTH, "blkio"), expected[1..]);
        assert_eq!(found("4:memory:/a\n", "", "memory"), []);
    }

    #[test]
    fn a_mount_that_begins_further_in_is_followed_from_there() {
        let table = "30 1 0:26 /docker/x /cg rw - cgroup2 cgroup2 rw\n";
        let inside = group(Version::Two, &["/cg", "/cg/y"]);
        assert_eq!(found("0::/docker/x/y\n", table, "memory"), [inside]);
        let outside = group(Version::Two, &["/cg"]);
        assert_eq!(found("0::/system\n", table, "memory"), [outside]);
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_other() {
        let table = [b"29 1 8:1 / /\xff rw - ext4 /dev/x rw\n", BOTH.as_bytes()].concat();
        assert_eq!(mounts(&table).unwrap().0.len(), 4);
    }

    #[test]
    fn groups_of_this_process_are_where_they_are_said_to_be() {
        for group in of_this_process("memory") {
            assert!(group.directories[0].is_dir(), "{group:?}");
        }
    }
}
