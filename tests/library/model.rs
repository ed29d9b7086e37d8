//! Random operations against a model: whatever the file system does in between, after remounts and
//! after the daemon's death it looks as the model says.
//!
//! `QUAYFS_SEED=N` runs one seed, `QUAYFS_RUNS=N` more seeds than usual, here and in other tests.

use quayfs_background::checkpoint;
use quayfs_background::digest::digest_all;
use quayfs_blockdev::{AlignedBuf, BlockDevice};
use quayfs_crashsim::SimDevice;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, FallocMode, Fs};
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_oracle::apply::Outcome;
use quayfs_oracle::model::Model;
use quayfs_oracle::ops::{Op, Taste};
use quayfs_oracle::rng::Rng;
use quayfs_oracle::{Media, Shape, account, apply, dump, ops, options, quota, seeds};
use quayfs_pmem::{Backend, Region};
use std::sync::Arc;

/// How one run is set up.
#[derive(Clone, Debug)]
struct Setup {
    options: MountOptions,
    backend: Backend,
    shape: Shape,
    taste: Taste,
    steps: usize,
    /// Blocks that a file takes before anything else.
    hog: u64,
    /// No operation may fail for lack of space.
    roomy: bool,
}

impl Setup {
    fn new(text: &str) -> Self {
        Self {
            options: options(text),
            backend: Backend::Volatile,
            shape: Shape::SMALL,
            taste: Taste {
                names: 14,
                blocks: 1800,
                write: 20,
                xattr: 3000,
                inodes: 60,
                wild: true,
                quiet: true,
                limits: false,
            },
            steps: 3000,
            hog: 0,
            roomy: true,
        }
    }
}

/// A mount, its model, and what happened so far.
struct Run<'a> {
    setup: &'a Setup,
    media: Media,
    fs: Arc<Fs>,
    model: Model,
    seed: u64,
    done: Vec<Op>,
    total: Totals,
}

/// What the engine has done over all mounts of a run: a test that never gets to a round tests none.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    rounds: u64,
    swapped: u64,
    direct: u64,
    zeroed: u64,
    shortages: u64,
    /// How often the record lanes and the slot rings went around, about.
    lane_laps: u64,
    slot_laps: u64,
    log_bytes: u64,
    slots: u64,
    /// Operations that a limit was in the way of.
    refused: u64,
}

