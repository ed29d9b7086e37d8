//! The daemon is killed at random moments while writers work; after each mount everything that
//! was acknowledged is there, nothing else is, and the checker finds nothing.
//!
//! A writer owns a directory. It appends one line per acknowledged operation to a ledger outside
//! of the mount, and what a file holds follows from its name, so that the ledger is all it takes
//! to check a tree.
//!
//! A test binary of its own: the programs of `tests/apps/kills` unmount without the lock of `program::namespace`, which
//! they cannot have.

mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use program::{Start as _, quayfs};

const WRITERS: u64 = 2;

/// Small and fast; the seed is printed with every failure.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What the file of this name holds, `n` bytes of it.
fn content(name: &str, n: usize) -> Vec<u8> {
    let mut rng = Rng(name.bytes().fold(0x9e37_79b9_7f4a_7c15, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3) | 1
    }));
    let mut out = Vec::with_capacity(n + 8);
    while out.len() < n {
        out.extend_from_slice(&rng.next().to_le_bytes());
    }
    out.truncate(n);
    out
}

/// Where everything of one test is.
struct Place {
    _dir: tempfile::TempDir,
    vol: PathBuf,
    mnt: PathBuf,
    ledgers: PathBuf,
    sync: bool,
}

impl Place {
    /// A volume whose region is on `medium`, a directory. `sync`: operations are acknowledged
    /// when `fsync` has returned.
    fn new(medium: &str, sync: bool) -> Self {
        let dir = tempfile::tempdir_in(medium).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Self {
            vol: at("vol"),
            mnt: at("mnt"),
            ledgers: at("ledgers"),
            sync,
            _dir: dir,
        };
        fs::create_dir(&place.mnt).unwrap();
        fs::create_dir(&place.ledgers).unwrap();
        let vol = place.vol.to_str().unwrap();
        // Little staging: digest and rounds run all the time.
        quayfs([
            "mkfs",
            vol,
            "--pmem-size",
            "24M",
            "--data-size",
            "256M",
            "--sparse",
        ])
        .ok();
        place
    }

    fn mount(&self) -> u32 {
        self.mount_with("rw")
    }

    fn mount_with(&self, options: &str) -> u32 {
        let (vol, mnt) = (self.vol.to_str().unwrap(), self.mnt.to_str().unwrap());
        quayfs(["mount", vol, mnt, "-o", options, "-o", "norestart"]).ok();
        let status = quayfs(["info", mnt, "--json"]).ok();
        let json: serde_json::Value = serde_json::from_str(&status).unwrap();
        u32::try_from(json["pid"].as_u64().unwrap()).unwrap()
    }

    fn fsck(&self) {
        let run = quayfs(["fsck", self.vol.to_str().unwrap()]);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    }
}

fn kill(pid: u32, mnt: &Path) {
    assert!(
        Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .finish()
            .unwrap()
            .success()
    );
    program::eventually("the daemon is gone", || {
        !Path::new("/proc").join(pid.to_string()).exists()
    });
    assert!(
        Command::new("umount")
            .arg("-l")
            .arg(mnt)
            .finish()
            .unwrap()
            .success()
    );
}

