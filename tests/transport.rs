//! The two ways from the kernel to the daemon, with real mounts.
//!
//! A test binary of its own: it turns the kernel's switch for FUSE over io_uring on and off, which is one for all mounts.
//! That takes Linux 6.14 and root.
//! Elsewhere these tests fail unless QUAYFS_SKIP_URING=1 says that this is known.

mod program;

use program::{Mounted, Start as _, can_mount, eventually};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch, as it was when the test is over. One test at a time.
struct Switch {
    was: String,
    _alone: MutexGuard<'static, ()>,
}

impl Switch {
    /// `None`: not to be tested here.
    fn set(on: bool) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if !can_mount() {
            return None;
        }
        if std::env::var_os("QUAYFS_SKIP_URING").is_some_and(|v| v == "1") {
            eprintln!("not tested: QUAYFS_SKIP_URING=1");
            return None;
        }
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let was = fs::read_to_string(SWITCH).unwrap_or_else(|e| {
            panic!(
                "{SWITCH}: {e}: Linux 6.14 is needed; QUAYFS_SKIP_URING=1 does without these tests"
            )
        });
        fs::write(SWITCH, if on { "Y" } else { "N" }).unwrap_or_else(|e| {
            panic!("{SWITCH}: {e}: only root may; QUAYFS_SKIP_URING=1 does without these tests")
        });
        Some(Self { was, _alone })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.was.trim());
    }
}

/// Bytes that are different in every place of every file.
fn bytes(file: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ file as u8)
        .collect()
}

/// Files of many sizes, made and read by several threads at once.
fn work(mnt: &Path) {
    thread::scope(|s| {
        for t in 0..4u64 {
            s.spawn(move || {
                let dir = mnt.join(format!("d{t}"));
                fs::create_dir(&dir).unwrap();
                for (n, len) in [0, 1, 4095, 4096, 70_000, 1 << 20, (3 << 20) + 17]
                    .into_iter()
                    .enumerate()
                {
                    let path = dir.join(format!("f{n}"));
                    fs::write(&path, bytes(t, len)).unwrap();
                    let file = fs::File::options().write(true).open(&path).unwrap();
                    file.write_all_at(b"over", 2).unwrap();
                    file.sync_all().unwrap();
                    fs::rename(&path, dir.join(format!("g{n}"))).unwrap();
                }
            });
        }
    });
}

fn check(mnt: &Path) {
    for t in 0..4u64 {
        let dir = mnt.join(format!("d{t}"));
        for (n, len) in [0, 1, 4095, 4096, 70_000, 1 << 20, (3 << 20) + 17]
            .into_iter()
            .enumerate()
        {
            let mut expected = bytes(t, len);
            expected.resize(len.max(6), 0);
            expected[2..6].copy_from_slice(b"over");
            if len < 2 {
                expected[len..2].fill(0);
            }
            assert!(
                fs::read(dir.join(format!("g{n}"))).unwrap() == expected,
                "{t}/{n}"
            );
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 7);
    }
}

#[test]
fn rings_are_used_where_the_kernel_has_them() {
    let Some(_switch) = Switch::set(true) else {
        return;
    };
    for options in [
        "transport=uring",
        "transport=auto,norestart",
        "transport=uring,open=elide",
    ] {
        let m = Mounted::new(options);
        work(&m.0.mnt());
        check(&m.0.mnt());
        let info = m.info();
        assert_eq!(info["transport"], "uring", "{options}");
        let messages = info["messages"].as_object().unwrap();
        assert!(
            messages["write"].as_u64().unwrap() >= 4 * 13,
            "{messages:?}"
        );
        // `ENOSYS` once is enough; each of the threads may have asked before it was said.
        assert!(
            messages
                .get("flush")
                .is_none_or(|n| n.as_u64().unwrap() <= 4)
        );
        m.umount();
        m.fsck();
        // What went through rings is there without them.
        m.mount("transport=dev");
        check(&m.0.mnt());
        assert_eq!(m.info()["transport"], "dev");
        m.umount();
    }
}

#[test]
fn without_the_switch_the_device_serves() {
    let Some(_switch) = Switch::set(false) else {
        return;
    };
    for (options, warns) in [
        ("transport=uring", true),
        ("transport=auto", false),
        ("transport=auto,norestart", false),
    ] {
        let m = Mounted::new(options);
        work(&m.0.mnt());
        check(&m.0.mnt());
        assert_eq!(m.info()["transport"], "dev", "{options}");
        assert_eq!(m.log().contains("enable_uring"), warns, "{}", m.log());
        m.umount();
        m.fsck();
    }
}

#[test]
fn a_killed_daemon_leaves_nobody_waiting() {
    let Some(_switch) = Switch::set(true) else {
        return;
    };
    let m = Mounted::new("transport=uring");
    let mnt = m.0.mnt();
    work(&mnt);
    // One fsync makes everything durable that was done before, whatever the medium of this machine.
    fs::File::open(&mnt).unwrap().sync_all().unwrap();
    let pid = m.info()["pid"].as_i64().unwrap().to_string();
    let written = [const { AtomicU64::new(0) }; 3];
    thread::scope(|s| {
        let writers: Vec<_> = (0u64..)
            .zip(&written)
            .map(|(t, written)| {
                let file = fs::File::create(mnt.join(format!("w{t}"))).unwrap();
                s.spawn(move || {
                    (0u64..).find_map(|n| {
                        written.store(n, Ordering::Relaxed);
                        file.write_all_at(&bytes(n, 4096), n % 64 * 4096).err()
                    })
                })
            })
            .collect();
        eventually("everybody writes", || {
            let mut all = writers.iter().zip(&written);
            all.all(|(w, n)| w.is_finished() || n.load(Ordering::Relaxed) >= 100)
        });
        assert!(
            Command::new("kill")
                .args(["-KILL", &pid])
                .finish()
                .unwrap()
                .success()
        );
        for w in writers {
            let e = w.join().unwrap().unwrap();
            // Of these, `ECANCELED` is what a request gets that is already in a ring.
            assert!(
                matches!(
                    e.raw_os_error(),
                    Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
                ),
                "{e}"
            );
        }
    });
    assert!(
        Command::new("umount")
            .args(["-i", "-l"])
            .arg(&mnt)
            .finish()
            .unwrap()
            .success()
    );
    m.mount("transport=uring");
    check(&mnt);
    m.umount();
    m.fsck();
}
