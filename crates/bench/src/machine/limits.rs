//! How much of a disk a process may have (`blk-throttle`): from the control groups that it is in, of both versions.
//! Linux: `Documentation/admin-guide/cgroup-v2.rst` (`io.max`), `cgroup-v1/blkio-controller.rst`.

use procfs::process::Process;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files of version 1, and what their figure is called in `io.max`.
const V1: [(&str, &str); 4] = [
    ("blkio.throttle.read_bps_device", "rbps"),
    ("blkio.throttle.write_bps_device", "wbps"),
    ("blkio.throttle.read_iops_device", "riops"),
    ("blkio.throttle.write_iops_device", "wiops"),
];

/// Limits on this process, outer groups first. What cannot be read limits nothing that anybody could tell.
pub fn of_this_process() -> Vec<String> {
    let mut found = Vec::new();
    for (mount, group, is_v2) in groups().unwrap_or_default() {
        found.extend(of_group(&mount, &group, is_v2));
    }
    found
}

/// Where groups with limits are mounted, the group of this process there, and whether that is version 2.
fn groups() -> procfs::ProcResult<Vec<(PathBuf, String, bool)>> {
    let me = Process::myself()?;
    let mut found = Vec::new();
    let mounts = crate::target::mount_table()?;
    for group in me.cgroups()? {
        let is_v2 = group.hierarchy == 0;
        if !is_v2 && !group.controllers.iter().any(|c| c == "blkio") {
            continue;
        }
        let mount = mounts.iter().find(|m| match is_v2 {
            true => m.fs_type == "cgroup2",
            false => m.fs_type == "cgroup" && m.super_options.contains_key("blkio"),
        });
        found.extend(mount.map(|m| (m.mount_point.clone(), group.pathname, is_v2)));
    }
    Ok(found)
}

/// Limits of a group and of those that it is in.
fn of_group(mount: &Path, group: &str, is_v2: bool) -> Vec<String> {
    let mut at = mount.to_owned();
    let mut found = of_directory(&at, is_v2);
    for part in group.split('/').filter(|p| !p.is_empty()) {
        at.push(part);
        found.extend(of_directory(&at, is_v2));
    }
    found
}

fn of_directory(at: &Path, is_v2: bool) -> Vec<String> {
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(at.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    if is_v2 {
        return lines("io.max");
    }
    let mut devices: BTreeMap<String, String> = BTreeMap::new();
    for (file, name) in V1 {
        for line in lines(file) {
            if let Some((device, figure)) = line.split_once(' ') {
                let words = devices.entry(device.into()).or_default();
                *words += &format!(" {name}={figure}");
            }
        }
    }
    let line = |(device, words)| format!("{device}{words}");
    devices.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_read_alike() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join(V1[1].0), "254:0 1000\n8:0 7\n").unwrap();
        std::fs::write(inner.join(V1[3].0), "254:0 50\n").unwrap();
        std::fs::write(dir.path().join(V1[0].0), "254:0 2000\n").unwrap();
        let expected = ["254:0 rbps=2000", "254:0 wbps=1000 wiops=50", "8:0 wbps=7"];
        assert_eq!(of_group(dir.path(), "/a/b", false), expected);
        assert!(of_group(dir.path(), "/", true).is_empty());

        std::fs::write(inner.join("io.max"), "254:0 rbps=max wbps=1000\n").unwrap();
        let expected = ["254:0 rbps=max wbps=1000"];
        assert_eq!(of_group(dir.path(), "/a/b", true), expected);
    }

    #[test]
    fn groups_of_this_process_are_where_they_are_said_to_be() {
        for (mount, group, _) in groups().unwrap() {
            assert!(
                mount.is_dir() && group.starts_with('/'),
                "{mount:?} {group}"
            );
        }
    }
}
