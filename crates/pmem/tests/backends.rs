//! Opening, creating, locking and reading back through every backend that a test machine has.

use quayfs_pmem::{Backend, LockKind, MapOptions, PmemError, Region};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const LEN: u64 = 64 * 4096;

/// A directory on a disk, that is not in memory, as far as the build directory is on one.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn create(dir: &Path) -> PathBuf {
    let path = dir.join("region");
    Region::create(&path, LEN, false).unwrap();
    path
}

fn read_only() -> MapOptions {
    MapOptions {
        read_only: true,
        ..MapOptions::default()
    }
}

#[test]
fn a_created_file_is_private_allocated_and_zero() {
    let dir = on_disk();
    let path = create(dir.path());
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(meta.len(), LEN);
    assert!(
        meta.blocks() * 512 >= LEN,
        "not allocated: {} blocks",
        meta.blocks()
    );
    let region = Region::open(&path, MapOptions::default()).unwrap();
    assert!(region.read_vec(0, LEN).iter().all(|b| *b == 0));
}

#[test]
fn a_sparse_file_has_no_blocks() {
    let dir = on_disk();
    let path = dir.path().join("region");
    Region::create(&path, 64 << 20, true).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 64 << 20);
    assert!(meta.blocks() * 512 < 1 << 20);
}

#[test]
fn creating_never_touches_an_existing_file() {
    let dir = on_disk();
    let path = dir.path().join("region");
    std::fs::write(&path, "precious").unwrap();
    let error = Region::create(&path, LEN, false).unwrap_err();
    assert!(
        matches!(&error, PmemError::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists)
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let dir = on_disk();
    let path = dir.path().join("region");
    assert!(matches!(
        Region::create(&path, 5000, false),
        Err(PmemError::Length { len: 5000, .. })
    ));
    assert!(matches!(
        Region::create(&path, 0, false),
        Err(PmemError::Length { len: 0, .. })
    ));
    assert!(!path.exists());
    // More than any file may have: refused by the file system after the file was made.
    assert!(matches!(
        Region::create(&path, 1 << 62, false),
        Err(PmemError::Io { .. })
    ));
    assert!(!path.exists());
}

#[test]
fn what_is_stored_is_there_when_opened_again() {
    for dir in [on_disk(), in_memory()] {
        let path = create(dir.path());
        let region = Region::open(&path, MapOptions::default()).unwrap();
        region.write(100, b"through the cache");
        region.write_nt(5000, b"past the cache");
        region.store_u64(8, 0x0123_4567_89ab_cdef);
        region.store_u32(16, 0xdead_beef);
        region.flush(0, 4096);
        region.drain().unwrap();
        drop(region);
        let file = std::fs::read(&path).unwrap();
        assert_eq!(
            file[8..16],
            [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]
        );
        let region = Region::open(&path, read_only()).unwrap();
        assert_eq!(region.read_vec(100, 17), b"through the cache");
        assert_eq!(region.read_vec(5000, 14), b"past the cache");
        assert_eq!(region.load_u64(8), 0x0123_4567_89ab_cdef);
        assert_eq!(region.load_u32(16), 0xdead_beef);
    }
}

#[test]
fn memory_file_systems_are_volatile() {
    let dir = in_memory();
    let region = Region::open(&create(dir.path()), MapOptions::default()).unwrap();
    assert_eq!(region.backend(), Backend::Volatile);
    assert_eq!(Region::anonymous(LEN).backend(), Backend::Volatile);
}

#[test]
fn a_weaker_medium_than_required_is_refused() {
    let dir = in_memory();
    let path = create(dir.path());
    for required in [Backend::Dax, Backend::File] {
        let options = MapOptions {
            read_only: false,
            require: Some(required),
            ..MapOptions::default()
        };
        let error = Region::open(&path, options).unwrap_err();
        assert!(matches!(
            error,
            PmemError::Weaker {
                found: Backend::Volatile,
                ..
            }
        ));
        let line = error.to_string();
        assert!(
            line.contains(&required.to_string()) && line.contains("volatile"),
            "{line}"
        );
    }
    let options = MapOptions {
        read_only: false,
        require: Some(Backend::Volatile),
        ..MapOptions::default()
    };
    assert!(Region::open(&path, options).is_ok());
}

#[test]
fn strength_is_a_total_order() {
    let order = [Backend::Volatile, Backend::File, Backend::Dax];
    for (i, found) in order.iter().enumerate() {
        for (j, required) in order.iter().enumerate() {
            assert_eq!(found.satisfies(*required), i >= j, "{found} for {required}");
        }
    }
}

#[test]
fn what_cannot_be_a_region_is_refused() {
    let dir = on_disk();
    let missing = dir.path().join("missing");
    assert!(matches!(
        Region::open(&missing, MapOptions::default()),
        Err(PmemError::Io { .. })
    ));
    assert!(matches!(
        Region::open(dir.path(), read_only()),
        Err(PmemError::Kind { .. })
    ));
    let null = Path::new("/dev/null");
    assert!(matches!(
        Region::open(null, MapOptions::default()),
        Err(PmemError::Kind { .. })
    ));
    let odd = dir.path().join("odd");
    for content in [&b""[..], &[0; 4095], &[0; 4097]] {
        std::fs::write(&odd, content).unwrap();
        let error = Region::open(&odd, MapOptions::default()).unwrap_err();
        assert!(matches!(error, PmemError::Length { len, .. } if len == content.len() as u64));
    }
}

#[test]
fn one_region_at_a_time_holds_the_exclusive_lock() {
    let dir = on_disk();
    let path = create(dir.path());
    let open = || Region::open(&path, read_only()).unwrap();
    let (first, second) = (open(), open());
    assert!(first.try_lock_exclusive().unwrap());
    assert!(!second.try_lock_exclusive().unwrap());
    assert!(!second.try_lock(LockKind::Shared).unwrap());
    assert!(!second.lock_exclusive(Duration::from_millis(30)).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || drop(first));
        assert!(second.lock_exclusive(Duration::MAX).unwrap());
    });
    let third = open();
    assert!(!third.try_lock(LockKind::Shared).unwrap());
}