impl Totals {
    fn add(&mut self, fs: &Fs, shape: &Shape) {
        let (m, j) = (fs.e.metrics.snapshot(), fs.e.journal.stats());
        self.rounds += m.rounds;
        self.swapped += m.blocks_swapped;
        self.direct += m.blocks_direct;
        self.zeroed += m.blocks_zeroed;
        self.shortages += m.shortages;
        self.log_bytes += j.append_bytes;
        self.slots += m.blocks_staged;
        self.lane_laps = self.log_bytes / (shape.lane * shape.buffers);
        self.slot_laps = self.slots / (shape.slots * shape.buffers);
    }
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let media = Media::new(&setup.shape, setup.backend);
        let fs = mount(setup, &media);
        let (model, total) = (Model::new(), Totals::default());
        Self {
            setup,
            media,
            fs,
            model,
            seed,
            done: Vec::new(),
            total,
        }
    }

    fn fail(&self, what: &str) -> ! {
        let from = self.done.len().saturating_sub(12);
        let last: Vec<String> = self.done[from..].iter().map(|o| format!("{o:?}")).collect();
        panic!(
            "seed {}, after {} operations, {}:\n{what}\nthe last ones:\n{}",
            self.seed,
            self.done.len(),
            self.setup.options,
            last.join("\n")
        );
    }

    fn step(&mut self, op: Op) {
        self.done.push(op);
        let op = &self.done[self.done.len() - 1];
        match apply::both(&self.fs, &mut self.model, op, !self.setup.roomy) {
            Ok(outcome) => self.total.refused += u64::from(outcome == Outcome::Refused),
            Err(e) => self.fail(&e),
        }
    }

    fn dump(&self) -> dump::Tree {
        match dump::dump(&self.fs, self.fs.root()) {
            Ok(t) => t,
            Err(e) => self.fail(&format!("the tree cannot be read: {e}")),
        }
    }

    fn compare(&self) -> dump::Tree {
        let got = self.dump();
        if let Some(d) = dump::difference(&got, &dump::expected(&self.model)) {
            self.fail(&d);
        }
        let limits = quota::limits(&self.fs);
        if limits != self.model.limits {
            self.fail(&format!(
                "limits are {limits:?}, should be {:?}",
                self.model.limits
            ));
        }
        got
    }

    /// Ends the mount as `end` does and mounts again: nothing but lookup counts is lost.
    fn remount(&mut self, end: impl FnOnce(&Fs)) {
        let before = self.compare();
        end(&self.fs);
        self.total.add(&self.fs, &self.setup.shape);
        if let Err(e) = self.media.fsck() {
            self.fail(&e);
        }
        self.model.forget_all();
        self.fs = mount(self.setup, &self.media);
        let mut after = self.compare();
        // Reading may have set access times.
        for (path, i) in &mut after {
            if let (Some(a), Some(b)) = (&mut i.identity, &before[path].identity) {
                a.2[0] = b.2[0];
            }
        }
        if let Some(d) = dump::difference(&after, &before) {
            self.fail(&format!("after a remount: {d}"));
        }
    }

    fn account(&self) {
        account::finish_background(&self.fs);
        if let Err(e) = account::check(&self.fs, &self.model) {
            self.fail(&e);
        }
    }

    fn hog(&mut self) {
        let (dir, name) = (self.model.root, ops::Name::from("hog"));
        let mode = FallocMode::Allocate { keep_size: true };
        self.step(Op::Create {
            dir,
            name,
            mode: S_IFREG,
            rdev: 0,
            by: (0, 0),
            umask: 0,
            target: 0,
        });
        let ino = self.model.child(dir, b"hog").unwrap_or_default();
        self.step(Op::Fallocate {
            ino,
            mode,
            offset: 0,
            len: self.setup.hog * BLOCK as u64,
        });
    }

    /// Deletes everything; then everything is free.
    fn delete_all(&mut self) {
        // Some may still be immutable: what is random may end anywhere.
        let flagged = self.model.nodes.iter().filter(|(_, n)| n.flags != 0);
        let flagged: Vec<_> = flagged.map(|(ino, _)| *ino).collect();
        let plain = |ino| Op::SetFlags { ino, flags: 0 };
        flagged.into_iter().for_each(|ino| self.step(plain(ino)));
        let mut dirs = vec![self.model.root];
        let mut order = Vec::new();
        while let Some(dir) = dirs.pop() {
            for (name, child) in &self.model.nodes[&dir].entries {
                let want_dir = self.model.nodes[child].is_dir();
                order.push(Op::Remove {
                    dir,
                    name: ops::Name(name.clone()),
                    want_dir,
                });
                if want_dir {
                    dirs.push(*child);
                }
            }
        }
        order.into_iter().rev().for_each(|op| self.step(op));
        let known: Vec<_> = self.model.nodes.keys().copied().collect();
        known
            .into_iter()
            .for_each(|ino| self.step(Op::Forget { ino }));
        assert_eq!(self.model.nodes.len(), 1);
    }
}

fn mount(setup: &Setup, media: &Media) -> Arc<Fs> {
    if setup.taste.quiet {
        media.mount_quiet(&setup.options)
    } else {
        media.mount(&setup.options)
    }
}

fn clean(fs: &Fs) {
    fs.shutdown().expect("shutdown");
}

/// What is acknowledged and committed survives the daemon.
fn death(fs: &Fs) {
    fs.sync_all().expect("sync");
    fs.abandon();
}

fn run(setup: &Setup, seed: u64) -> Totals {
    let mut rng = Rng::new(seed);
    let mut run = Run::new(setup, seed);
    let free = run.fs.statfs().free;
    if setup.hog > 0 {
        run.hog();
    }
    for i in 1..=setup.steps {
        let op = ops::random(&mut rng, &run.model, &setup.taste);
        run.step(op);
        if i % 400 == 0 {
            match rng.below(4) {
                0 => run.remount(clean),
                1 | 2 => run.remount(death),
                _ => drop(run.compare()),
            }
            if setup.taste.quiet {
                run.account();
            }
        }
    }
    run.remount(death);
    run.delete_all();
    if !setup.taste.quiet {
        run.fs.finish_chores();
        run.fs.abandon();
    }
    run.account();
    assert_eq!(run.fs.statfs().free, free, "seed {seed}");
    run.remount(clean);
    run.fs.abandon();
    assert_eq!(run.fs.statfs().free, free, "seed {seed}");
    run.total
}

