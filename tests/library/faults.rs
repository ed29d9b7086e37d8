//! Devices that fail: what can be read stays readable, nothing acknowledged is lost, and no caller is
//! told that something is durable when it is not.

use std::sync::Arc;

use quayfs_background::{checkpoint, digest};
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, Fault, FaultDevice, FaultOp, Recorder, Repeat, SimDevice};
use quayfs_fs::{Caller, Fs};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::model::Model;
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, account, dump, options};
use quayfs_pmem::{Backend, Region};
use quayfs_store::error::FsError;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const EIO: Fault = Fault::Errno(5);

struct Setup {
    media: Media,
    device: Arc<FaultDevice>,
    fs: Arc<Fs>,
    text: &'static str,
    files: Vec<(Ino, Vec<u8>)>,
}

impl Setup {
    /// Some files on the data device, some staged.
    fn new(text: &'static str) -> Self {
        let geometry = Shape::SMALL.geometry();
        let zeros = vec![0; geometry.pmem_len as usize];
        let region = Arc::new(Region::from_image(zeros, None, Backend::File));
        let inner = Arc::new(SimDevice::unrecorded(geometry.data_blocks));
        let device = Arc::new(FaultDevice::new(inner));
        let media = Media::format(region, device.clone() as Arc<dyn BlockDevice>, geometry);
        let fs = media.mount_quiet(&options(text));
        let mut s = Self {
            media,
            device,
            fs,
            text,
            files: Vec::new(),
        };
        for i in 0..12 {
            s.add(i);
            if i == 5 {
                s.fs.sync_all().expect("sync");
                digest::digest_all(&s.fs.e).expect("digest");
                checkpoint::round(&s.fs.e).expect("round");
            }
        }
        s.fs.sync_all().expect("sync");
        digest::digest_all(&s.fs.e).expect("digest");
        s
    }

    fn add(&mut self, i: u64) {
        let content = bytes(i, 100 + 5000 * (i as usize % 5));
        let name = format!("f{i}");
        let ino = self
            .fs
            .mknod(ME, ROOT, name.as_bytes(), S_IFREG | 0o644, 0)
            .expect("mknod")
            .ino;
        self.fs.write(ino, 0, &content, false).expect("write");
        self.files.push((ino, content));
    }

    fn verify(&self) {
        for (ino, content) in &self.files {
            let got = self.fs.read(*ino, 0, content.len() + 1);
            assert!(
                got.as_ref() == Ok(content),
                "{}: inode {ino}: {:?}",
                self.text,
                got.err()
            );
        }
    }

    /// Nothing can be changed, everything can be read.
    fn assert_read_only(&self) {
        assert!(self.fs.e.is_read_only());
        self.verify();
        let (ino, _) = self.files[0];
        let refused = Err(FsError::ReadOnly);
        assert_eq!(self.fs.write(ino, 0, b"x", false), refused);
        assert_eq!(self.fs.unlink(ROOT, b"f0"), refused);
        assert_eq!(self.fs.mkdir(ME, ROOT, b"d", 0o755).map(drop), refused);
        dump::dump(&self.fs, ROOT).expect("dump");
    }

    /// The device works again; a new mount finds everything.
    fn heal(&mut self) {
        self.device.heal();
        self.fs.shutdown().expect("shutdown");
        self.media
            .fsck()
            .unwrap_or_else(|e| panic!("{}: {e}", self.text));
        self.fs = self.media.mount_quiet(&options(self.text));
        self.verify();
    }

    /// Everything works.
    fn assert_well(&mut self) {
        assert!(!self.fs.e.is_read_only());
        self.add(100);
        self.verify();
        account::finish_background(&self.fs);
        self.verify();
        let mut m = Model::new();
        for (ino, content) in &self.files {
            let mut node = quayfs_oracle::model::Node {
                mode: S_IFREG,
                ..Default::default()
            };
            node.content.write(0, content);
            m.nodes.insert(*ino, node);
        }
        account::check(&self.fs, &m).unwrap_or_else(|e| panic!("{}: {e}", self.text));
        self.fs.shutdown().expect("shutdown");
        self.media
            .fsck()
            .unwrap_or_else(|e| panic!("{}: {e}", self.text));
    }
}

const STAGED: [&str; 3] = [
    "noatime,durability=op",
    "noatime,durability=commit",
    "noatime,checkpoint=swap",
];

#[test]
fn a_round_tries_again() {
    for text in STAGED {
        for fault in [EIO, Fault::Short] {
            let mut s = Setup::new(text);
            s.device.fail(FaultOp::Write, 1, fault, Repeat::Once);
            assert!(checkpoint::round(&s.fs.e).expect("round").written > 0);
            s.verify();
            s.assert_well();
        }
    }
}

#[test]
fn a_device_that_cannot_be_written_keeps_everything_readable() {
    for text in STAGED {
        for (op, fault) in [
            (FaultOp::Write, EIO),
            (FaultOp::Write, Fault::Short),
            (FaultOp::Flush, EIO),
        ] {
            let mut s = Setup::new(text);
            s.device.fail(op, 1, fault, Repeat::Forever);
            assert!(checkpoint::round(&s.fs.e).is_err());
            s.assert_read_only();
            // A failed flush is not tried again as if nothing had happened.
            assert!(checkpoint::round(&s.fs.e).is_err());
            s.heal();
            s.assert_well();
        }
    }
}

#[test]
fn unmounting_with_a_dead_device_loses_nothing() {
    for text in STAGED {
        let mut s = Setup::new(text);
        s.device.fail(FaultOp::Write, 1, EIO, Repeat::Forever);
        assert!(s.fs.shutdown().is_err());
        s.heal();
        s.assert_well();
    }
}

