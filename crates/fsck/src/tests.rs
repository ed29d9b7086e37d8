//! A sound volume has no finding, whatever has happened to it; a damaged one has exactly the one
//! that names the damage.

mod backup;
mod crowd;
mod damaged;
mod doubt;
mod dumps;
mod engine;
mod heals;
mod losses;
mod lost;
mod metadata;
mod mounts;
mod names;
mod quotas;
mod random;
mod scale;
mod storage;
mod support;
mod unwritten;

use super::KEPT;
use support::{Disk, NAMES};

#[test]
fn a_new_volume_is_clean() {
    let disk = Disk::new();
    let report = disk.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.statistics.inodes, 1);
    assert_eq!(report.statistics.directories, 1);
    assert_eq!(report.statistics.node_pages, 3);
}

#[test]
fn the_sample_is_clean() {
    let (disk, _) = Disk::sample();
    let report = disk.check();
    assert!(report.is_clean(), "{report}");
    assert!(
        report.skipped.is_empty() && report.statistics.clean,
        "{report}"
    );
    let s = &report.statistics;
    assert_eq!(
        (s.directories, s.files, s.symlinks, s.special),
        (3, NAMES + 4, 2, 1)
    );
    assert_eq!((s.entries, s.blocks, s.verified), (NAMES + 10, 48, 22));
}

#[test]
fn a_report_reads_well() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.fifo, |i| i.blocks = 3);
    disk.edit(disk.inode(s.big).root, |page| page[2] = 1);
    let report = disk.check();
    let text = report.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let fifo = s.fifo;
    let first = format!("error: inode: inode {fifo}: owns 0 blocks, its image says 3");
    assert!(lines[..2].contains(&&first[..]), "{text}");
    // Its owner and group have not as much as the image says.
    assert!(
        lines[2..4].iter().all(|l| l.starts_with("error: quota: ")),
        "{text}"
    );
    assert!(lines[4].starts_with("not checked: "), "{text}");
    assert_eq!(lines.last(), Some(&"4 findings"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][1]["severity"], "error");
    assert_eq!(json["findings"][1]["area"], "inode");
    assert_eq!(json["statistics"]["special"], 1);
    assert_eq!(json["skipped"].as_array().map(Vec::len), Some(2));
}

#[test]
fn findings_without_end_are_counted() {
    let (disk, _) = Disk::sample();
    for n in 0..400 {
        disk.bit(disk.geo().ino_bitmap_base, 1000 + n, true);
    }
    let report = disk.check();
    assert_eq!(
        (report.findings.len(), report.unlisted),
        (KEPT, 400 - KEPT as u64)
    );
    assert!(report.to_string().contains("and 144 more"), "{report}");
    assert!(report.to_string().ends_with("400 findings"), "{report}");
}