/// One writer: operates until the mount is gone.
fn write_until_death(place: &Place, id: u64, round: u64, (stop, done): (&AtomicBool, &AtomicU64)) {
    let dir = place.mnt.join(format!("w{id}"));
    let mut ledger = OpenOptions::new()
        .create(true)
        .append(true)
        .open(place.ledgers.join(id.to_string()))
        .unwrap();
    let mut rng = Rng((id + 1) * 7919 + round * 104_729);
    let mut n = 0;
    let mut work = || -> io::Result<()> {
        fs::create_dir_all(&dir)?;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            step(place, &dir, &mut rng, &format!("r{round}-{n}"), &mut ledger)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    // The error is the death of the daemon.
    let _ = work();
}

fn settle(place: &Place, file: &File, dir: &Path) -> io::Result<()> {
    if place.sync {
        file.sync_all()?;
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn step(place: &Place, dir: &Path, rng: &mut Rng, name: &str, ledger: &mut File) -> io::Result<()> {
    let path = dir.join(name);
    match rng.below(10) {
        0..5 => {
            let sizes = [0, 10, 4096, 5000, 70_000, 600_000];
            let n = sizes[rng.below(6) as usize];
            let mut f = File::create_new(&path)?;
            f.write_all(&content(name, n))?;
            settle(place, &f, dir)?;
            writeln!(ledger, "file {name} {n}")
        }
        5..7 => {
            let mut f = OpenOptions::new()
                .create(true)
                .append(true)
                .open(dir.join("log"))?;
            f.write_all(format!("{name}\n").as_bytes())?;
            settle(place, &f, dir)?;
            writeln!(ledger, "log {name}")
        }
        7..8 => {
            let f = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(dir.join("table"))?;
            let slot = rng.below(64);
            // The announced value may be there or not; the acknowledged one must be, unless a
            // later one was announced.
            writeln!(ledger, "slot? {slot} {name}")?;
            f.write_all_at(&content(name, 4096), slot * 4096)?;
            settle(place, &f, dir)?;
            writeln!(ledger, "slot {slot} {name}")
        }
        8..9 => {
            let temporary = dir.join("temporary");
            let mut f = File::create(&temporary)?;
            f.write_all(&content(name, 3000))?;
            settle(place, &f, dir)?;
            writeln!(ledger, "current? {name}")?;
            fs::rename(&temporary, dir.join("current"))?;
            settle(place, &f, dir)?;
            writeln!(ledger, "current {name}")
        }
        _ => {
            let Some(victim) = fs::read_dir(dir)?
                .filter_map(|e| e.ok()?.file_name().into_string().ok())
                .find(|n| n.starts_with('r'))
            else {
                return Ok(());
            };
            writeln!(ledger, "gone? {victim}")?;
            fs::remove_file(dir.join(&victim))?;
            settle(place, &File::open(dir)?, dir)?;
            writeln!(ledger, "gone {victim}")
        }
    }
}

/// What a ledger says: acknowledged state, and what may be there besides.
#[derive(Default)]
struct Expected {
    files: BTreeMap<String, usize>,
    maybe_gone: BTreeSet<String>,
    gone: BTreeSet<String>,
    log: Vec<String>,
    slots: BTreeMap<u64, (Option<String>, Vec<String>)>,
    current: (Option<String>, Vec<String>),
}

impl Expected {
    fn read(ledger: &Path) -> Self {
        let mut x = Self::default();
        for line in fs::read_to_string(ledger).unwrap_or_default().lines() {
            let w: Vec<&str> = line.split(' ').collect();
            match w[..] {
                ["file", name, n] => {
                    x.files.insert(name.into(), n.parse().unwrap());
                }
                ["log", name] => x.log.push(name.into()),
                ["slot?", slot, name] => {
                    x.slots
                        .entry(slot.parse().unwrap())
                        .or_default()
                        .1
                        .push(name.into());
                }
                ["slot", slot, name] => {
                    x.slots
                        .insert(slot.parse().unwrap(), (Some(name.into()), Vec::new()));
                }
                ["current?", name] => x.current.1.push(name.into()),
                ["current", name] => x.current = (Some(name.into()), Vec::new()),
                ["gone?", name] => {
                    x.maybe_gone.insert(name.into());
                }
                ["gone", name] => {
                    x.files.remove(name);
                    x.gone.insert(name.into());
                }
                _ => panic!("ledger line {line:?}"),
            }
        }
        x
    }

    fn check(&self, dir: &Path, context: &str) {
        for (name, n) in &self.files {
            match fs::read(dir.join(name)) {
                Ok(bytes) => assert!(bytes == content(name, *n), "{context}: {name} is different"),
                Err(_) => assert!(self.maybe_gone.contains(name), "{context}: {name} is lost"),
            }
        }
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        let lines: BTreeSet<&str> = log.lines().collect();
        for name in &self.log {
            assert!(
                lines.contains(name.as_str()),
                "{context}: {name} is not in the log"
            );
        }
        self.check_slots(dir, context);
        self.check_current(dir, context);
        self.check_for_strangers(dir, context);
    }

    fn check_slots(&self, dir: &Path, context: &str) {
        let Ok(table) = File::open(dir.join("table")) else {
            assert!(
                self.slots.values().all(|s| s.0.is_none()),
                "{context}: the table is lost"
            );
            return;
        };
        for (slot, (sure, maybe)) in &self.slots {
            let mut bytes = vec![0; 4096];
            let n = table.read_at(&mut bytes, slot * 4096).unwrap();
            bytes.truncate(n);
            let possible = sure
                .iter()
                .chain(maybe)
                .any(|name| bytes == content(name, 4096));
            let untouched = sure.is_none() && bytes.iter().all(|b| *b == 0);
            assert!(
                possible || untouched,
                "{context}: slot {slot} holds none of its values"
            );
        }
    }

    fn check_current(&self, dir: &Path, context: &str) {
        let (sure, maybe) = &self.current;
        match fs::read(dir.join("current")) {
            Ok(bytes) => assert!(
                sure.iter()
                    .chain(maybe)
                    .any(|name| bytes == content(name, 3000)),
                "{context}: `current` holds {} strange bytes",
                bytes.len()
            ),
            Err(_) => assert!(sure.is_none(), "{context}: `current` is lost"),
        }
    }

    /// Files that were not acknowledged may be there, cut short, but never with foreign bytes.
    fn check_for_strangers(&self, dir: &Path, context: &str) {
        let Ok(list) = fs::read_dir(dir) else { return };
        for e in list {
            let name = e.unwrap().file_name().into_string().unwrap();
            assert!(!self.gone.contains(&name), "{context}: {name} is back");
            if name.starts_with('r') && !self.files.contains_key(&name) {
                let mut bytes = Vec::new();
                File::open(dir.join(&name))
                    .unwrap()
                    .read_to_end(&mut bytes)
                    .unwrap();
                assert!(
                    bytes == content(&name, bytes.len()),
                    "{context}: foreign bytes in {name}"
                );
            }
        }
    }
}

fn rounds(place: &Place, count: u64) {
    let mut rng = Rng(0x5eed);
    for round in 0..=count {
        let pid = place.mount();
        for id in 0..WRITERS {
            let expected = Expected::read(&place.ledgers.join(id.to_string()));
            expected.check(
                &place.mnt.join(format!("w{id}")),
                &format!("round {round}, writer {id}"),
            );
        }
        if round == count {
            quayfs(["umount", place.mnt.to_str().unwrap()]).ok();
            place.fsck();
            return;
        }
        if round % 8 == 7 {
            for id in 0..WRITERS {
                let _ = fs::remove_dir_all(place.mnt.join(format!("w{id}")));
                let _ = fs::remove_file(place.ledgers.join(id.to_string()));
            }
        }
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            let (stop, done) = (&stop, &done);
            let write = |id| move || write_until_death(place, id, round, (stop, done));
            let writers: Vec<_> = (0..WRITERS).map(|id| s.spawn(write(id))).collect();
            program::eventually("something is acknowledged", || {
                done.load(Ordering::Relaxed) > 0 || writers.iter().all(|w| w.is_finished())
            });
            std::thread::sleep(Duration::from_millis(30 + rng.below(500)));
            kill(pid, &place.mnt);
            stop.store(true, Ordering::Relaxed);
        });
        place.fsck();
    }
}

/// How many rounds: `QUAYFS_KILL_ROUNDS`, else a few.
fn wanted(default: u64) -> u64 {
    std::env::var("QUAYFS_KILL_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// What the kernel has collected and cannot deliver any more is not acknowledged, in no mode.
#[test]
fn fsync_fails_after_the_death_of_the_daemon() {
    if !program::can_mount() {
        return;
    }
    for options in ["durability=op,writeback", "durability=commit,writeback"] {
        let place = Place::new("/dev/shm", false);
        let pid = place.mount_with(options);
        let mut f = File::create(place.mnt.join("f")).unwrap();
        f.write_all(b"before").unwrap();
        // The kernel would remember if this were answered with ENOSYS.
        f.sync_all().unwrap();
        f.write_all(b"after").unwrap();
        kill(pid, &place.mnt);
        assert!(f.sync_all().is_err(), "{options}");
    }
}

/// A short run of `tests/apps/kills`: five programs, each on a volume that dies eight times.
#[test]
fn programs_lose_nothing() {
    if !program::can_mount() {
        return;
    }
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/kills");
    let run = Command::new("python3")
        .arg(rig)
        .args(["--rounds", "40", "--quayfs", program::QUAYFS])
        .capture()
        .expect("python3 runs: `make deps` installs it");
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

#[test]
fn nothing_acknowledged_is_lost_on_memory() {
    if program::can_mount() {
        rounds(&Place::new("/dev/shm", false), wanted(12));
    }
}

#[test]
fn nothing_synced_is_lost_on_a_file() {
    if program::can_mount() {
        rounds(&Place::new("/var/tmp", true), wanted(8));
    }
}
