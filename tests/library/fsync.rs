//! What `fsync` promises in mode `commit`.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use quayfs_background::{checkpoint, digest};
use quayfs_crashsim::{Budget, Recorder, SimDevice, Watched};
use quayfs_fs::Caller;
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::{Backend, Observer, Region};

type Site = &'static std::panic::Location<'static>;

/// Stops one thread at its next store, until it is let go.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Name of the thread to be stopped, and the range of its stores.
    stop: Option<(&'static str, std::ops::Range<u64>)>,
    stopped: bool,
}

impl Observer for Gate {
    fn store(&self, off: u64, _: &[u8], _: bool, _: Site) {
        let mut s = self.state.lock();
        let me = std::thread::current();
        let is_me = |s: &State| {
            s.stop
                .as_ref()
                .is_some_and(|(t, r)| me.name() == Some(t) && r.contains(&off))
        };
        while is_me(&s) {
            s.stopped = true;
            self.changed.notify_all();
            self.changed.wait(&mut s);
        }
    }

    fn flush(&self, _: u64, _: u64, _: Site) {}
    fn fence(&self, _: Site) {}
    fn drain(&self, _: Site) {}
}

/// A record that was appended before `fsync` is durable after it, even while an earlier number is
/// still being appended in another lane.
#[test]
fn fsync_waits_for_earlier_numbers() {
    let gate = Arc::new(Gate::default());
    let geometry = Shape::SMALL.geometry();
    let region = Region::simulated_as(Backend::File, geometry.pmem_len, gate.clone());
    let device = Arc::new(SimDevice::unrecorded(geometry.data_blocks));
    let media = Media::format(Arc::new(region), device, geometry);
    let fs = media.mount_quiet(&options("noatime,durability=commit"));
    let me = Caller::default();
    let file = fs.mknod(me, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
    fs.sync_all().expect("sync");

    let lanes = geometry.lane_off..geometry.slot_hdr_off;
    gate.state.lock().stop = Some(("slow", lanes));
    let watched = Watched::default();
    std::thread::scope(|s| {
        let slow = std::thread::Builder::new().name("slow".into());
        let slow = slow
            .spawn_scoped(s, || fs.mkdir(me, ROOT, b"dir", 0o755))
            .expect("spawn");
        let mut state = gate.state.lock();
        while !state.stopped {
            gate.changed.wait(&mut state);
        }
        drop(state);
        fs.write(file, 0, b"content", false).expect("write");
        let handle = fs.e.inodes.get(&fs.e.nodes, file).expect("handle");
        assert!(
            handle.seq() > fs.e.journal.complete_upto(),
            "the write took another lane"
        );
        let synced = s.spawn(|| {
            watched.begin();
            fs.fsync(file).expect("fsync");
            fs.e.journal.commit_ts()
        });
        // It waits for the slow one; a wrong one has returned.
        watched.until_asleep(|| synced.is_finished());
        gate.state.lock().stop = None;
        gate.changed.notify_all();
        let committed = synced.join().expect("join");
        assert!(
            committed >= handle.seq(),
            "committed {committed}, written {}",
            handle.seq()
        );
        slow.join().expect("join").expect("mkdir");
    });
}

/// A commit is one cut of one global order, and `fsync` of anything is one: also of an inode that has
/// nothing to commit itself, since users sync a directory or a log for what they did elsewhere.
#[test]
fn fsync_of_anything_commits_everything() {
    for text in ["noatime,durability=commit", "noatime,data=ordered"] {
        let geometry = Shape::TINY.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::File);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(&options(text));
        let me = Caller::default();
        let other = fs.mknod(me, ROOT, b"other", S_IFREG, 0).expect("mknod").ino;
        let file = fs.mknod(me, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
        fs.sync_all().expect("sync");
        fs.write(file, 0, b"content", false).expect("write");
        fs.fsync(other).expect("fsync");
        let handle = fs.e.inodes.get(&fs.e.nodes, file).expect("handle");
        let committed = fs.e.journal.commit_ts();
        assert!(
            committed >= handle.seq(),
            "{text}: committed {committed}, written {}",
            handle.seq()
        );
    }
}

/// In mode `data=writeback` commits do not wait for the data device, but `fsync` does, of the file and of anything
/// else, whether or not the record is committed: its commit covers all files.
#[test]
fn fsync_covers_direct_data() {
    const MODES: [&str; 4] = [
        "noatime,data=writeback",
        "noatime,data=writeback,ablation=nodelog:ssd",
        "noatime,data=ordered",
        "noatime,durability=commit",
    ];
    let of = ["file", "other", "dir"];
    let all = MODES.iter().flat_map(|text| of.map(|of| (*text, of)));
    for (text, of, committed) in all.flat_map(|(text, of)| [(text, of, false), (text, of, true)]) {
        let shape = Shape::TINY;
        let geometry = shape.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::File);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(&options(text));
        let me = Caller::default();
        let file = fs.mknod(me, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
        fs.mknod(me, ROOT, b"other", S_IFREG, 0).expect("mknod");
        fs.mkdir(me, ROOT, b"dir", 0o755).expect("mkdir");
        fs.sync_all().expect("sync");
        recorder.start_here();
        let content = bytes(1, 3 * BLOCK + 5);
        fs.write(file, 7, &content, false).expect("write");
        if committed {
            // What the daemon does every few seconds.
            fs.e.commit().expect("commit");
        }
        let synced = fs.lookup(ROOT, of.as_bytes()).expect("lookup").ino;
        fs.fsync(synced).expect("fsync");
        let trace = recorder.trace();
        let last = trace.points().last().expect("a point");
        let mut images = 0;
        for image in trace.images(last, &Budget::MEDIUM) {
            let (region, device) = (Arc::new(image.region()), Arc::new(image.device()));
            let fs = Media { region, device }.mount_quiet(&options(text));
            let found = fs.lookup(ROOT, b"file").expect("lookup").ino;
            let got = fs.read(found, 7, content.len() + 1);
            assert!(
                got.as_ref() == Ok(&content),
                "{text}, fsync of {of}: {:?}\n{image}",
                got.err()
            );
            images += 1;
        }
        assert!(images > 0);
    }
}

/// With `data=writeback` a crash may take data that was not synced, but shows nothing else instead,
/// and what it took can be written again.
#[test]
fn writeback_never_shows_foreign_content() {
    let o = options("noatime,data=writeback");
    let geometry = Shape::TINY.geometry();
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::File);
    let media = Media::format(recorder.region(), recorder.device(), geometry);
    let fs = media.mount_quiet(&o);
    let me = Caller::default();
    let (old, new) = (bytes(1, 2 * BLOCK), bytes(2, 2 * BLOCK));
    let secret = bytes(3, 400 * BLOCK);
    // Most blocks of the device hold what has been deleted.
    let gone = fs.mknod(me, ROOT, b"gone", S_IFREG, 0).expect("mknod").ino;
    fs.write(gone, 0, &secret, false).expect("write");
    fs.unlink(ROOT, b"gone").expect("unlink");
    fs.forget(gone, 1);
    let file = fs.mknod(me, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
    fs.write(file, 0, &old, false).expect("write");
    fs.sync_all().expect("sync");
    digest::digest_all(&fs.e).expect("digest");
    checkpoint::zero_freed(&fs.e).expect("zeroing pass");
    recorder.start_here();
    fs.write(file, 0, &new, false).expect("write");
    // What the daemon does every few seconds.
    fs.e.commit().expect("commit");
    digest::digest_all(&fs.e).expect("digest");
    let (mut lost, mut kept) = (0, 0);
    for image in recorder.trace().explore(&Budget::SMALL) {
        let (region, device) = (Arc::new(image.region()), Arc::new(image.device()));
        let fs = Media { region, device }.mount_quiet(&o);
        for (at, (old, new)) in old.chunks(BLOCK).zip(new.chunks(BLOCK)).enumerate() {
            let at = (at * BLOCK) as u64;
            match fs.read(file, at, BLOCK) {
                Ok(got) if got == old || got == new => kept += 1,
                Ok(_) => panic!("foreign content\n{image}"),
                Err(e) if e.is_io() => lost += 1,
                Err(e) => panic!("{e}\n{image}"),
            }
            fs.write(file, at, new, false).expect("writing it again");
            assert!(fs.read(file, at, BLOCK).as_deref() == Ok(new), "{image}");
        }
    }
    assert!(lost > 0 && kept > 0, "{lost} lost, {kept} kept");
}

/// A daemon with `data=writeback` dies with blocks that the device has not flushed. The next mount reads them, so its
/// `fsync` covers them, whatever its own data mode.
#[test]
fn fsync_covers_what_an_earlier_life_has_not_flushed() {
    let geometry = Shape::TINY.geometry();
    for mode in ["journal", "ordered", "writeback"] {
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::File);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(&options("noatime,data=writeback"));
        let me = Caller::default();
        let content = bytes(1, 3 * BLOCK);
        let file = fs.mknod(me, ROOT, b"file", S_IFREG, 0).expect("mknod").ino;
        fs.sync_all().expect("sync");
        fs.write(file, 0, &content, false).expect("write");
        fs.e.commit().expect("commit");
        // It dies, and the machine goes on.
        fs.abandon();
        drop(fs);
        let o = options(&format!("noatime,data={mode}"));
        let fs = media.mount_quiet(&o);
        assert!(fs.read(file, 0, content.len()).as_ref() == Ok(&content));
        fs.fsync(file).expect("fsync");
        fs.abandon();
        let trace = recorder.trace();
        let end = trace.points().last().expect("an end");
        let mut looked = 0;
        for image in trace.images(end, &Budget::SMALL) {
            let (region, device) = (Arc::new(image.region()), Arc::new(image.device()));
            let fs = Media { region, device }.mount_quiet(&o);
            let read = fs.read(file, 0, content.len());
            assert!(read.as_ref() == Ok(&content), "data={mode}: {image}");
            looked += 1;
        }
        assert!(looked > 0);
    }
}
