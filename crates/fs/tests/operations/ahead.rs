//! Files whose blocks rounds have put in many places, read in order.

use quayfs_background::checkpoint::round;
use quayfs_background::digest::digest_all;

use super::*;

const BLOCKS: usize = 1024;
/// Rounds that each write every so manieth block.
const ROUNDS: usize = 8;
/// What a request reads: some blocks of each round.
const REQUEST: usize = 64 * BLOCK;

fn checkpoint(fs: &Fs) {
    digest_all(&fs.e).unwrap();
    round(&fs.e).unwrap();
}

/// Blocks in an order of their own, a round's worth after the other.
fn rounds_of() -> impl Iterator<Item = impl Iterator<Item = usize>> {
    (0..ROUNDS).map(|r| (0..BLOCKS).filter(move |b| (b * 5 + b / 64) % ROUNDS == r))
}

fn write_block(fs: &Fs, ino: Ino, want: &mut [u8], block: usize, version: u8) {
    let new = &mut want[block * BLOCK..][..BLOCK];
    new.fill(version);
    new[..8].copy_from_slice(&block.to_le_bytes());
    fs.write(ino, (block * BLOCK) as u64, new, false).unwrap();
}

/// A file in as many places as there were rounds, and what is in it.
fn scattered(fs: &Fs) -> (Ino, Vec<u8>) {
    let ino = file(fs, ROOT, "f");
    let mut want = vec![1; BLOCKS * BLOCK];
    fs.write(ino, 0, &want, false).unwrap();
    checkpoint(fs);
    for blocks in rounds_of() {
        for block in blocks {
            write_block(fs, ino, &mut want, block, 2);
        }
        checkpoint(fs);
    }
    (ino, want)
}

#[track_caller]
fn check(fs: &Fs, ino: Ino, want: &[u8]) {
    for (i, want) in want.chunks(REQUEST).enumerate() {
        let got = fs.read(ino, (i * REQUEST) as u64, REQUEST).unwrap();
        assert!(got == want, "request {i}");
    }
}

fn served(fs: &Fs) -> u64 {
    fs.status().counters.blocks_served_ahead
}

fn with_threads(disk: &Disk, options: &str) -> Arc<Fs> {
    let options = MountOptions::parse(&[options]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    while !fs.e.ahead.is_served() {
        std::thread::yield_now();
    }
    fs
}

#[test]
fn what_is_read_ahead_is_what_was_written_last() {
    let disk = Disk::new();
    let fs = with_threads(&disk, "noatime,checkpoint=swap");
    let (ino, mut want) = scattered(&fs);
    check(&fs, ino, &want);
    let first = served(&fs);
    assert!(first > BLOCKS as u64 / 2, "{first}");

    // Blocks before and behind the place being read are written meanwhile, and rounds take them elsewhere.
    for (i, step) in (0..BLOCKS).step_by(64).enumerate() {
        let from = step * BLOCK;
        let got = fs.read(ino, from as u64, REQUEST).unwrap();
        assert!(got == want[from..from + REQUEST], "request {i}");
        for block in [step / 2, step + 64 + 3, step + 64 + 9] {
            if block < BLOCKS {
                write_block(&fs, ino, &mut want, block, 3 + i as u8);
            }
        }
        checkpoint(&fs);
    }
    check(&fs, ino, &want);
    assert!(served(&fs) > first);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn who_may_only_read_is_read_ahead_for() {
    let disk = Disk::new();
    let fs = disk.mount("noatime,checkpoint=swap");
    let (ino, want) = scattered(&fs);
    // This mount has no thread that reads ahead.
    check(&fs, ino, &want);
    assert_eq!(served(&fs), 0);
    fs.shutdown().unwrap();
    drop(fs);
    let fs = with_threads(&disk, "ro");
    check(&fs, ino, &want);
    assert!(served(&fs) > BLOCKS as u64 / 2);
    fs.shutdown().unwrap();
}

#[test]
fn what_is_damaged_is_noticed_all_the_same() {
    let disk = Disk::new();
    let fs = with_threads(&disk, "noatime,checkpoint=swap");
    let (ino, want) = scattered(&fs);
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let damaged = BLOCKS / 2;
    let lbn = quayfs_fs::extents::with(&handle, |x| x.pieces(damaged as u64..damaged as u64 + 1));
    let pbn = fs.e.ppt.lookup(lbn.unwrap()[0].lbn.unwrap()).unwrap().pbn;
    // Behind the daemon's back.
    let place = fs.e.data_start() + pbn;
    disk.device.write(place, &[7; BLOCK]).unwrap();
    for (i, want) in want.chunks(REQUEST).enumerate() {
        let got = fs.read(ino, (i * REQUEST) as u64, REQUEST);
        match got {
            Ok(got) => assert!(got == want, "request {i}"),
            Err(err) => {
                assert_eq!(i, damaged * BLOCK / REQUEST);
                assert!(err.is_io(), "{err}");
            }
        }
    }
    assert!(served(&fs) > BLOCKS as u64 / 2);
    let whole = fs.read(ino, (damaged * BLOCK) as u64, BLOCK);
    assert!(whole.is_err());
    fs.abandon();
}
