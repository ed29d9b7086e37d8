//! Limits that programs run into on a mount.
//!
//! Needs `/dev/fuse`.

use crate::program;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use program::{Mounted, Scene, can_mount};
use rustix::fs::Dir;

/// Names that stay.
const STAY: usize = 20_000;

/// Reads the next name that stays; the offset behind it.
fn next(dir: &mut Dir) -> Option<(String, i64)> {
    loop {
        let entry = dir.read()?.unwrap();
        let name = entry.file_name().to_str().unwrap();
        if name.starts_with("stays") {
            return Some((name.into(), entry.offset()));
        }
    }
}

/// Makes and removes names around those that stay, until it is told to end.
fn churn(dir: &Path, end: &AtomicBool, times: &AtomicUsize) {
    while !end.load(Ordering::Relaxed) {
        let made = times.load(Ordering::Relaxed);
        for i in 0..500 {
            fs::hard_link(dir.join("stays-0"), dir.join(format!("{made}-{i}"))).unwrap();
        }
        for i in 0..500 {
            fs::remove_file(dir.join(format!("{made}-{i}"))).unwrap();
        }
        times.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the other thread, whatever becomes of this one.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An offset of a large directory means the same place, whatever others make and remove.
#[test]
fn places_in_a_large_directory() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "noatime");
    let path = m.mnt().join("dir");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("stays-0"), b"").unwrap();
    for i in 1..STAY {
        fs::hard_link(path.join("stays-0"), path.join(format!("stays-{i}"))).unwrap();
    }
    let (end, times) = (AtomicBool::new(false), AtomicUsize::new(0));
    let open = || Dir::new(OwnedFd::from(File::open(&path).unwrap())).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| churn(&path, &end, &times));
        let ends = Ends(&end);
        let mut dir = open();
        let mut order = Vec::with_capacity(STAY);
        while let Some(entry) = next(&mut dir) {
            order.push(entry);
        }
        let seen: BTreeMap<_, _> = order.iter().cloned().collect();
        assert_eq!((order.len(), seen.len()), (STAY, STAY), "each once");
        // Forwards and back, in the same open directory and in another.
        let mut another = open();
        let churned = || other.is_finished() || times.load(Ordering::Relaxed) >= 2;
        let enough = |step: &usize| *step >= STAY - 3 && churned();
        for step in (0..).step_by(211).take_while(|step| !enough(step)) {
            let at = step * 7919 % (STAY - 3);
            for dir in [&mut dir, &mut another] {
                dir.seek(order[at].1).unwrap();
                for (name, _) in &order[at + 1..at + 4] {
                    let found = next(dir).map(|(name, _)| name);
                    assert_eq!(found.as_ref(), Some(name), "after {:?}", order[at]);
                }
            }
        }
        drop(ends);
        other.join().unwrap();
    });
    // Another daemon knows the places as well.
    let order = {
        let mut dir = open();
        std::iter::from_fn(|| next(&mut dir)).collect::<Vec<_>>()
    };
    m.umount();
    m.mount("noatime");
    let mut dir = open();
    for at in [STAY / 3, STAY - 2, 0] {
        dir.seek(order[at].1).unwrap();
        assert_eq!(next(&mut dir).as_ref(), order.get(at + 1));
    }
    drop(dir);
    m.umount();
    m.fsck();
}
