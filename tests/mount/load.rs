//! Programs that work on a mount while something is done to it.

use crate::program::Mounted;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Tells programs to stop when it goes, also with a test that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something while two threads work, each by its number, until the word is true.
pub fn beside<T>(work: impl Fn(usize, &AtomicBool) + Sync, what: impl FnOnce() -> T) -> T {
    let (stop, work) = (AtomicBool::new(false), &work);
    thread::scope(|scope| {
        for n in 0..2 {
            let stop = &stop;
            scope.spawn(move || work(n, stop));
        }
        let _stop = Stop(&stop);
        what()
    })
}

/// Does something while programs append, create, rename and remove files on a mount. Each of their calls is carried out
/// once, or this panics.
pub fn under_load<T>(m: &Mounted, what: impl FnOnce() -> T) -> T {
    beside(
        |n, stop| work(&m.mnt().join(format!("work{n}")), stop),
        what,
    )
}

fn work(root: &Path, stop: &AtomicBool) {
    fs::create_dir(root).unwrap();
    let mut log = File::options()
        .append(true)
        .create_new(true)
        .open(root.join("log"))
        .unwrap();
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        log.write_all(format!("{n:08}").as_bytes()).unwrap();
        let (name, other) = (root.join(format!("file{n}")), root.join("other"));
        let content = quayfs_oracle::rng::bytes(n % 7, 300_000);
        File::create_new(&name)
            .and_then(|mut file| file.write_all(&content))
            .unwrap();
        fs::rename(&name, &other).unwrap();
        assert!(fs::read(&other).unwrap() == content);
        fs::remove_file(other).unwrap();
        n += 1;
    }
    let expected: String = (0..n).map(|n| format!("{n:08}")).collect();
    assert!(fs::read_to_string(root.join("log")).unwrap() == expected);
    fs::remove_dir_all(root).unwrap();
}