/// Runs some seeds; every one must have got somewhere.
fn run_all(setup: &Setup, first: u64, usual: u64, enough: impl Fn(&Totals) -> bool) {
    for seed in seeds(first, usual) {
        let total = run(setup, seed);
        assert!(
            enough(&total) && total.rounds > 0 && total.zeroed > 0,
            "seed {seed}: {total:?}"
        );
    }
}

#[test]
fn journal_op() {
    let around = |t: &Totals| t.slot_laps > 2 && t.lane_laps > 1;
    run_all(&Setup::new("noatime"), 1000, 4, around);
    // Attributes of any size need longer records.
    let mut setup = Setup::new("noatime");
    setup.shape.lane = 1 << 20;
    setup.taste.xattr = 66_000;
    run_all(&setup, 1100, 3, |t| t.slot_laps > 2);
}

/// Limits of projects come, go and are met all the time.
#[test]
fn limits_of_projects() {
    let modes = [
        "noatime",
        "durability=commit,data=ordered",
        "checkpoint=swap,data=writeback",
    ];
    for (first, text) in (1200..).step_by(100).zip(modes) {
        let mut setup = Setup::new(text);
        setup.taste.limits = true;
        setup.taste.blocks = 400;
        setup.taste.wild = false;
        run_all(&setup, first, 3, |t| t.refused > 5);
    }
}

#[test]
fn journal_op_swap() {
    let swaps = |t: &Totals| t.swapped > 500 && t.slot_laps > 2;
    run_all(&Setup::new("checkpoint=swap"), 2000, 4, swaps);
}

#[test]
fn journal_op_in_place() {
    let setup = Setup::new("noatime,checkpoint=inplace,ablation=staging:central");
    run_all(&setup, 3000, 4, |t| t.swapped == 0 && t.lane_laps > 1);
}

#[test]
fn journal_op_double() {
    run_all(&Setup::new("checkpoint=double"), 3500, 2, |t| {
        t.swapped == 0 && t.slot_laps > 2
    });
}

/// Of each block that a round has moved, the device holds as many copies as the policy has written.
#[test]
fn double_writes_everything_twice() {
    for (policy, copies) in [("inplace", 1), ("double", 2)] {
        for blocks in [1, 20] {
            let (pmem, data) = (16 << 20, 64 << 20);
            let region = Arc::new(Region::anonymous(pmem));
            let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(data / 4096));
            let geometry = Geometry::compute(pmem, data, 1).unwrap();
            quayfs_mkfs::format(&region, &*device, geometry, "copies").unwrap();
            let volume =
                Volume::from_parts(region, Arc::clone(&device), Access::ReadWrite).unwrap();
            let options = MountOptions::parse(&[&format!("checkpoint={policy}")]).unwrap();
            let fs = Fs::mount_quiet(volume, &options).unwrap();
            let by = Caller {
                uid: 0,
                gid: 0,
                umask: 0,
            };
            let file = fs.mknod(by, ROOT, b"file", S_IFREG | 0o644, 0).unwrap();
            for n in 0..blocks {
                fs.write(file.ino, n * 4096, &[0xa5; 4096], false).unwrap();
            }
            digest_all(&fs.e).unwrap();
            assert_eq!(checkpoint::round(&fs.e).unwrap().written, blocks);
            let copied = fs.e.metrics.snapshot().blocks_copied;
            assert_eq!(copied, (copies - 1) * blocks, "{policy}, {blocks}");
            let mut block = AlignedBuf::new(4096);
            let found = (0..data / 4096).filter(|&n| {
                device.read(n, &mut block).unwrap();
                block.iter().all(|b| *b == 0xa5)
            });
            assert_eq!(found.count() as u64, copies * blocks, "{policy}, {blocks}");
        }
    }
}

