//! Background threads that sleep while the mount is not used, and what wakes them.

use std::sync::atomic::Ordering;

use super::*;

fn mount(disk: &Disk, options: &str) -> Arc<Fs> {
    let options = MountOptions::parse(&[options]).unwrap();
    Fs::mount(disk.volume(), &options).unwrap()
}

/// Waits until no thread has looked around for a while.
fn await_rest(fs: &Fs) {
    let looks = || fs.e.metrics.wakeups.load(Ordering::Relaxed);
    until(|| {
        let before = looks();
        thread::sleep(Duration::from_millis(300));
        looks() == before
    });
}

/// Each time they have gone to sleep, what comes next is digested, by however few records.
#[test]
fn a_record_ends_the_rest() {
    let disk = Disk::new();
    let fs = mount(&disk, "noatime,durability=op");
    for n in 0..5 {
        await_rest(&fs);
        file(&fs, ROOT, &format!("f{n}"));
        let last = fs.e.journal.last_seq();
        until(|| fs.e.journal.digested() >= last);
    }
    disk.ends(fs);
}

/// A commit that is due comes in time, and a commit that another thread has made lets digest go on.
#[test]
fn a_commit_ends_the_rest() {
    let disk = Disk::on(Backend::File);
    let fs = mount(&disk, "noatime,durability=commit,commit=1");
    await_rest(&fs);
    file(&fs, ROOT, "f");
    let last = fs.e.journal.last_seq();
    until(|| fs.e.journal.commit_ts() >= last);
    until(|| fs.e.journal.digested() >= last);
    disk.ends(fs);

    let fs = mount(&disk, "noatime,durability=commit,commit=300");
    file(&fs, ROOT, "g");
    await_rest(&fs);
    let last = fs.e.journal.last_seq();
    assert!(fs.e.journal.commit_ts() < last);
    fs.e.commit().unwrap();
    until(|| fs.e.journal.digested() >= last);
    disk.ends(fs);
}

/// Everything that is staged leaves, even if the mount is not used any more.
#[test]
fn what_is_staged_is_written_out_before_they_rest() {
    let disk = Disk::on(Backend::File);
    let fs = mount(&disk, "noatime,durability=commit,commit=1");
    let ino = file(&fs, ROOT, "f");
    fs.write(ino, 0, &[7; 64 * BLOCK], false).unwrap();
    until(|| fs.e.journal.stats().slots_used == 0);
    await_rest(&fs);
    disk.ends(fs);
}

/// Reads alone fill caches too, so a background thread has to look after them.
#[test]
fn use_without_a_record_ends_the_rest() {
    let disk = Disk::new();
    let fs = mount(&disk, "noatime,durability=op");
    for _ in 0..3 {
        await_rest(&fs);
        let before = fs.e.metrics.wakeups.load(Ordering::Relaxed);
        fs.getattr(ROOT).unwrap();
        until(|| fs.e.metrics.wakeups.load(Ordering::Relaxed) > before);
    }
    disk.ends(fs);
}
