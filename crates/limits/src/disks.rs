//! Disks (`blk-throttle`).

use std::collections::BTreeMap;
use std::path::Path;

use crate::groups::{Group, Version, of_this_process};

/// Files of version 1, and what their figure is called in `io.max`.
const V1: [(&str, &str); 4] = [
    ("blkio.throttle.read_bps_device", "rbps"),
    ("blkio.throttle.write_bps_device", "wbps"),
    ("blkio.throttle.read_iops_device", "riops"),
    ("blkio.throttle.write_iops_device", "wiops"),
];

/// Limits on how fast this process may use disks: a line for each as in `io.max` of version 2, those of outer groups first.
pub fn of_disks() -> Vec<String> {
    of_this_process("blkio").iter().flat_map(of_group).collect()
}

fn of_group(group: &Group) -> Vec<String> {
    let directories = group.directories.iter();
    directories
        .flat_map(|at| of_directory(at, group.version))
        .collect()
}

fn of_directory(at: &Path, version: Version) -> Vec<String> {
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(at.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    if version == Version::Two {
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
        let group = |version| Group {
            version,
            directories: vec![dir.path().into(), dir.path().join("a"), inner.clone()],
        };
        let expected = ["254:0 rbps=2000", "254:0 wbps=1000 wiops=50", "8:0 wbps=7"];
        assert_eq!(of_group(&group(Version::One)), expected);
        assert!(of_group(&group(Version::Two)).is_empty());

        std::fs::write(inner.join("io.max"), "254:0 rbps=max wbps=1000\n").unwrap();
        let expected = ["254:0 rbps=max wbps=1000"];
        assert_eq!(of_group(&group(Version::Two)), expected);
    }
}
