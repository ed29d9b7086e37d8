//! Reading blocks that lie on the device in another order than in the file.

use quayfs_background::checkpoint::round;
use quayfs_background::digest::digest_all;
use quayfs_fs::extents;

use super::*;

const BLOCKS: u64 = 64;

/// Whole blocks of the file: each has its number in it, and how often it was written.
fn block(number: u64, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; BLOCK];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn checkpoint(fs: &Fs) {
    digest_all(&fs.e).unwrap();
    round(&fs.e).unwrap();
}

/// Where blocks of the file are on the device.
pub(super) fn places(fs: &Fs, ino: Ino, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let lbn = |b| {
        extents::with(&handle, |x| x.pieces(b..b + 1)).unwrap()[0]
            .lbn
            .unwrap()
    };
    blocks
        .map(|b| fs.e.ppt.lookup(lbn(b)).unwrap().pbn)
        .collect()
}

#[test]
fn blocks_that_were_swapped_together_are_read_to_their_places() {
    let disk = Disk::new();
    let fs = disk.mount("noatime,checkpoint=swap");
    let ino = file(&fs, ROOT, "f");
    let mut want = Vec::new();
    for b in 0..BLOCKS {
        want.extend(block(b, 1));
    }
    fs.write(ino, 0, &want, false).unwrap();
    checkpoint(&fs);
    for b in (0..BLOCKS).step_by(2) {
        let new = block(b, 2);
        want[b as usize * BLOCK..][..BLOCK].copy_from_slice(&new);
        fs.write(ino, b * BLOCK as u64, &new, false).unwrap();
    }
    checkpoint(&fs);
    // What is read with one request goes to every other block.
    let even = places(&fs, ino, (0..BLOCKS).step_by(2));
    assert!(even.windows(2).all(|w| w[1] == w[0] + 1), "{even:?}");
    let odd = places(&fs, ino, (1..BLOCKS).step_by(2));
    assert!(odd.windows(2).all(|w| w[1] == w[0] + 2), "{odd:?}");

    let whole = want.len();
    for (at, len) in [
        (0, whole),
        (BLOCK, whole - BLOCK),
        (3 * BLOCK, 2 * BLOCK),
        (100, whole - 200),
    ] {
        let got = fs.read(ino, at as u64, len).unwrap();
        assert!(got == want[at..at + len], "{len} bytes at {at}");
    }
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}
