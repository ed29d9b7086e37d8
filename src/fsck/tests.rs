//! A sound volume has no finding, whatever has happened to it; a damaged one has exactly the one
//! that names the damage.

mod support;

use support::Disk;

#[test]
fn a_new_volume_is_clean() {
    let disk = Disk::new();
    let report = disk.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.statistics.inodes, 1);
    assert_eq!(report.statistics.directories, 1);
    assert_eq!(report.statistics.node_pages, 2);
}