#[test]
fn shared_locks_exclude_only_exclusive_ones() {
    let dir = in_memory();
    let path = create(dir.path());
    let open = || Region::open(&path, read_only()).unwrap();
    let (first, second, third) = (open(), open(), open());
    assert!(first.try_lock(LockKind::Shared).unwrap());
    assert!(second.try_lock(LockKind::Shared).unwrap());
    assert!(!third.try_lock_exclusive().unwrap());
    drop((first, second));
    assert!(third.try_lock_exclusive().unwrap());
}

#[test]
fn prefaulting_reaches_the_end_and_changes_nothing() {
    for dir in [on_disk(), in_memory()] {
        let path = dir.path().join("region");
        Region::create(&path, 9 << 20, true).unwrap();
        let region = Region::open(&path, MapOptions::default()).unwrap();
        region.write(4096, b"content");
        assert!(!region.is_contiguous(), "nobody has looked");
        assert_eq!(region.prefault(&AtomicBool::new(false)), 9 << 20);
        // In memory it is for the kernel to say.
        assert!(!region.is_contiguous() || region.backend() == Backend::Volatile);
        assert_eq!(region.read_vec(4096, 7), b"content");
        assert_eq!(region.prefault(&AtomicBool::new(true)), 0);
        drop(region);
        let region = Region::open(&path, read_only()).unwrap();
        assert_eq!(region.prefault(&AtomicBool::new(false)), 9 << 20);
    }
}

#[test]
#[should_panic(expected = "store to a read-only region")]
fn a_read_only_region_takes_no_store() {
    let dir = in_memory();
    let region = Region::open(&create(dir.path()), read_only()).unwrap();
    assert!(region.is_read_only());
    region.store_u64(0, 1);
}
