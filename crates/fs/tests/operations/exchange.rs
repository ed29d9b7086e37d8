//! Ranges that change places: what moves with them, what is counted, what is too much.

use quayfs_fs::{Exchange, SetQuota, Subject};

use super::*;

const B: u64 = BLOCK as u64;

fn whole(one: Ino, other: Ino) -> Exchange {
    Exchange {
        one: (one, 0),
        other: (other, 0),
        len: 0,
        to_eof: true,
        written: false,
        dry_run: false,
        unless_changed: None,
    }
}

/// A file of so many blocks, each an extent of its own: between two of them lies one of the other file.
fn scattered(fs: &Fs, names: [&str; 2], blocks: u64) -> [Ino; 2] {
    let files = names.map(|n| file(fs, ROOT, n));
    for k in 0..blocks {
        for (ino, byte) in files.into_iter().zip(1..) {
            // From the end on, so that no append takes blocks ahead.
            let at = (blocks - 1 - k) * B;
            fs.write(ino, at, &[byte; BLOCK], false).unwrap();
        }
    }
    files
}

fn extents(fs: &Fs, ino: Ino) -> usize {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    quayfs_fs::extents::ensure(&fs.e, &handle).unwrap();
    quayfs_fs::extents::with(&handle, |x| x.len()).unwrap()
}

#[test]
fn nothing_is_copied() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let [a, b] = scattered(&fs, ["a", "b"], 40);
    fs.write(b, 40 * B, &[3; 100], false).unwrap();
    let staged = fs.e.journal.stats().slots_used;
    fs.exchange(USER, whole(a, b)).unwrap();
    assert_eq!(fs.e.journal.stats().slots_used, staged);
    let fs = disk.dies(fs, "noatime");
    assert_eq!(fs.read(a, 0, 41 * BLOCK).unwrap().len(), 40 * BLOCK + 100);
    assert!(fs.read(b, 0, 41 * BLOCK).unwrap() == vec![1; 40 * BLOCK]);
    assert_eq!(fs.read(a, 40 * B - 1, 3).unwrap(), [2, 3, 3]);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn what_is_too_much_for_a_record_is_left_alone() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let most = fs.e.journal.max_record_bytes() / 96;
    let [a, b] = scattered(&fs, ["a", "b"], most);
    assert!(extents(&fs, a) as u64 > most / 2, "{}", extents(&fs, a));
    assert_eq!(fs.exchange(USER, whole(a, b)), Err(FsError::TooManyExtents));
    assert!(
        fs.read(a, 0, most as usize * BLOCK)
            .unwrap()
            .iter()
            .all(|x| *x == 1)
    );
    // A part of it fits.
    let some = Exchange {
        len: 8 * B,
        to_eof: false,
        ..whole(a, b)
    };
    fs.exchange(USER, some).unwrap();
    assert_eq!(fs.read(a, 8 * B - 1, 2).unwrap(), [2, 1]);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn projects_are_charged_for_what_they_get() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let [a, b] = [file(&fs, ROOT, "a"), file(&fs, ROOT, "b")];
    let set = SetFlags {
        project: Some(7),
        ..SetFlags::all(0)
    };
    fs.set_flags(ROOT_USER, a, set).unwrap();
    fs.write(a, 0, &[1; BLOCK], false).unwrap();
    fs.write(b, 0, &[2; 3 * BLOCK], false).unwrap();
    let used = |fs: &Fs| fs.quotas(ROOT_USER, Subject::Project(7)).unwrap()[0].bytes;
    let before = used(&fs);
    fs.exchange(USER, whole(a, b)).unwrap();
    assert_eq!(used(&fs), before + 2 * B);
    fs.exchange(USER, whole(a, b)).unwrap();
    assert_eq!(used(&fs), before);
    let limit = SetQuota {
        subject: Subject::Project(7),
        bytes_hard: Some(before + B),
        ..SetQuota::default()
    };
    fs.set_quota(ROOT_USER, limit).unwrap();
    assert_eq!(fs.exchange(USER, whole(a, b)), Err(FsError::Quota));
    assert_eq!(fs.read(a, 0, BLOCK).unwrap(), [1; BLOCK]);
    assert_eq!(used(&fs), before);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn a_file_that_was_meant_to_be_unchanged() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let [a, b] = [file(&fs, ROOT, "a"), file(&fs, ROOT, "b")];
    fs.write(a, 0, &[1; BLOCK], false).unwrap();
    fs.write(b, 0, &[2; BLOCK], false).unwrap();
    let seen = fs.freshness(b).unwrap();
    fs.write(b, 0, &[3; 7], false).unwrap();
    let what = Exchange {
        unless_changed: Some(seen),
        ..whole(a, b)
    };
    assert_eq!(fs.exchange(USER, what), Err(FsError::Busy));
    let what = Exchange {
        unless_changed: Some(fs.freshness(b).unwrap()),
        ..whole(a, b)
    };
    fs.exchange(USER, what).unwrap();
    assert_eq!(fs.read(a, 6, 2).unwrap(), [3, 2]);
    fs.abandon();
}
