//! Recognizing what is already on a device, so that it is not destroyed by mistake.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use quayfs_transfer::open_medium;

/// How much of the start is looked at: the four labels of zfs need the most.
const HEAD: usize = 256 << 10;

/// The name of a file system, partition table or volume that is on a regular file or block device;
/// `None` if nothing known is. Nothing is written.
///
/// # Errors
/// If it cannot be read.
pub fn probe_signature(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(recognize(&read_head(path)?))
}

fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let opened = open_medium(path, OpenOptions::new().read(true))?;
    let file = opened.filter(|file| {
        let kind = file.metadata().map(|meta| meta.file_type());
        kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device())
    });
    let file = file.ok_or_else(|| {
        let message = "not a regular file or block device";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    let mut head = vec![0; HEAD];
    let mut len = 0;
    while len < HEAD {
        match file.read_at(&mut head[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    head.truncate(len);
    Ok(head)
}

/// [`probe_signature`] of what is there besides the region of a volume, whose two tables are not looked at. The data device of
/// another volume is something else.
///
/// # Errors
/// The same.
pub fn probe_other(path: &Path) -> io::Result<Option<&'static str>> {
    let mut head = read_head(path)?;
    for off in [0, 4096] {
        if has(&head, off, b"QUAYFSPM") {
            head[off..off + 8].fill(0);
        }
    }
    Ok(recognize(&head))
}

/// Whether `magic` is at `off`.
fn has(head: &[u8], off: usize, magic: &[u8]) -> bool {
    head.get(off..off + magic.len()) == Some(magic)
}

/// Signatures that are told by bytes at a fixed place, in the order in which they are believed.
const FIXED: &[(&str, usize, &[u8])] = &[
    ("quayfs volume", 0, b"QUAYFSPM"),
    ("quayfs data device", 0, b"QUAYFSDD"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("xfs", 0, b"XFSB"),
    ("squashfs", 0, b"hsqs"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("f2fs", 1024, &0xf2f5_2010_u32.to_le_bytes()),
    ("erofs", 1024, &0xe0f5_e1e2_u32.to_le_bytes()),
    (
        "bcache",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf8\x7f\x48\xba\x6d\x81",
    ),
    (
        "bcachefs",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("linux raid", 0, &0xa92b_4efc_u32.to_le_bytes()),
    ("linux raid", 4096, &0xa92b_4efc_u32.to_le_bytes()),
    ("iso9660", 32769, b"CD001"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("gpt partition table", 512, b"EFI PART"),
    ("gpt partition table", 4096, b"EFI PART"),
];

fn recognize(head: &[u8]) -> Option<&'static str> {
    let fixed = || {
        FIXED
            .iter()
            .find(|(_, off, magic)| has(head, *off, magic))
            .map(|f| f.0)
    };
    fixed()
        .or_else(|| ext(head))
        .or_else(|| swap(head))
        .or_else(|| lvm(head))
        .or_else(|| zfs(head))
        .or_else(|| boot_sector(head))
        // The second table is as good as the first one.
        .or_else(|| has(head, 4096, b"QUAYFSPM").then_some("quayfs volume"))
}

/// ext2, ext3 and ext4 share a magic number and differ by features.
fn ext(head: &[u8]) -> Option<&'static str> {
    const SUPER: usize = 1024;
    const HAS_JOURNAL: u32 = 0x4;
    /// Extents, 64 bit, flexible groups and later ones.
    const EXT4_INCOMPAT: u32 = !0x1f;
    const EXT4_RO_COMPAT: u32 = !0x7;
    if !has(head, SUPER + 56, &0xef53_u16.to_le_bytes()) {
        return None;
    }
    let word = |off: usize| {
        let bytes = head.get(SUPER + off..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let (compat, incompat, ro_compat) = (word(92)?, word(96)?, word(100)?);
    Some(
        if incompat & EXT4_INCOMPAT != 0 || ro_compat & EXT4_RO_COMPAT != 0 {
            "ext4"
        } else if compat & HAS_JOURNAL != 0 {
            "ext3"
        } else {
            "ext2"
        },
    )
}

/// The swap signature ends the first page, whose size depends on the machine.
fn swap(head: &[u8]) -> Option<&'static str> {
    let ends = [4096, 8192, 16384, 65536];
    let found = ends
        .iter()
        .any(|page| has(head, page - 10, b"SWAPSPACE2") || has(head, page - 10, b"SWAP-SPACE"));
    found.then_some("swap")
}

/// The label of a physical volume is in one of the first four sectors.
fn lvm(head: &[u8]) -> Option<&'static str> {
    let label = |sector: usize| has(head, sector * 512, b"LABELONE");
    let kind = |sector: usize| has(head, sector * 512 + 24, b"LVM2 001");
    (0..4)
        .any(|sector| label(sector) && kind(sector))
        .then_some("LVM physical volume")
}

/// Uberblocks follow in steps of 1 KiB from 128 KiB on, in the byte order of the writer.
fn zfs(head: &[u8]) -> Option<&'static str> {
    const MAGIC: u64 = 0x00ba_b10c;
    let found = (128..256).any(|k| {
        has(head, k * 1024, &MAGIC.to_le_bytes()) || has(head, k * 1024, &MAGIC.to_be_bytes())
    });
    found.then_some("zfs")
}

/// FAT file systems and partition tables both end their first sector with 55 AA.
fn boot_sector(head: &[u8]) -> Option<&'static str> {
    if !has(head, 510, b"\x55\xaa") {
        return None;
    }
    let fat = [
        (54, &b"FAT12   "[..]),
        (54, b"FAT16   "),
        (54, b"FAT     "),
        (82, b"FAT32   "),
    ];
    if fat.iter().any(|(off, magic)| has(head, *off, magic)) {
        return Some("vfat");
    }
    let entries = head.get(446..510)?.chunks_exact(16);
    let plausible = entries.clone().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.clone().any(|entry| entry[4] != 0);
    Some(if plausible && used {
        "mbr partition table"
    } else {
        "boot sector"
    })
}

#[cfg(test)]
mod tests;