#[test]
fn a_read_that_fails_is_an_error_of_its_own() {
    let mut s = Setup::new("noatime");
    s.device.fail(FaultOp::Read, 1, EIO, Repeat::Once);
    let on_device = s.files[3].clone();
    let read = |s: &Setup| s.fs.read(on_device.0, 0, on_device.1.len());
    assert!(matches!(read(&s), Err(ref e) if e.is_io()));
    assert!(read(&s).as_ref() == Ok(&on_device.1));
    // A block that is written in part has to be read first.
    s.device.fail(FaultOp::Read, 1, EIO, Repeat::Once);
    assert!(matches!(
        s.fs.write(on_device.0, 10, b"x", false),
        Err(ref e) if e.is_io()
    ));
    s.verify();
    s.assert_well();
}

#[test]
fn a_direct_write_that_fails_has_no_effect() {
    for text in ["noatime,data=ordered", "noatime,data=writeback"] {
        for fault in [EIO, Fault::Short, Fault::Errno(28)] {
            let mut s = Setup::new(text);
            for nth in 1..3 {
                s.device.fail(FaultOp::Write, nth, fault, Repeat::Once);
                let (ino, _) = s.files[4];
                let long = bytes(9, 9 * BLOCK + 5);
                let done = s.fs.write(ino, 10, &long, false);
                s.device.heal();
                match done {
                    Ok(()) => s.files[4].1 = [&s.files[4].1[..10], &long[..]].concat(),
                    Err(e) => assert!(e.is_io(), "{text}: {e}"),
                }
                s.verify();
            }
            s.assert_well();
        }
    }
}

/// With data=ordered a commit that cannot flush the data device does not happen.
#[test]
fn a_commit_waits_for_the_data() {
    // Once: what the device lost then is not covered by a flush that succeeds later.
    commit_without_data(Repeat::Once);
    commit_without_data(Repeat::Forever);
}

fn commit_without_data(repeat: Repeat) {
    let mut s = Setup::new("noatime,data=ordered");
    let (ino, before) = s.files[2].clone();
    s.fs.write(ino, 0, &bytes(5, 3000), false).expect("write");
    s.device.fail(FaultOp::Flush, 1, EIO, repeat);
    assert!(matches!(s.fs.fsync(ino), Err(ref e) if e.is_io()));
    assert!(s.fs.fsync(ino).is_err(), "the second fsync pretends");
    assert!(s.fs.e.is_read_only());
    s.device.heal();
    s.fs.shutdown().expect("shutdown");
    s.media.fsck().expect("fsck");
    s.fs = s.media.mount_quiet(&options(s.text));
    let got = s.fs.read(ino, 0, before.len() + 1).expect("read");
    assert!(got == before, "what was not committed is there");
}

/// Where a commit writes the log to the data device too, one that follows a failed one writes what that one has not.
#[test]
fn a_commit_writes_the_log_that_the_last_one_has_not() {
    let mut s = Setup::new("noatime,data=ordered,ablation=nodelog:ssd");
    s.fs.sync_all().expect("sync");
    let state = |s: &Setup| {
        let logged = s.fs.e.metrics.snapshot().blocks_logged;
        (s.fs.e.journal.stats().append_bytes, logged)
    };
    let (bytes, logged) = state(&s);
    for n in 0..40 {
        let name = format!("new {n}");
        let made = s.fs.mknod(ME, ROOT, name.as_bytes(), S_IFREG, 0);
        s.fs.forget(made.expect("mknod").ino, 1);
    }
    let (bytes, after) = (state(&s).0 - bytes, state(&s).1);
    assert!(bytes > 2 * BLOCK as u64 && after == logged);
    s.device.fail(FaultOp::Write, 1, EIO, Repeat::Once);
    assert!(matches!(s.fs.sync_all(), Err(ref e) if e.is_io()));
    assert!(!s.fs.e.is_read_only());
    s.fs.sync_all().expect("the device writes again");
    assert!(state(&s).1 - logged >= bytes.div_ceil(BLOCK as u64));
    s.verify();
    s.assert_well();
}

/// After a failed drain nothing is acknowledged any more, and what was is there after a crash.
#[test]
fn a_failed_drain_stops_everything() {
    for text in ["noatime,durability=op", "noatime,durability=commit"] {
        let geometry = Shape::TINY.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::File);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(&options(text));
        let file = fs.mknod(ME, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
        let content = bytes(1, 5000);
        fs.write(file, 0, &content, false).expect("write");
        fs.sync_all().expect("sync");
        recorder.fail_drains(5);
        let wrote = fs.write(file, 0, &bytes(2, 5000), false);
        let synced = fs.fsync(file);
        assert!(
            wrote.is_err() || synced.is_err(),
            "{text}: {wrote:?}, {synced:?}"
        );
        assert!(fs.e.is_read_only(), "{text}");
        assert_eq!(
            fs.mkdir(ME, ROOT, b"d", 0o755).map(drop),
            Err(FsError::ReadOnly)
        );
        let trace = recorder.trace();
        let last = trace.points().last().expect("a point");
        for image in trace.images(last, &Budget::SMALL) {
            let media = Media {
                region: image.region().into(),
                device: Arc::new(image.device()),
            };
            media
                .fsck()
                .unwrap_or_else(|e| panic!("{text}: {e}\n{image}"));
            let fs = media.mount_quiet(&options(text));
            let got = fs.read(file, 0, 6000).expect("read");
            let new = got == bytes(2, 5000);
            // Not acknowledged: there or not, but whole.
            assert!(
                got == content || new,
                "{text}: neither old nor new\n{image}"
            );
        }
    }
}
