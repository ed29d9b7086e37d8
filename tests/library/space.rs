//! The end of space: `ENOSPC` comes before anything is promised, deleting always works, and what
//! is deleted can be used again, all of it, any number of times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quayfs_crashsim::{FaultDevice, FaultOp, Watched};
use quayfs_fs::{Caller, FallocMode, Fs, SetAttr, SetXattr};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::apply::EVERYTHING;
use quayfs_oracle::model::Model;
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, account, dump, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const TIMES: u64 = 5;

const SHAPE: Shape = Shape {
    blocks: 900,
    spare: 16,
    nodes: 192,
    ..Shape::SMALL
};

/// Mount options to be tried, with the backend that goes with them.
const MODES: [(&str, Backend); 4] = [
    ("noatime", Backend::Volatile),
    ("noatime,durability=commit", Backend::File),
    ("noatime,data=ordered", Backend::Volatile),
    ("noatime,checkpoint=swap", Backend::Dax),
];

struct Mounted {
    media: Media,
    fs: Arc<Fs>,
    text: &'static str,
    quiet: bool,
}

impl Mounted {
    fn new(shape: &Shape, (text, backend): (&'static str, Backend), quiet: bool) -> Self {
        Self::on(Media::new(shape, backend), text, quiet)
    }

    fn on(media: Media, text: &'static str, quiet: bool) -> Self {
        let fs = Self::mount(&media, text, quiet);
        Self {
            media,
            fs,
            text,
            quiet,
        }
    }

    fn mount(media: &Media, text: &str, quiet: bool) -> Arc<Fs> {
        let o = options(text);
        if quiet {
            media.mount_quiet(&o)
        } else {
            media.mount(&o)
        }
    }

    fn remount(&mut self) {
        self.fs.shutdown().expect("shutdown");
        self.fs = Self::mount(&self.media, self.text, self.quiet);
    }

    /// With nothing in it, the volume is empty to the last counter.
    fn assert_empty(&mut self, when: &str) {
        if !self.quiet {
            self.fs.finish_chores();
            self.fs.abandon();
        }
        account::finish_background(&self.fs);
        if let Err(e) = account::check(&self.fs, &Model::new()) {
            panic!("{} {when}: {e}", self.text);
        }
        let tree = dump::dump(&self.fs, ROOT).expect("dump");
        assert_eq!(tree.len(), 1, "{} {when}", self.text);
        if let Err(e) = self.media.fsck() {
            panic!("{} {when}: {e}", self.text);
        }
        if !self.quiet {
            self.fs = Self::mount(&self.media, self.text, self.quiet);
        }
    }
}

fn name(i: u64) -> Vec<u8> {
    format!("f{i}").into_bytes()
}

fn create(fs: &Fs, name: &[u8]) -> Result<Ino, FsError> {
    fs.mknod(ME, ROOT, name, S_IFREG | 0o644, 0).map(|a| a.ino)
}

/// Writes files of growing size until there is no space; returns their content.
fn fill(fs: &Fs, salt: u64) -> Vec<(Ino, Vec<u8>)> {
    let mut files: Vec<(Ino, Vec<u8>)> = Vec::new();
    for i in 0.. {
        let Ok(ino) = create(fs, &name(i)) else {
            panic!("inodes ended before blocks")
        };
        files.push((ino, Vec::new()));
        for k in 0..i % 40 + 5 {
            let piece = bytes(salt ^ i << 20 ^ k, BLOCK * 3);
            let file = files.len() - 1;
            let content = &mut files[file].1;
            match fs.write(ino, content.len() as u64, &piece, false) {
                Ok(()) => content.extend_from_slice(&piece),
                Err(FsError::NoSpace) => return files,
                Err(e) => panic!("write: {e}"),
            }
        }
    }
    files
}

fn verify(fs: &Fs, files: &[(Ino, Vec<u8>)]) {
    for (ino, content) in files {
        let size = fs.getattr(*ino).expect("getattr").inode.size;
        assert_eq!(size, content.len() as u64, "inode {ino}");
        let got = fs.read(*ino, 0, content.len()).expect("read");
        assert!(got == *content, "inode {ino}");
    }
}

fn remove_all(fs: &Fs, files: &[(Ino, Vec<u8>)]) {
    for (i, (ino, _)) in files.iter().enumerate() {
        fs.unlink(ROOT, &name(i as u64)).expect("unlink");
        fs.forget(*ino, 1);
    }
}

fn data_ends(mode: (&'static str, Backend), quiet: bool) {
    let mut m = Mounted::new(&SHAPE, mode, quiet);
    let mut first = None;
    for round in 0..TIMES {
        let files = fill(&m.fs, round);
        verify(&m.fs, &files);
        let blocks: u64 = files.iter().map(|(_, c)| c.len() as u64 / B).sum();
        let limit = SHAPE.blocks - SHAPE.spare;
        assert!(
            blocks + 40 > limit && blocks <= limit,
            "{mode:?}: {blocks} of {limit}"
        );
        // The same files fit each time.
        let first = first.get_or_insert(blocks);
        assert_eq!(blocks, *first, "{mode:?}, time {round}");
        // Nothing can be added, everything can be changed in place or taken away.
        let (ino, _) = files[3];
        assert_eq!(fs_alloc(&m.fs, ino), Err(FsError::NoSpace));
        let mut files = files;
        if round == 2 {
            m.fs.sync_all().expect("sync");
            m.fs.abandon();
            m.fs = Mounted::mount(&m.media, m.text, m.quiet);
            verify(&m.fs, &files);
            let known = files.len() as u64;
            for i in 0..known {
                m.fs.lookup(ROOT, &name(i)).expect("lookup");
            }
        }
        overwrite(&m.fs, &mut files[5]);
        cut(&m.fs, &mut files[6]);
        verify(&m.fs, &files);
        remove_all(&m.fs, &files);
        m.assert_empty(&format!("after time {round}"));
    }
    m.remount();
    m.assert_empty("after a remount");
}

fn fs_alloc(fs: &Fs, ino: Ino) -> Result<(), FsError> {
    fs.fallocate(ino, FallocMode::Allocate { keep_size: true }, 0, 600 * B)
}

fn overwrite(fs: &Fs, file: &mut (Ino, Vec<u8>)) {
    let new = bytes(77, 5000);
    fs.write(file.0, 100, &new, false)
        .expect("overwriting needs no space");
    file.1[100..5100].copy_from_slice(&new);
}

fn cut(fs: &Fs, file: &mut (Ino, Vec<u8>)) {
    let size = file.1.len() as u64 / 2 - 1;
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(file.0, &set, false)
        .expect("truncate needs no space");
    file.1.truncate(size as usize);
    fs.fallocate(file.0, FallocMode::Punch, B / 2, B)
        .expect("punch needs no space");
    let end = file.1.len().min(BLOCK / 2 + BLOCK);
    file.1[BLOCK / 2..end].fill(0);
}

#[test]
fn blocks_end_and_come_back() {
    MODES.into_iter().for_each(|mode| data_ends(mode, true));
}

#[test]
fn blocks_end_and_come_back_with_background_threads() {
    MODES.into_iter().for_each(|mode| data_ends(mode, false));
}

/// As many blocks were written as fit without a trim.
fn assert_full(files: &[(Ino, Vec<u8>)], when: &str) {
    let blocks: u64 = files.iter().map(|(_, c)| c.len() as u64 / B).sum();
    let limit = SHAPE.blocks - SHAPE.spare;
    assert!(blocks + 40 > limit, "{when}: {blocks} of {limit}");
}

/// A trim takes free blocks away for a moment. No writer is refused a block because of that.
#[test]
fn a_trim_is_no_shortage() {
    for (text, backend) in MODES {
        for quiet in [true, false] {
            let mut media = Media::new(&SHAPE, backend);
            let device = Arc::new(FaultDevice::new(media.device));
            media.device = device.clone();
            let mut m = Mounted::on(media, text, quiet);
            for round in 0..3 {
                // The trim has all free blocks when the writer asks for its first.
                let (stall, watched) = (device.stall(FaultOp::Discard, 1), Watched::default());
                let files = std::thread::scope(|s| {
                    let trim = s.spawn(|| m.fs.trim(ME, EVERYTHING));
                    stall.reached();
                    let writer = s.spawn(|| {
                        watched.begin();
                        fill(&m.fs, round)
                    });
                    watched.until_asleep(|| writer.is_finished());
                    stall.release();
                    trim.join().expect("no panic").expect("trim");
                    writer.join().expect("no panic")
                });
                assert_full(&files, text);
                verify(&m.fs, &files);
                remove_all(&m.fs, &files);
            }
            m.assert_empty("after trims");
        }
    }
}

/// Ends the other thread, whatever becomes of this one.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The same, while one trim follows the other.
#[test]
fn trims_are_no_shortage() {
    for mode in MODES {
        for quiet in [true, false] {
            let mut m = Mounted::new(&SHAPE, mode, quiet);
            let (over, trims) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|s| {
                let ends = Ends(&over);
                let trimming = s.spawn(|| {
                    while !over.load(Ordering::Acquire) {
                        m.fs.trim(ME, EVERYTHING).expect("trim");
                        trims.fetch_add(1, Ordering::Release);
                    }
                });
                for round in 0..3 {
                    let before = trims.load(Ordering::Acquire);
                    // Each of them meets one.
                    while trims.load(Ordering::Acquire) == before && !trimming.is_finished() {
                        std::thread::yield_now();
                    }
                    let files = fill(&m.fs, round);
                    assert_full(&files, mode.0);
                    verify(&m.fs, &files);
                    remove_all(&m.fs, &files);
                }
                drop(ends);
            });
            m.assert_empty("after trims");
        }
    }
}

/// What a metadata test makes until there is no more.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Files,
    LongNames,
    Directories,
    Links,
    Attributes,
}

