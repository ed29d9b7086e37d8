//! Programs that lead to one place: what a round or a zeroing pass gives back is taken again at once,
//! while whatever made it free may still be in flight in another thread.

use quayfs_fs::{FallocMode, SetXattr, Subject};
use quayfs_layout::inode::{ROOT, S_IFDIR, S_IFLNK};
use quayfs_layout::{BLOCK, Ino};

use crate::Shape;
use crate::crash::Script;
use crate::search::alphabet::{EIGHT, SEVEN};

const B: u64 = BLOCK as u64;

/// A scenario and its name.
type Scenario = (&'static str, fn(&mut Script));

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    ("ring", ring),
    ("reuse", reuse),
    ("reuse-written", reuse_written),
    ("lives", lives),
    ("lap", lap),
    ("laps", laps),
    ("backlog", backlog),
    ("batches", batches),
    ("rewrites", rewrites),
    ("places", places),
    ("unsynced", unsynced),
    ("left", left),
];

/// The volume that a scenario is about.
pub fn shape_of(scenario: &str) -> &'static Shape {
    match scenario {
        // More than one record has to fit a batch.
        "batches" => &Shape::TINY,
        _ => &Shape::TIGHT,
    }
}

/// Blocks are written that no `fsync` asks for, and what names them is committed all the same.
fn unsynced(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.background();
    s.start_here();
    for i in 0..3 {
        s.write(a, i * 3 * B, 3 * BLOCK);
        s.commit();
    }
    s.digest();
}

/// The slots that a round has retired are filled again.
fn ring(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.background();
    s.start_here();
    for lap in 0..4 {
        // Fewer slots than there are, so that no write has to wait for a round.
        for i in 0..16 {
            s.write(a, (i * 3 + lap) % 7 * B, BLOCK);
        }
        s.sync();
        s.digest();
        s.round();
        for i in 0..2 {
            s.write(a, i * B, 2 * BLOCK);
        }
    }
    s.sync();
}

/// A file of most blocks; then they are free and clean.
fn freed(s: &mut Script) {
    let a = s.file(ROOT, "a");
    for i in 0..6 {
        s.write(a, i * 3 * B, 3 * BLOCK);
        s.write(a, i * 3 * B, 100);
        s.background();
    }
    s.remove(ROOT, "a");
    s.forget(a);
    s.sync();
    s.digest();
    s.round();
    s.start_here();
    s.zero();
}

/// Blocks that a zeroing pass has cleaned are given to a file that never writes to them.
fn reuse(s: &mut Script) {
    freed(s);
    let b = s.file(ROOT, "b");
    let grow = FallocMode::Allocate { keep_size: false };
    for i in 0..12 {
        s.fallocate(b, grow, i * 6 * B, 5 * B);
    }
    s.sync();
    s.background();
}

/// The same blocks, written to.
fn reuse_written(s: &mut Script) {
    freed(s);
    let b = s.file(ROOT, "b");
    for i in 0..12 {
        s.write(b, i * 4 * B + 9, 2 * BLOCK);
        if i % 4 == 3 {
            s.background();
        }
    }
}

/// Record lanes go around: what was digested is overwritten.
fn lap(s: &mut Script) {
    let a = s.file(ROOT, "a");
    let lanes = Shape::TIGHT.lane * Shape::TIGHT.buffers;
    while s.fs.e.journal.stats().append_bytes < lanes - 6000 {
        s.write(a, 0, BLOCK);
        let l = s.create(ROOT, "l", S_IFLNK, 3000);
        s.remove(ROOT, "l");
        s.forget(l);
        if s.fs.e.journal.stats().slots_used > 20 {
            s.background();
        }
    }
    s.background();
    s.start_here();
    for i in 0..6 {
        let l = s.create(ROOT, "l", S_IFLNK, 3000);
        s.sync();
        s.digest();
        s.write(a, i % 3 * B, BLOCK);
        s.remove(ROOT, "l");
        s.forget(l);
    }
    s.sync();
}

/// A lane goes around more than once, and its head only as far as each digest makes durable.
fn laps(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.start_here();
    let start = s.fs.e.journal.stats().append_bytes;
    let far = start + 5 * Shape::TIGHT.lane / 2;
    let mut len = 9_000;
    while s.fs.e.journal.stats().append_bytes < far {
        s.set_xattr(a, "user.large", len, SetXattr::Any);
        s.sync();
        s.digest();
        len += 1;
    }
    s.end();
}

/// Files `f0`, `f1` and so on with attributes of three pages each, which are no records any more.
fn with_attributes(s: &mut Script, dir: Ino, count: usize) -> Vec<Ino> {
    let files: Vec<_> = (0..count).map(|i| s.file(dir, &format!("f{i}"))).collect();
    for (i, file) in files.iter().enumerate() {
        s.set_xattr(*file, "user.large", 9_000 + i, SetXattr::Any);
    }
    s.background();
    s.start_here();
    files
}

