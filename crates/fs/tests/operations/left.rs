//! Mounts that end and leave staged what is staged.

use quayfs_background::checkpoint;
use quayfs_background::digest::digest_all;
use quayfs_crashsim::{FaultDevice, FaultOp};

use super::*;

const MODES: [&str; 3] = [
    "noatime",
    "noatime,durability=commit",
    "noatime,data=writeback",
];
const BLOCKS: u64 = 5;

/// Writes some blocks, one of them twice, and returns the file.
fn staged(fs: &Fs) -> Ino {
    let f = file(fs, ROOT, "f");
    fs.write(f, 0, &[7; BLOCKS as usize * BLOCK], false)
        .unwrap();
    fs.write(f, 0, &[8; BLOCK], false).unwrap();
    f
}

fn content() -> Vec<u8> {
    [vec![8; BLOCK], vec![7; (BLOCKS as usize - 1) * BLOCK]].concat()
}

#[test]
fn what_is_left_staged_is_there_at_the_next_mount() {
    for backend in [Backend::Dax, Backend::File] {
        for options in ["noatime", "noatime,durability=commit"] {
            let disk = Disk::on(backend);
            let fs = disk.mount(options);
            let f = staged(&fs);
            assert_eq!(fs.shutdown_leaving_staged(), Ok(true));
            drop(fs);
            let report = check_volume(disk.volume(), &FsckOptions { check_data: true }).unwrap();
            assert!(report.is_clean() && report.statistics.clean, "{report}");
            assert_eq!(report.statistics.live_records, 0, "{report}");
            assert_eq!(report.statistics.staged, BLOCKS, "{report}");
            let fs = disk.mount(options);
            assert_eq!(fs.status().counters.records_replayed, 0);
            assert_eq!(fs.status().staged_blocks, BLOCKS);
            assert_eq!(fs.read(f, 0, 9 * BLOCK).unwrap(), content());
            // Whatever happens to it then.
            fs.write(f, BLOCK as u64, &[9; BLOCK], false).unwrap();
            let fs = disk.dies(fs, options);
            fs.sync_all().unwrap();
            let first = fs.read(f, 0, BLOCK).unwrap();
            assert_eq!(first, [8; BLOCK]);
            disk.ends(fs);
        }
    }
}

/// It may not answer, and that may be why this mount is to end so.
#[test]
fn what_leaves_all_staged_writes_nothing_to_the_data_device() {
    for options in MODES.into_iter().take(2) {
        let mut disk = Disk::on(Backend::File);
        let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
        disk.device = Arc::<FaultDevice>::clone(&device);
        let fs = disk.mount(options);
        staged(&fs);
        let calls = || [FaultOp::Read, FaultOp::Write].map(|op| device.calls(op));
        let before = calls();
        assert_eq!(fs.shutdown_leaving_staged(), Ok(true));
        assert_eq!(calls(), before, "{options}");
    }
}

#[test]
fn what_would_be_lost_is_drained_all_the_same() {
    for options in MODES {
        let disk = Disk::on(Backend::Volatile);
        let fs = disk.mount(options);
        let f = staged(&fs);
        assert!(!fs.leaves_staged() && !fs.status().leaves_staged);
        assert_eq!(fs.shutdown_leaving_staged(), Ok(false));
        drop(fs);
        let report = check_volume(disk.volume(), &FsckOptions { check_data: true }).unwrap();
        assert!(report.is_clean() && report.statistics.clean, "{report}");
        assert_eq!(report.statistics.staged, 0, "{report}");
        let fs = disk.mount(options);
        assert_eq!(fs.read(f, 0, 9 * BLOCK).unwrap(), content());
        disk.ends(fs);
    }
}

#[test]
fn what_is_left_to_drain_is_what_is_staged() {
    let disk = Disk::on(Backend::Dax);
    let fs = disk.mount("noatime");
    staged(&fs);
    digest_all(&fs.e).unwrap();
    assert_eq!(fs.e.left_to_drain(), BLOCKS);
    checkpoint::round(&fs.e).unwrap();
    assert_eq!(fs.e.left_to_drain(), 0);
    disk.ends(fs);
}