fn make(fs: &Fs, kind: Kind, i: u64) -> Result<(Ino, Vec<u8>), FsError> {
    let long = |i: u64| format!("{i:x>255}").into_bytes();
    let name = match kind {
        Kind::LongNames => long(i),
        _ => name(i),
    };
    let attr = match kind {
        Kind::Files | Kind::LongNames | Kind::Attributes => {
            fs.mknod(ME, ROOT, &name, S_IFREG | 0o644, 0)?
        }
        Kind::Directories => fs.mkdir(ME, ROOT, &name, 0o755)?,
        Kind::Links => fs.symlink(ME, ROOT, &name, &quayfs_oracle::ops::target(4095))?,
    };
    if let Kind::Attributes = kind {
        let set = fs.setxattr(attr.ino, b"user.x", &bytes(i, 9000), SetXattr::Any);
        if set == Err(FsError::NoSpace) {
            // The file is there, without it.
            assert_eq!(fs.getxattr(attr.ino, b"user.x"), Err(FsError::NoAttr));
            fs.unlink(ROOT, &name).expect("unlink");
            fs.forget(attr.ino, 1);
            return Err(FsError::NoSpace);
        }
        set?;
    }
    if let Kind::Directories = kind {
        let sub = fs.mkdir(ME, attr.ino, b"sub", 0o700);
        if let Ok(a) = &sub {
            fs.rmdir(attr.ino, b"sub").expect("rmdir");
            fs.forget(a.ino, 1);
            fs.mknod(ME, attr.ino, b"file", S_IFREG, 0)
                .map(|a| fs.forget(a.ino, 1))
                .ok();
        }
    }
    Ok((attr.ino, name))
}

