//! The bindings against the library itself.

use super::*;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const LEN: usize = 3 * 4096;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Creates and maps a file of `LEN` bytes, and whether it is persistent memory.
fn map(path: &Path, flags: c_int) -> (*mut u8, usize, c_int) {
    let (mut len, mut is_pmem) = (0, -1);
    // SAFETY: the path is a C string and the results are live.
    let base = unsafe {
        pmem_map_file(
            c_path(path).as_ptr(),
            LEN,
            flags,
            0o600,
            &mut len,
            &mut is_pmem,
        )
    };
    (base.cast(), len, is_pmem)
}

#[test]
fn a_mapped_file_gets_what_is_copied_flushed_and_synchronized() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let (base, len, is_pmem) = map(&path, PMEM_FILE_CREATE | PMEM_FILE_EXCL);
    assert!(!base.is_null(), "{}", errormsg());
    assert_eq!(len, LEN);
    let all = [
        PMEM_F_MEM_NONTEMPORAL,
        PMEM_F_MEM_NONTEMPORAL | PMEM_F_MEM_NODRAIN,
        PMEM_F_MEM_TEMPORAL,
        PMEM_F_MEM_NOFLUSH,
        0,
    ];
    let mut expected = vec![0; LEN];
    // SAFETY: all ranges are inside the mapping, which is unmapped at the end and not used after.
    unsafe {
        assert_eq!(pmem_is_pmem(base.cast(), LEN), is_pmem);
        for (i, flags) in all.into_iter().enumerate() {
            let bytes = [i as u8 + 1; 1000];
            let dest = base.add(i * 1001 + 3);
            let returned = pmem_memcpy(dest.cast(), bytes.as_ptr().cast(), 1000, flags);
            assert_eq!(returned, dest.cast());
            expected[i * 1001 + 3..][..1000].copy_from_slice(&bytes);
        }
        pmem_flush(base.cast(), LEN);
        pmem_drain();
        pmem_persist(base.cast(), LEN);
        assert_eq!(pmem_msync(base.cast(), LEN), 0, "{}", errormsg());
        assert_eq!(pmem_unmap(base.cast(), LEN), 0, "{}", errormsg());
    }
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn flags_have_their_documented_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    assert!(
        map(&path, 0).0.is_null(),
        "nothing to map without PMEM_FILE_CREATE"
    );
    assert!(!errormsg().is_empty());
    let (base, len, _) = map(&path, PMEM_FILE_CREATE | PMEM_FILE_SPARSE);
    assert!(!base.is_null(), "{}", errormsg());
    // SAFETY: mapped above and not used after.
    assert_eq!(unsafe { pmem_unmap(base.cast(), len) }, 0);
    assert!(
        map(&path, PMEM_FILE_CREATE | PMEM_FILE_EXCL).0.is_null(),
        "the file exists"
    );
    let (base, len, _) = map(dir.path(), PMEM_FILE_CREATE | PMEM_FILE_TMPFILE);
    assert!(!base.is_null(), "{}", errormsg());
    // SAFETY: mapped above and not used after.
    assert_eq!(unsafe { pmem_unmap(base.cast(), len) }, 0);
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "the temporary one has no name"
    );
}

#[test]
fn automatic_flushing_is_known_or_not() {
    assert!((-1..=1).contains(&pmem_has_auto_flush()));
}
