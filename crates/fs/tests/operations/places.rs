//! Where files lie.

use quayfs_fs::extents;

use super::*;

/// A file of so many blocks, written at once.
fn written(fs: &Fs, name: &str, blocks: usize) -> Ino {
    let ino = file(fs, ROOT, name);
    fs.write(ino, 0, &vec![1; blocks * BLOCK], false).unwrap();
    ino
}

/// The LBNs of the first so many blocks of a file.
fn lbns(fs: &Fs, ino: Ino, blocks: u64) -> Vec<u64> {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let lbn = |b| extents::with(&handle, |x| x.pieces(b..b + 1)).unwrap()[0].lbn;
    (0..blocks).map(|b| lbn(b).unwrap()).collect()
}

#[track_caller]
fn in_one_piece(lbns: &[u64]) {
    assert!(lbns.windows(2).all(|w| w[1] == w[0] + 1), "{lbns:?}");
}

#[test]
fn an_append_goes_on_where_the_file_ends() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    for (i, blocks) in [1, 8, 64].into_iter().enumerate() {
        let ino = written(&fs, &i.to_string(), blocks);
        for n in 0..3 {
            let at = (blocks + 2 * n) * BLOCK;
            fs.write(ino, at as u64, &vec![2; 2 * BLOCK], false)
                .unwrap();
        }
        in_one_piece(&lbns(&fs, ino, blocks as u64 + 6));
    }
    disk.ends(fs);
}

#[test]
fn what_is_written_at_one_time_lies_together() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let lengths = [40, 7, 3, 64, 1];
    let files: Vec<Ino> = (lengths.iter().enumerate())
        .map(|(i, n)| written(&fs, &i.to_string(), *n))
        .collect();
    let all: Vec<u64> = (files.iter().zip(lengths))
        .flat_map(|(ino, n)| lbns(&fs, *ino, n as u64))
        .collect();
    in_one_piece(&all);
    // Where the first four end another one begins. None has been opened again.
    files.iter().for_each(|ino| fs.release(*ino));
    let mut appended = Vec::new();
    for (ino, n) in files.iter().zip(lengths).take(4) {
        let at = (n * BLOCK) as u64;
        fs.write(*ino, at, &vec![2; 3 * BLOCK], false).unwrap();
        let n = n as u64;
        appended.extend(lbns(&fs, *ino, n + 3).split_off(n as usize));
    }
    appended.extend(lbns(&fs, written(&fs, "new", 20), 20));
    in_one_piece(&appended);
    assert_eq!(appended[0], all[all.len() - 1] + 1);
    disk.ends(fs);
}

#[test]
fn files_that_grow_side_by_side_do_not_interleave() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let files = ["a", "b"].map(|name| written(&fs, name, 16));
    for n in 0..16 {
        for ino in files {
            let at = (16 + n) * BLOCK;
            fs.write(ino, at as u64, &vec![2; BLOCK], false).unwrap();
        }
    }
    for ino in files {
        let lbns = lbns(&fs, ino, 32);
        in_one_piece(&lbns[..16]);
        in_one_piece(&lbns[16..]);
    }
    disk.ends(fs);
}

/// A file of two blocks and a half with another one behind it.
fn with_an_end_in_a_block(fs: &Fs) -> Ino {
    let ino = file(fs, ROOT, "half");
    fs.write(ino, 0, &[1; 5 * BLOCK / 2], false).unwrap();
    written(fs, "behind", 1);
    fs.release(ino);
    ino
}

/// Appends two blocks to it; where its five blocks lie then.
fn append_two(fs: &Fs, ino: Ino) -> Vec<u64> {
    let end = 5 * BLOCK as u64 / 2;
    fs.write(ino, end, &[2; 2 * BLOCK], false).unwrap();
    let mut expected = vec![1; 5 * BLOCK / 2];
    expected.resize(9 * BLOCK / 2, 2);
    assert!(fs.read(ino, 0, 5 * BLOCK).unwrap() == expected);
    assert_eq!(fs.getattr(ino).unwrap().inode.blocks, 5);
    lbns(fs, ino, 5)
}

#[test]
fn the_last_block_goes_with_what_is_appended() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let ino = with_an_end_in_a_block(&fs);
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    quayfs_background::checkpoint::round(&fs.e).unwrap();
    let free = fs.statfs().free;
    let before = lbns(&fs, ino, 3);
    let after = append_two(&fs, ino);
    assert_eq!(after[..2], before[..2]);
    in_one_piece(&after[2..]);
    assert!(after[2] > before[2] + 1);
    // Its old place comes back.
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    assert_eq!(fs.statfs().free, free - 2);
    disk.ends(fs);
    let fs = disk.mount("noatime");
    fs.read(ino, 0, BLOCK).unwrap();
    assert_eq!(lbns(&fs, ino, 5), after);
    disk.ends(fs);
}

#[test]
fn a_last_block_that_is_staged_stays() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let ino = with_an_end_in_a_block(&fs);
    let before = lbns(&fs, ino, 3);
    let after = append_two(&fs, ino);
    assert_eq!(after[..3], before[..]);
    in_one_piece(&after[3..]);
    disk.ends(fs);
}

#[test]
fn a_log_that_is_opened_for_each_line_is_in_few_pieces() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let log = file(&fs, ROOT, "log");
    let lines = 200;
    for n in 0..lines {
        fs.write(log, n * BLOCK as u64, &[1; BLOCK], false).unwrap();
        fs.release(log);
        written(&fs, &n.to_string(), 2);
    }
    let lbns = lbns(&fs, log, lines);
    let breaks = lbns.windows(2).filter(|w| w[1] != w[0] + 1).count();
    assert!(breaks < 20, "{lbns:?}");
    disk.ends(fs);
}

#[test]
fn every_block_is_handed_out() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let mut bytes = vec![1; 8 * BLOCK];
    // Each in a file of its own, so that no write goes on behind another; the last writes have fewer blocks.
    for i in 0.. {
        let ino = file(&fs, ROOT, &i.to_string());
        match fs.write(ino, 0, &bytes, false) {
            Ok(_) => (),
            Err(FsError::NoSpace) if bytes.len() > BLOCK => bytes.truncate(bytes.len() / 2),
            Err(err) => {
                assert_eq!(err, FsError::NoSpace);
                break;
            }
        }
    }
    // Less than behind one file.
    let s = fs.statfs();
    assert!(s.free < 16 && s.available == 0, "{s:?}");
    disk.ends(fs);
}
