//! Appends to files that have been written out, and reads of what they have left.

use quayfs_background::checkpoint::round;
use quayfs_background::digest::digest_all;
use quayfs_crashsim::{FaultDevice, FaultOp};
use quayfs_fs::{WriteAt, WriteOptions, extents};
use quayfs_restart::{Outcome, Requests};

use super::*;

/// A volume whose reads are counted.
fn counting() -> (Disk, Arc<FaultDevice>) {
    let mut disk = Disk::new();
    let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
    disk.device = Arc::<FaultDevice>::clone(&device);
    (disk, device)
}

/// Nothing is staged any more.
fn checkpoint(fs: &Fs) {
    digest_all(&fs.e).unwrap();
    round(&fs.e).unwrap();
}

/// Whether the block of the file is kept in DRAM.
fn kept(fs: &Fs, ino: Ino, block: u64) -> bool {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let pieces = extents::with(&handle, |x| x.pieces(block..block + 1)).unwrap();
    fs.e.partials
        .copy(pieces[0].lbn.unwrap(), &mut vec![0; BLOCK])
}

#[test]
fn an_append_to_what_was_written_out_reads_nothing() {
    let (disk, device) = counting();
    let fs = disk.mount("noatime");
    let ino = file(&fs, ROOT, "f");
    let mut want = vec![1; 5000];
    fs.write(ino, 0, &want, false).unwrap();
    let reads = device.calls(FaultOp::Read);
    for (i, len) in [100, 1, 4000, 8192, 70].into_iter().enumerate() {
        checkpoint(&fs);
        let more = vec![i as u8 + 2; len];
        fs.write(ino, want.len() as u64, &more, false).unwrap();
        want.extend(more);
    }
    // Nor does a read of the blocks that one of them has completed; the others were written whole.
    checkpoint(&fs);
    for blocks in [1..3, 4..5] {
        let part = blocks.start * BLOCK..want.len().min(blocks.end * BLOCK);
        let got = fs.read(ino, part.start as u64, part.len()).unwrap();
        assert!(got == want[part]);
    }
    assert_eq!(device.calls(FaultOp::Read), reads);

    // A new life knows of none.
    checkpoint(&fs);
    let fs = disk.dies(fs, "noatime");
    let reads = device.calls(FaultOp::Read);
    fs.write(ino, want.len() as u64, &[9], false).unwrap();
    want.push(9);
    assert_eq!(device.calls(FaultOp::Read), reads + 1);
    assert!(fs.read(ino, 0, 1 << 20).unwrap() == want);
    disk.ends(fs);
}

#[test]
fn no_partial_block_outlives_its_content() {
    for options in ["noatime", "noatime,data=ordered"] {
        let disk = Disk::new();
        let fs = disk.mount(options);
        let ino = file(&fs, ROOT, "f");
        let mut want = vec![1; 5000];
        let check = |fs: &Fs, want: &[u8]| {
            checkpoint(fs);
            assert!(fs.read(ino, 0, 1 << 20).unwrap() == want, "{options}");
        };
        fs.write(ino, 0, &want, false).unwrap();
        check(&fs, &want);

        // Not to its end.
        fs.write(ino, 4200, &[2; 10], false).unwrap();
        want[4200..4210].fill(2);
        assert!(kept(&fs, ino, 1), "{options}");
        check(&fs, &want);

        // To its end.
        fs.write(ino, 4990, &[3; 20], false).unwrap();
        want.truncate(4990);
        want.extend([3; 20]);
        check(&fs, &want);

        // Shorter, and longer again: zeros where something was.
        let size = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        for len in [4500, 6000] {
            fs.setattr(ino, &size(len), false).unwrap();
            want.resize(len as usize, 0);
            check(&fs, &want);
        }

        // The whole block, past the staging area where that is what the mode does.
        fs.write(ino, 4096, &[4; BLOCK], false).unwrap();
        want.resize(2 * BLOCK, 0);
        want[BLOCK..].fill(4);
        assert!(!kept(&fs, ino, 1), "{options}");
        check(&fs, &want);
        disk.ends(fs);
    }
}

/// A request of two records, the first of which a daemon has written that died then.
#[test]
fn an_append_that_was_left_goes_on_where_it_was_left() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let ino = file(&fs, ROOT, "f");
    let begun = b"begun";
    let more: Vec<u8> = (0..fs.request_max()).map(|i| (i / 5) as u8).collect();
    let first = fs.request_max() - begun.len();
    fs.write(ino, 0, begun, false).unwrap();
    fs.write(ino, begun.len() as u64, &more[..first], false)
        .unwrap();
    let requests = Arc::new(Requests::new().unwrap());
    let left = Outcome {
        inode: 0,
        progress: first as u64,
    };
    let under_way = requests.begin(8, left);
    let manner = WriteOptions {
        append: true,
        at: WriteAt::End,
        ..WriteOptions::default()
    };
    fs.write_for(ino, begun.len() as u64, &more, manner)
        .unwrap();
    drop(under_way);
    let got = fs.read(ino, 0, 2 * fs.request_max()).unwrap();
    assert!(got == [begun, &more[..]].concat());
    disk.ends(fs);
}
