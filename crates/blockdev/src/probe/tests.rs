use super::*;

/// A device with `bytes` at `off` and zeros elsewhere.
fn with(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut head = vec![0; HEAD];
    for (off, bytes) in parts {
        head[*off..off + bytes.len()].copy_from_slice(bytes);
    }
    head
}

#[test]
fn nothing_is_nothing() {
    assert_eq!(recognize(&[]), None);
    assert_eq!(recognize(&vec![0; HEAD]), None);
    assert_eq!(recognize(&vec![0xff; HEAD]), None);
}

#[test]
fn every_fixed_signature_is_recognized_at_its_place_only() {
    for (name, off, magic) in FIXED {
        assert_eq!(recognize(&with(&[(*off, magic)])), Some(*name));
        assert_eq!(
            recognize(&with(&[(off + 1, magic)])),
            None,
            "{name} one byte off"
        );
        let cut = &with(&[(*off, magic)])[..off + magic.len() - 1];
        assert_eq!(recognize(cut), None, "{name} cut off");
    }
}

#[test]
fn generations_of_ext_are_told_apart() {
    let ext = |compat: u32, incompat: u32, ro: u32| {
        recognize(&with(&[
            (1024 + 56, b"\x53\xef"),
            (1024 + 92, &compat.to_le_bytes()),
            (1024 + 96, &incompat.to_le_bytes()),
            (1024 + 100, &ro.to_le_bytes()),
        ]))
    };
    assert_eq!(ext(0x38, 0x2, 0x3), Some("ext2"));
    assert_eq!(ext(0x3c, 0x2, 0x3), Some("ext3"));
    assert_eq!(ext(0x3c, 0x6, 0x3), Some("ext3"), "in need of recovery");
    assert_eq!(ext(0x3c, 0x2c2, 0x46b), Some("ext4"));
    assert_eq!(ext(0x38, 0x2c2, 0x46b), Some("ext4"), "without a journal");
}

#[test]
fn swap_is_found_for_every_page_size() {
    for page in [4096, 8192, 16384, 65536] {
        assert_eq!(
            recognize(&with(&[(page - 10, b"SWAPSPACE2")])),
            Some("swap")
        );
        assert_eq!(
            recognize(&with(&[(page - 10, b"SWAP-SPACE")])),
            Some("swap")
        );
    }
}

#[test]
fn lvm_needs_label_and_type_in_one_of_four_sectors() {
    for sector in 0..5 {
        let both = [
            (sector * 512, &b"LABELONE"[..]),
            (sector * 512 + 24, b"LVM2 001"),
        ];
        let expected = (sector < 4).then_some("LVM physical volume");
        assert_eq!(recognize(&with(&both)), expected);
        assert_eq!(recognize(&with(&both[..1])), None);
    }
}

#[test]
fn zfs_is_found_in_either_byte_order() {
    for k in [128, 129, 255] {
        assert_eq!(
            recognize(&with(&[(k << 10, b"\x0c\xb1\xba\0\0\0\0\0")])),
            Some("zfs")
        );
        assert_eq!(
            recognize(&with(&[(k << 10, b"\0\0\0\0\0\xba\xb1\x0c")])),
            Some("zfs")
        );
    }
}

#[test]
fn boot_sectors_are_told_apart() {
    let end = (510, &b"\x55\xaa"[..]);
    assert_eq!(recognize(&with(&[end])), Some("boot sector"));
    assert_eq!(recognize(&with(&[end, (54, b"FAT16   ")])), Some("vfat"));
    assert_eq!(recognize(&with(&[end, (82, b"FAT32   ")])), Some("vfat"));
    assert_eq!(recognize(&with(&[end, (3, b"NTFS    ")])), Some("ntfs"));
    let entry = |first: u8| [first, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];
    assert_eq!(
        recognize(&with(&[end, (446, &entry(0))])),
        Some("mbr partition table")
    );
    assert_eq!(
        recognize(&with(&[end, (462, &entry(0x80))])),
        Some("mbr partition table")
    );
    assert_eq!(
        recognize(&with(&[end, (446, &entry(7))])),
        Some("boot sector")
    );
    let protective = [end, (446, &entry(0)[..]), (512, b"EFI PART")];
    assert_eq!(recognize(&with(&protective)), Some("gpt partition table"));
}

#[test]
fn files_shorter_than_a_signature_are_read_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    std::fs::write(&path, b"XFSB").unwrap();
    assert_eq!(probe_signature(&path).unwrap(), Some("xfs"));
    std::fs::write(&path, b"").unwrap();
    assert_eq!(probe_signature(&path).unwrap(), None);
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn what_cannot_be_probed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(probe_signature(&dir.path().join("missing")).is_err());
    assert!(probe_signature(dir.path()).is_err());
    assert!(probe_signature(Path::new("/dev/zero")).is_err());
}