fn unmake(fs: &Fs, kind: Kind, (ino, name): (Ino, Vec<u8>)) {
    if let Kind::Directories = kind {
        match fs.unlink(ino, b"file") {
            Ok(()) | Err(FsError::NoEntry) => {}
            Err(e) => panic!("unlink: {e}"),
        }
        fs.rmdir(ROOT, &name).expect("rmdir");
    } else {
        fs.unlink(ROOT, &name).expect("unlink");
    }
    fs.forget(ino, 1);
}

fn metadata_ends(kind: Kind, mode: (&'static str, Backend), quiet: bool) {
    // Node pages must end before the LBNs do, and before inode numbers.
    let mut m = Mounted::new(&SHAPE, mode, quiet);
    let mut most = 0;
    for round in 0..TIMES {
        let mut made = Vec::new();
        let end = loop {
            match make(&m.fs, kind, made.len() as u64) {
                Ok(x) => made.push(x),
                Err(e) => break e,
            }
        };
        let n = made.len();
        assert_eq!(
            end,
            FsError::NoSpace,
            "{kind:?} {mode:?}, time {round}, after {n}"
        );
        // Room is kept for deleting, so not all fit every time; but none is lost either.
        most = most.max(n);
        assert!(
            n * 20 >= most * 19,
            "{kind:?} {mode:?}, time {round}: {n}, {most} before"
        );
        for (i, (ino, name)) in made.iter().enumerate() {
            let found = m.fs.lookup(ROOT, name).expect("lookup");
            m.fs.forget(found.ino, 1);
            assert_eq!(found.ino, *ino, "{kind:?} {i}");
        }
        made.into_iter().for_each(|x| unmake(&m.fs, kind, x));
        m.assert_empty(&format!("{kind:?} after time {round}"));
    }
    m.remount();
    m.assert_empty("after a remount");
}

#[test]
fn files_end_and_come_back() {
    MODES
        .into_iter()
        .take(2)
        .for_each(|mode| metadata_ends(Kind::Files, mode, true));
    metadata_ends(Kind::LongNames, MODES[0], true);
    metadata_ends(Kind::Files, MODES[0], false);
}

#[test]
fn directories_end_and_come_back() {
    MODES
        .into_iter()
        .take(2)
        .for_each(|mode| metadata_ends(Kind::Directories, mode, true));
    metadata_ends(Kind::Directories, MODES[1], false);
}

#[test]
fn links_and_attributes_end_and_come_back() {
    metadata_ends(Kind::Links, MODES[0], true);
    metadata_ends(Kind::Attributes, MODES[1], true);
    metadata_ends(Kind::Attributes, MODES[0], false);
}

/// Files that come and go between two digests leave nothing behind.
#[test]
fn churn_leaks_nothing() {
    let mut m = Mounted::new(&SHAPE, MODES[0], true);
    // More inodes than the node area could hold at once.
    for round in 0..SHAPE.nodes {
        for i in 0..20 {
            let ino = create(&m.fs, &name(i)).unwrap_or_else(|e| panic!("round {round}: {e}"));
            m.fs.write(ino, 0, b"x", false)
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
            m.fs.unlink(ROOT, &name(i)).expect("unlink");
            m.fs.forget(ino, 1);
        }
        if round % 16 == 0 {
            m.assert_empty(&format!("after round {round}"));
        }
    }
    m.assert_empty("at the end");
}
