//! What the kernel knows: counted in handles, and apart from them where there is none.

use quayfs_fs::{SetQuota, Subject};

use super::*;

/// Drops every handle that may be dropped.
fn evict(fs: &Fs) {
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    fs.e.inodes.evict(fs.e.journal.digested(), 0);
}

#[test]
fn lookups_outlive_their_handle() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let inodes = &fs.e.inodes;
    let f = file(&fs, ROOT, "f");
    fs.lookup(ROOT, b"f").unwrap();
    evict(&fs);
    assert!(inodes.is_empty());
    assert!(inodes.is_known(f));
    // One apart, and one in the handle to which it has come back.
    assert!(!inodes.forget(f, 1));
    assert!(inodes.is_known(f) && inodes.is_empty());
    fs.getattr(f).unwrap();
    assert_eq!(inodes.len(), 1);
    assert!(inodes.forget(f, 1) && !inodes.is_known(f));

    // The last one apart.
    fs.lookup(ROOT, b"f").unwrap();
    evict(&fs);
    assert!(inodes.forget(f, 1) && !inodes.is_known(f) && inodes.is_empty());
    // More than there were, of something that has no handle and of something that has one.
    assert!(inodes.forget(f, 7));
    fs.lookup(ROOT, b"f").unwrap();
    assert!(inodes.forget(f, 7) && !inodes.is_known(f));
    fs.abandon();
}

#[test]
fn an_orphan_that_is_known_again_is_not_freed() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let f = file(&fs, ROOT, "f");
    let files = || fs.statfs().files - fs.statfs().files_free;
    let (made, inode) = (files(), fs.getattr(f).unwrap().inode);
    fs.unlink(ROOT, b"f").unwrap();
    // What `open_by_handle_at` does.
    let again = fs.lookup(f, b".").unwrap();
    assert_eq!((again.ino, again.inode.btime), (f, inode.btime));
    fs.forget(f, 1);
    assert_eq!((fs.getattr(f).unwrap().inode.nlink, files()), (0, made));
    fs.forget(f, 1);
    assert_eq!(fs.getattr(f).map(drop), Err(FsError::Stale));
    assert_eq!(files(), made - 1);
    fs.abandon();
}

/// Mounts with all threads.
fn with_threads(disk: &Disk) -> Arc<Fs> {
    let fs = Fs::mount(disk.volume(), &MountOptions::parse(&["noatime"]).unwrap()).unwrap();
    fs.finish_chores();
    fs
}

#[test]
fn counting_waits_for_what_was_forgotten() {
    let disk = Disk::new();
    let fs = with_threads(&disk);
    let used = || {
        let s = fs.statfs();
        (s.blocks - s.free, s.files - s.files_free)
    };
    let before = used();
    for _ in 0..20 {
        let names: Vec<String> = (0..60).map(|n| n.to_string()).collect();
        let made: Vec<Ino> = names.iter().map(|n| file(&fs, ROOT, n)).collect();
        for (&ino, name) in made.iter().zip(&names) {
            fs.write(ino, 0, &[1; 2 * BLOCK], false).unwrap();
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!(used().1, before.1 + 60);
        made.iter().for_each(|&ino| fs.forget(ino, 1));
        assert_eq!(used(), before);
        assert!(fs.e.intents.all().is_empty());
    }
    // Only the end of the mount can free the last one.
    let last = file(&fs, ROOT, "last");
    fs.unlink(ROOT, b"last").unwrap();
    fs.e.stop_chores();
    fs.forget(last, 1);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn what_was_forgotten_is_charged_to_nobody() {
    let disk = Disk::new();
    let fs = with_threads(&disk);
    let dir = fs.mkdir(USER, ROOT, b"dir", 0o755).unwrap().ino;
    let flags = SetFlags {
        project: Some(7),
        ..SetFlags::all(FLAG_PROJECT)
    };
    fs.set_flags(ROOT_USER, dir, flags).unwrap();
    let limit = SetQuota {
        subject: Subject::Project(7),
        inodes_hard: Some(3),
        ..SetQuota::default()
    };
    fs.set_quota(ROOT_USER, limit).unwrap();
    file(&fs, dir, "stays");
    for _ in 0..50 {
        let f = file(&fs, dir, "comes and goes");
        let more = fs.mknod(USER, dir, b"too many", S_IFREG, 0);
        assert_eq!(more.map(drop), Err(FsError::Quota));
        fs.unlink(dir, b"comes and goes").unwrap();
        fs.forget(f, 1);
    }
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn orphans_that_wait_survive_the_daemon() {
    let disk = Disk::new();
    let fs = with_threads(&disk);
    let made: Vec<Ino> = (0..40).map(|n| file(&fs, ROOT, &n.to_string())).collect();
    for n in 0..40 {
        fs.unlink(ROOT, n.to_string().as_bytes()).unwrap();
    }
    made.iter().for_each(|&ino| fs.forget(ino, 1));
    let fs = disk.dies(fs, "noatime");
    assert!(fs.e.intents.all().is_empty());
    for ino in made {
        assert_eq!(fs.getattr(ino).map(drop), Err(FsError::Stale));
    }
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}
