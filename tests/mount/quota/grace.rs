//! Soft limits: exceeded for a grace time, and hard when it is over, whatever ends a mount meanwhile.

use super::*;

const SEVEN: Subject = Subject::Project(7);
const WEEK: u64 = 7 * 86_400;

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

fn set(d: &Disk, set: SetQuota) {
    d.fs.set_quota(ME, set).unwrap();
}

fn file(d: &Disk, dir: Ino, name: &str, bytes: usize) -> Result<(), FsError> {
    let made = d.fs.mknod(ME, dir, name.as_bytes(), S_IFREG | 0o644, 0)?;
    d.fs.write(made.ino, 0, &vec![1; bytes], false)
}

/// Two blocks are allowed, and a page of names, and more for a while.
fn limited(d: &Disk) -> Ino {
    let dir = d.tree("dir", 7);
    let soft = SetQuota {
        subject: SEVEN,
        bytes_soft: Some(3 * B),
        ..SetQuota::default()
    };
    set(d, soft);
    file(d, dir, "inside", 2 * BLOCK).unwrap();
    assert_eq!(d.quota_of(SEVEN).bytes_grace, 0);
    dir
}

#[test]
fn it_begins_with_what_exceeds_the_limit_and_ends_with_what_does_not() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let dir = limited(&d);
        file(&d, dir, "beyond", BLOCK).unwrap();
        let until = d.quota_of(SEVEN).bytes_grace;
        assert!(until >= now() + WEEK - 60 && until <= now() + WEEK);
        d.dies();
        assert_eq!(d.quota_of(SEVEN).bytes_grace, until);
        file(&d, dir, "more", BLOCK).unwrap();
        d.ends();
        assert_eq!(d.quota_of(SEVEN).bytes_grace, until);
        d.fs.unlink(dir, b"beyond").unwrap();
        d.fs.unlink(dir, b"more").unwrap();
        d.ends();
        assert_eq!(d.quota_of(SEVEN).bytes_grace, 0);
        d.fs.shutdown().unwrap();
    }
}

#[test]
fn nothing_grows_when_it_is_over() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let dir = limited(&d);
        file(&d, dir, "beyond", BLOCK).unwrap();
        let over = SetQuota {
            subject: SEVEN,
            bytes_grace: Some(0),
            ..SetQuota::default()
        };
        set(&d, over);
        for _ in 0..2 {
            assert_eq!(file(&d, dir, "more", BLOCK), Err(FsError::Quota));
            d.fs.unlink(dir, b"more").unwrap();
            d.dies();
        }
        // What is there can be written over, and inodes have limits of their own.
        let beyond = d.fs.lookup(dir, b"beyond").unwrap().ino;
        d.fs.write(beyond, 0, &[2; BLOCK], false).unwrap();
        d.fs.unlink(dir, b"inside").unwrap();
        file(&d, dir, "more", BLOCK).unwrap();
        d.fs.shutdown().unwrap();
    }
}

#[test]
fn a_kind_has_grace_times_of_its_own() {
    let mut d = Disk::new(MODES[0]);
    let of_all = SetQuota {
        subject: Subject::Project(0),
        bytes_grace: Some(1000),
        ..SetQuota::default()
    };
    set(&d, of_all);
    let limit = SetQuota {
        bytes_soft: Some(1),
        ..of_all
    };
    assert_eq!(d.fs.set_quota(ME, limit), Err(FsError::Invalid));
    d.dies();
    let q = d.quota_of(Subject::Project(0));
    assert_eq!((q.bytes_grace, q.inodes_grace), (1000, WEEK));
    let dir = limited(&d);
    file(&d, dir, "beyond", BLOCK).unwrap();
    let left = d.quota_of(SEVEN).bytes_grace - now();
    assert!(left > 940 && left <= 1000, "{left}");
    // Other kinds have theirs.
    assert_eq!(d.quota_of(Subject::User(0)).bytes_grace, WEEK);
    d.fs.shutdown().unwrap();
    // Nothing is found to be repaired.
    d.media.fsck().unwrap();
}