/// What a commit covers is on the data device when it returns, and without the switch it is not.
#[test]
fn records_go_to_the_device() {
    for (switch, found) in [
        ("ablation=nodelog:ssd", true),
        ("ablation=workers:1", false),
    ] {
        let (pmem, data) = (16 << 20, 64 << 20);
        let region = Arc::new(Region::anonymous(pmem));
        let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(data / 4096));
        let geometry = Geometry::compute(pmem, data, 1).unwrap();
        quayfs_mkfs::format(&region, &*device, geometry, "nodes").unwrap();
        let volume = Volume::from_parts(region, Arc::clone(&device), Access::ReadWrite).unwrap();
        let options = MountOptions::parse(&["data=ordered", switch]).unwrap();
        let fs = Fs::mount_quiet(volume, &options).unwrap();
        let by = Caller {
            uid: 0,
            gid: 0,
            umask: 0,
        };
        // More than the ring holds.
        for n in 0..700 {
            let name = format!("needle-{n:04}-{}", "x".repeat(200));
            let file = fs.mknod(by, ROOT, name.as_bytes(), S_IFREG | 0o644, 0);
            if n % 100 == 99 {
                fs.fsync(file.unwrap().ino).unwrap();
            }
        }
        fs.mknod(by, ROOT, b"needle-not-committed", S_IFREG | 0o644, 0)
            .unwrap();
        let mut block = AlignedBuf::new(4096);
        let all: Vec<u8> = (0..data / 4096)
            .flat_map(|n| {
                device.read(n, &mut block).unwrap();
                block.to_vec()
            })
            .collect();
        let has = |what: &[u8]| all.windows(what.len()).any(|w| w == what);
        assert_eq!(has(b"needle-0699-"), found, "{switch}");
        assert!(!has(b"needle-not-committed"), "{switch}");
        let logged = fs.e.metrics.snapshot().blocks_logged;
        assert_eq!(logged > 0, found, "{switch}: {logged}");
        fs.shutdown().unwrap();
    }
}

#[test]
fn journal_commit() {
    let setup = Setup {
        backend: Backend::File,
        ..Setup::new("noatime,durability=commit")
    };
    run_all(&setup, 4000, 4, |t| t.slot_laps > 2 && t.lane_laps > 1);
}

#[test]
fn ordered() {
    run_all(&Setup::new("noatime,data=ordered"), 5000, 4, |t| {
        t.direct > 500
    });
}

#[test]
fn writeback() {
    let setup = Setup {
        backend: Backend::File,
        ..Setup::new("noatime,data=writeback")
    };
    run_all(&setup, 6000, 4, |t| t.direct > 500);
}

/// With the threads of a real mount.
#[test]
fn with_background_threads() {
    let mut setup = Setup::new("noatime");
    setup.taste.quiet = false;
    run_all(&setup, 7000, 2, |t| t.slot_laps > 2);
    setup.options = options("data=ordered,ablation=locking:file");
    run_all(&setup, 7100, 2, |t| t.direct > 500);
    setup.options = options("durability=commit,checkpoint=swap");
    run_all(&setup, 7200, 2, |t| t.swapped > 100);
}

/// Several groups of LBNs, and rounds that the page-table log bounds.
#[test]
fn large_device_small_page_table_log() {
    let mut setup = Setup::new("noatime,checkpoint=swap");
    setup.shape.l2p_entries = 100;
    // What is free lies on both sides of the border between two groups.
    setup.shape.blocks = 33_500;
    setup.hog = 31_500;
    setup.taste.blocks = setup.hog + 900;
    run_all(&setup, 8000, 2, |t| t.swapped > 500);
}

/// Buffers that are formatted, some of them used, and one.
#[test]
fn more_and_fewer_buffers() {
    let mut setup = Setup::new("noatime");
    (setup.shape.buffers, setup.shape.slots) = (5, 40);
    run_all(&setup, 8100, 1, |t| t.slot_laps > 2);
    setup.options = options("noatime,buffers=2");
    run_all(&setup, 8200, 1, |t| t.slot_laps > 2);
    setup.shape.buffers = 1;
    run_all(&setup, 8300, 1, |t| t.slot_laps > 2);
}

/// Where space ends all the time: an operation that finds none has no effect.
#[test]
fn near_full() {
    for (first, text) in [(9000, "noatime"), (9100, "noatime,data=ordered")] {
        let mut setup = Setup::new(text);
        setup.shape.blocks = 700;
        setup.shape.nodes = 160;
        setup.taste.blocks = 10_000;
        setup.taste.inodes = 400;
        // Operations of several records stop in between.
        setup.taste.wild = false;
        setup.taste.write = 13;
        setup.roomy = false;
        run_all(&setup, first, 2, |t| t.shortages > 50);
    }
}
