//! What a process says when a page of its region cannot be had. It ends, so another one has to do it.

use quayfs_pmem::{Ending, MapOptions, PmemError, Region, exit_on_fault};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output};

const LEN: u64 = 64 * 4096;

/// The other process: this test again, with something to do.
#[test]
fn somebody_else() {
    let Some(path) = std::env::var_os("QUAYFS_FAULT") else {
        return;
    };
    let path = Path::new(&path);
    let answer = std::env::var("QUAYFS_ANSWER").ok().map(|_| "failed 32 ");
    // Before it is armed and after: both kinds of regions are known.
    let other = Region::anonymous(LEN);
    let log = std::env::var("QUAYFS_LOGGED").ok();
    let log = log.map(|path| File::options().append(true).open(path).unwrap());
    let ending = Ending {
        code: 32,
        log: log.as_ref().map(AsRawFd::as_raw_fd),
        dated: log.is_some(),
        answer,
    };
    exit_on_fault(ending).unwrap();
    let region = Region::open(path, MapOptions::default()).unwrap();
    drop(other);
    region.write(LEN - 8, &[7; 8]);
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(LEN / 2).unwrap();
    std::thread::scope(|scope| {
        // In several threads, none of which may end it before one has spoken.
        for n in 0..4 {
            let region = &region;
            scope.spawn(move || region.store_u64(LEN - 8 * (n + 1), n));
        }
    });
    panic!("all stores have gone somewhere");
}

fn run(path: &Path, log: Option<&Path>, answer: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "somebody_else",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("QUAYFS_FAULT", path);
    if let Some(log) = log {
        command.env("QUAYFS_LOGGED", log);
    }
    if answer {
        command.env("QUAYFS_ANSWER", "1");
    }
    command.output().unwrap()
}

#[test]
fn a_file_that_was_cut_ends_the_process_with_a_line() {
    for place in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("re\ngion");
        for answer in [false, true] {
            Region::create(&path, LEN, false).unwrap();
            let output = run(&path, None, answer);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.code(), Some(32), "{out}{err}");
            let line = err.lines().last().unwrap_or_default();
            assert!(
                line.starts_with("quayfs: ") && line.contains("/re?gion: "),
                "{err}"
            );
            assert!(line.contains("cut short while it was in use"), "{err}");
            let told = out
                .lines()
                .any(|l| l.contains("failed 32 ") && l.contains("cut short"));
            assert_eq!(told, answer, "{out}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn the_line_goes_to_a_log_if_there_is_one() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, log) = (dir.path().join("region"), dir.path().join("log"));
    Region::create(&path, LEN, false).unwrap();
    std::fs::write(&log, "before\n").unwrap();
    let output = run(&path, Some(&log), false);
    assert_eq!(output.status.code(), Some(32), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("cut short"));
    let text = std::fs::read_to_string(&log).unwrap();
    let (before, line) = text.split_once('\n').unwrap();
    let (time, message) = line.split_once(" ERROR ").unwrap();
    assert!(time.starts_with("20") && time.len() == 27, "{text}");
    assert!(message.starts_with('/'), "{text}");
    assert!(
        before == "before" && line.contains("/region: ") && line.ends_with('\n'),
        "{text}"
    );
}

/// What is read by system calls says so.
#[test]
fn what_is_only_read_fails_instead() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    Region::create(&path, LEN, false).unwrap();
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    let region = Region::open(&path, options).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(LEN / 2).unwrap();
    assert!(matches!(
        region.load(),
        Err(PmemError::Cut { have, len: LEN, .. }) if have == LEN / 2
    ));
    assert!(matches!(
        region.peek(LEN / 2, 4096),
        Err(PmemError::Cut { .. })
    ));
    assert_eq!(region.peek(4096, 4096).unwrap(), [0; 4096]);
}

/// Nor does it fill holes, as a load does in a file system in memory.
#[test]
fn what_is_only_read_allocates_nothing() {
    for place in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("region");
        let len = 32 << 20;
        Region::create(&path, len, true).unwrap();
        let region = Region::open(&path, MapOptions::default()).unwrap();
        region.write(5 << 20, &[7; 5000]);
        region.drain().unwrap();
        let blocks = || {
            use std::os::unix::fs::MetadataExt;
            region.metadata().unwrap().unwrap().blocks() * 512
        };
        let before = blocks();
        let copy = region.load().unwrap();
        assert_eq!((copy.len(), copy.backend()), (len, region.backend()));
        assert_eq!(blocks(), before);
        assert_eq!(copy.read_vec(5 << 20, 5001)[..5000], [7; 5000]);
        let zeros = copy.read_vec(0, 5 << 20);
        assert!(zeros.iter().all(|b| *b == 0));
        // And all of it on demand, with what is there as it is.
        region.allocate(0, len).unwrap();
        assert!(blocks() >= len, "{}", blocks());
        assert_eq!(region.read_vec(5 << 20, 5000), [7; 5000]);
    }
}