/// A death leaves more records than there are pages to digest at once.
fn backlog(s: &mut Script) {
    let files = with_attributes(s, ROOT, 5);
    let options = s.options();
    for life in 0..2 {
        for (i, file) in files.iter().enumerate() {
            s.set_xattr(*file, "user.large", 9_500 + 100 * life + i, SetXattr::Any);
        }
        s.write(files[life], 0, 100);
        s.remove(ROOT, &format!("f{}", life + 3));
        s.forget(files[life + 3]);
        s.remount(false, &options);
    }
    s.sync();
}

/// A death leaves so much that recovery digests it in several batches, of several records each. Most of
/// them charge one project, which is at its limits.
fn batches(s: &mut Script) {
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    s.set_project(dir, 7, true);
    let files = with_attributes(s, dir, 9);
    let options = s.options();
    for life in 0..2 {
        let (blocks, inodes) = s.has(SEVEN);
        s.limit(SEVEN, Some(blocks + 3), Some(inodes));
        let file = files[2 * life];
        s.write(file, 0, 2 * BLOCK);
        for (i, file) in files.iter().enumerate().skip(2 * life) {
            s.set_xattr(*file, "user.large", 9_500 + 100 * life + i, SetXattr::Any);
        }
        s.write(file, 4 * B, 2 * BLOCK);
        s.file(dir, "more");
        s.set_xattr(file, "user.large", 100, SetXattr::Any);
        s.write(file, 4 * B, 2 * BLOCK);
        for (i, gone) in files.iter().enumerate().skip(2 * life).take(2) {
            s.remove(dir, &format!("f{i}"));
            s.forget(*gone);
        }
        s.file(dir, &format!("g{life}"));
        s.remount(false, &options);
    }
    s.sync();
}

/// Projects come and go: the place in the table that one of them has left becomes another's.
fn places(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.write(a, 0, 2 * BLOCK);
    s.background();
    s.start_here();
    let options = s.options();
    s.limit(Subject::Project(9), Some(5), Some(3));
    s.set_project(a, 9, false);
    s.sync();
    s.digest();
    s.limit(Subject::Project(9), Some(0), Some(0));
    s.set_project(a, 0, false);
    // The next mount reads the table and finds the place free.
    s.remount(false, &options);
    s.limit(EIGHT, Some(2), None);
    s.set_project(a, 8, false);
    s.write(a, 2 * B, 1);
    s.digest();
    s.remount(true, &options);
    s.limit(EIGHT, Some(0), Some(1));
    s.write(a, 2 * B, 1);
    s.set_project(a, 9, false);
    s.sync();
    s.digest();
    s.end();
}

/// Rounds of the older half leave what was written again since where it is; a death, and a zeroing pass,
/// find blocks whose only version on the device is an old one, or none.
fn rewrites(s: &mut Script) {
    let a = s.file(ROOT, "a");
    let options = s.options();
    s.background();
    s.start_here();
    for lap in 0..3 {
        for i in 0..4 {
            s.write(a, (lap + i) * B, BLOCK);
        }
        s.write(a, lap * B + 50, 100);
        s.sync();
        s.digest();
        s.room();
        s.write(a, (lap + 1) * B + 9, BLOCK);
        s.room();
        if lap == 1 {
            s.truncate(a, B + 30);
            s.sync();
            s.digest();
            s.room();
            s.zero();
            s.remount(false, &options);
        }
    }
    s.sync();
    s.digest();
    while s.room() > 0 {}
    s.end();
}

/// Mounts that end in every way, with something to do for each.
fn lives(s: &mut Script) {
    let options = s.options();
    let a = s.file(ROOT, "a");
    s.start_here();
    for life in 0..3 {
        s.write(a, life * B, 2 * BLOCK);
        s.file(ROOT, &format!("f{life}"));
        s.remount(life == 1, &options);
        s.write(a, life * B + 70, BLOCK);
        if life == 2 {
            s.background();
        }
        s.remount(life == 2, &options);
    }
    s.end();
}

/// Mounts that leave staged what is staged, and others that go on with it: it is written again, freed, and drained.
fn left(s: &mut Script) {
    let options = s.options();
    let a = s.file(ROOT, "a");
    let b = s.file(ROOT, "b");
    s.start_here();
    for life in 0..3 {
        s.write(a, life * B, 2 * BLOCK);
        s.write(b, life * B + 70, BLOCK);
        s.end_leaving_staged();
        s.begin(&options);
        match life {
            0 => s.truncate(a, B),
            1 => s.background(),
            _ => s.write(a, 0, 1),
        }
    }
    s.end_leaving_staged();
    s.begin(&options);
    s.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options;
    use crate::search::program::MODES;

    #[test]
    fn stories_of_projects_meet_their_limits() {
        for (scenario, play, refusals) in [
            ("batches", batches as fn(&mut Script), 4),
            ("places", places, 1),
        ] {
            for mode in MODES {
                let shape = shape_of(scenario);
                let mut s = Script::new(scenario, shape, mode.backend, &options(mode.options));
                play(&mut s);
                assert_eq!(s.refusals, refusals, "{}: {scenario}", mode.name);
            }
        }
    }
}
