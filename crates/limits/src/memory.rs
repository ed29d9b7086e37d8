//! Memory.

use std::path::Path;

use crate::groups::{Group, Version, of_this_process};

/// Bytes of memory that the machine has.
pub fn of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Bytes of memory that this process may use, together with the others in its control groups: what the machine has, or
/// the lowest limit. Also of those that slow down what is above them (`memory.high`).
pub fn usable() -> u64 {
    let groups = of_this_process("memory");
    let limits = groups.iter().flat_map(limits);
    limits.fold(of_machine(), u64::min)
}

fn limits(group: &Group) -> impl Iterator<Item = u64> {
    let names: &[&str] = match group.version {
        Version::One => &["memory.limit_in_bytes"],
        Version::Two => &["memory.max", "memory.high"],
    };
    let files = group.directories.iter();
    files.flat_map(|at| names.iter().filter_map(|name| limit(&at.join(name))))
}

/// The number in a file; `max` says that there is no limit.
fn limit(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowest(version: Version, files: &[(&str, &str)]) -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a");
        std::fs::create_dir(&inner).unwrap();
        for (file, text) in files {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let directories = vec![dir.path().to_owned(), inner];
        limits(&Group {
            version,
            directories,
        })
        .min()
    }

    #[test]
    fn the_lowest_limit_of_all_groups_around_holds() {
        let outer = ("memory.max", "1000\n");
        assert_eq!(
            lowest(Version::Two, &[outer, ("a/memory.max", "max\n")]),
            Some(1000)
        );
        assert_eq!(
            lowest(Version::Two, &[outer, ("a/memory.max", "70\n")]),
            Some(70)
        );
        assert_eq!(
            lowest(Version::Two, &[outer, ("a/memory.high", "60\n")]),
            Some(60)
        );
        let one = [
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("a/memory.limit_in_bytes", "50\n"),
        ];
        assert_eq!(lowest(Version::One, &one), Some(50));
        assert_eq!(
            lowest(Version::One, &[outer]),
            None,
            "a file of the other version"
        );
        assert_eq!(lowest(Version::Two, &[("memory.max", "many\n")]), None);
    }

    #[test]
    fn no_process_may_use_more_than_there_is() {
        assert!((1..=of_machine()).contains(&usable()));
    }
}
