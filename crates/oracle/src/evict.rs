//! Eviction of what is cached, far more often than a real mount does it.

use std::sync::atomic::{AtomicBool, Ordering};

use quayfs_fs::Fs;

/// Drops every inode and page from DRAM whose last record is digested.
pub fn evict(fs: &Fs) {
    let digested = fs.e.journal.digested();
    for window in fs.e.inodes.evict(digested, 0) {
        fs.e.return_window(window);
    }
    fs.e.nodes.evict(digested, 0);
}

/// Runs `work` while another thread keeps dropping from DRAM what can be read again.
pub fn while_evicting<T>(fs: &Fs, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let evictor = s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.e.kick(true, false);
                (0..50).for_each(|_| evict(fs));
            }
        });
        let stopper = Stopper(&stop);
        let out = work();
        drop(stopper);
        evictor.join().expect("evictor");
        out
    })
}

/// Says stop also when the work has failed.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
