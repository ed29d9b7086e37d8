//! Room that stays free behind what a file begins with.

use super::*;
use crate::fs::extents;

/// A file of so many blocks, written at once.
fn written(fs: &Fs, name: &str, blocks: usize) -> Ino {
    let ino = file(fs, ROOT, name);
    fs.write(ino, 0, &vec![1; blocks * BLOCK], false).unwrap();
    ino
}

/// The LBNs of the first so many blocks of a file.
fn lbns(fs: &Fs, ino: Ino, blocks: u64) -> Vec<u64> {
    let cell = fs.cell(ino).unwrap();
    let lbn = |b| extents::with(&cell, |x| x.pieces(b..b + 1)).unwrap()[0].lbn;
    (0..blocks).map(|b| lbn(b).unwrap()).collect()
}

#[track_caller]
fn in_one_piece(lbns: &[u64]) {
    assert!(lbns.windows(2).all(|w| w[1] == w[0] + 1), "{lbns:?}");
}

fn over(disk: &Disk, fs: Arc<Fs>) {
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn an_append_goes_on_where_the_file_ends() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let files: Vec<Ino> = (0..4)
        .map(|i| written(&fs, &i.to_string(), 8 << i))
        .collect();
    for (i, ino) in files.into_iter().enumerate() {
        let blocks = 8 << i;
        let at = (blocks * BLOCK) as u64;
        fs.write(ino, at, &vec![2; 8 * BLOCK], false).unwrap();
        in_one_piece(&lbns(&fs, ino, blocks as u64 + 8));
    }
    over(&disk, fs);
}

#[test]
fn short_files_lie_side_by_side() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let name = |i: u32| i.to_string();
    let all: Vec<u64> = (0..8)
        .flat_map(|i| lbns(&fs, written(&fs, &name(i), 7), 7))
        .collect();
    in_one_piece(&all);
    over(&disk, fs);
}

#[test]
fn no_room_is_left_where_little_is_free() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let most = fs.statfs().free as usize * 2 / 3;
    for i in 0..most.div_ceil(64) {
        written(&fs, &format!("f{i}"), 64);
    }
    let two = ["a", "b"].map(|name| lbns(&fs, written(&fs, name, 32), 32));
    in_one_piece(&two.concat());
    over(&disk, fs);
}

#[test]
fn room_is_handed_out_when_all_else_is_taken() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let mut bytes = vec![1; 8 * BLOCK];
    // Each in a file of its own, so that nobody goes on behind another; the last ones of fewer blocks.
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
    assert!(fs.statfs().free < 16, "{} blocks", fs.statfs().free);
    over(&disk, fs);
}
