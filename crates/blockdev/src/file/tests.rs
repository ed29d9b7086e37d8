//! What lies beyond the longest file that the process may write.

use super::*;
use quayfs_pmem::{MapOptions, Region};

/// A limit in the middle of block 8, of 16.
const LIMIT: u64 = 8 * BLOCK as u64 + 100;

fn limited(dir: &Path, direct: bool) -> FileDevice {
    let path = dir.join("device");
    crate::create_file(&path, 16 * BLOCK as u64, true).unwrap();
    let options = Options {
        direct,
        ..Options::default()
    };
    let mut device = FileDevice::open(&path, options).unwrap();
    device.write_limit = Some(LIMIT);
    device
}

fn is(device: &FileDevice, block: u64, byte: u8) {
    let mut buf = vec![0; BLOCK];
    device.read(block, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == byte), "block {block}");
}

/// By this way and by that, again and again, as the file below them has it.
#[test]
fn what_may_not_be_written_is_stored() {
    for direct in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let device = limited(dir.path(), direct);
        for round in 1..4 {
            let bufs: Vec<_> = (0..16).map(|n| vec![round * 16 + n; BLOCK]).collect();
            device.write(7, &bufs[7]).unwrap();
            let all: Vec<&[u8]> = bufs[8..].iter().map(Vec::as_slice).collect();
            let runs = [
                WriteRun {
                    block: 8,
                    bufs: &all[..1],
                },
                WriteRun {
                    block: 9,
                    bufs: &all[1..],
                },
            ];
            device.write_many(&runs).unwrap();
            for n in 7..16 {
                is(&device, n, round * 16 + n as u8);
            }
            device.flush().unwrap();
        }
        let content = std::fs::read(device.path()).unwrap();
        assert!(content[15 * BLOCK..].iter().all(|b| *b == 3 * 16 + 15));
        assert!(
            device.describe().contains("mapped"),
            "{}",
            device.describe()
        );
    }
}

#[test]
fn regions_are_copied_then() {
    let dir = tempfile::tempdir().unwrap();
    let device = limited(dir.path(), true);
    let path = dir.path().join("region");
    crate::create_file(&path, 1 << 20, true).unwrap();
    let region = Region::open(&path, MapOptions::default()).unwrap();
    region.write(0, &[9; BLOCK]);
    let bytes = [region.bytes(0, BLOCK)];
    let run = RegionRun {
        block: 15,
        bytes: &bytes,
    };
    device.write_from(&[run]).unwrap();
    is(&device, 15, 9);
}

/// A file that was cut under us is an error, not the end of the process.
#[test]
fn a_file_that_has_become_shorter_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let device = limited(dir.path(), false);
    device.file.set_len(10 * BLOCK as u64).unwrap();
    device.write(15, &[1; BLOCK]).unwrap_err();
    device.write(9, &[1; BLOCK]).unwrap();
}
