//! Runs whose every crash is looked at.
//!
//! A [`Script`] carries out operations on a recorded volume and notes the tree after each. It marks
//! in the recording when an operation begins and when it is acknowledged as durable. For each image
//! that a crash may leave, [`Script::explore`] recovers the volume and looks for the tree among
//! those between the last acknowledged operation and the last begun one.

use std::ops::RangeInclusive;
use std::sync::Arc;

use quayfs::config::MountOptions;
use quayfs::fs::{Caller, FallocMode, Fs};
use quayfs::{background, checkpoint};
use quayfs_crashsim::{Budget, CrashImage, Died, Recorder, Trace};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_pmem::Backend;

use crate::dump::{self, Tree, difference};
use crate::model::Model;
use crate::ops::{Data, Name, Op, Taste, random};
use crate::rng::{Rng, bytes};
use crate::{Media, Shape, account, apply};

/// Bit of a mark that says that an operation was acknowledged, not begun.
const ACKNOWLEDGED: u64 = 1 << 40;

/// What random programs do.
const TASTE: Taste = Taste {
    names: 5,
    blocks: 40,
    write: 3,
    xattr: 300,
    inodes: 10,
    wild: false,
    quiet: true,
};

/// How much of what is possible is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Of each crash.
    pub budget: Budget,
    /// Of every so many images one is checked by fsck before it is recovered.
    pub fsck: u64,
    /// Of every so many images one is used after recovery: written to, checkpointed, mounted again.
    pub used: u64,
    /// Of every so many images one sees the crashes of its recovery.
    pub again: u64,
    /// Images that are looked at, at most about; others are left out at random.
    pub most: u64,
}

impl Depth {
    /// For runs of some hundred events.
    pub const USUAL: Self = Self {
        budget: Budget {
            exhaustive: 64,
            picks: 6,
            random: 8,
            seed: 1,
        },
        fsck: 9,
        used: 13,
        again: 97,
        most: 6000,
    };
    /// For recoveries that have much to do: most of them are interrupted.
    pub const RECOVERY: Self = Self {
        again: 4,
        ..Self::USUAL
    };
}

/// A recorded run whose crashes can be judged.
pub trait Run {
    /// What ran.
    fn name(&self) -> &str;

    /// What was recorded.
    fn trace(&self) -> Trace;

    /// Recovers from what a crash has left, the `n`th that is looked at, and says what is wrong with
    /// the result, or else which of the trees that may be there was there, as a number.
    fn look(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String>;
}

/// Looks at the crashes of a run; panics at the first after which something is wrong.
pub fn explore(run: &dyn Run, depth: &Depth) {
    let trace = run.trace();
    let total = trace.explore(&depth.budget).count() as u64;
    let mut rng = Rng::new(total);
    let mut n = 0;
    for image in trace.explore(&depth.budget) {
        if total > depth.most && rng.below(total) >= depth.most {
            continue;
        }
        n += 1;
        if let Err(e) = run.look(&image, n, depth) {
            panic!("{}: {e}\n{image}", run.name());
        }
    }
    assert!(n > 0);
    eprintln!("{}: {n} of {total} images", run.name());
}

/// A recorded run.
pub struct Script {
    pub fs: Arc<Fs>,
    pub recorder: Recorder,
    options: MountOptions,
    model: Model,
    /// Trees in the order of operations; the first one is that before any.
    states: Vec<Tree>,
    /// Their hashes.
    hashes: Vec<u64>,
    /// Whether an operation is durable when it returns.
    durable: bool,
    name: String,
    seed: u64,
    /// The inode that [`crate::search::alphabet::prepare`] leaves open and without a name.
    pub orphan: Ino,
}

impl Script {
    /// Makes a volume and mounts it; nothing of that is recorded.
    pub fn new(name: &str, shape: &Shape, backend: Backend, options: &MountOptions) -> Self {
        let geometry = shape.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
        let media = Media::format(recorder.region(), recorder.device(), geometry);
        let fs = media.mount_quiet(options);
        recorder.settle();
        let model = Model::new();
        let mut script = Self {
            durable: fs.sync_is_free(),
            states: Vec::new(),
            hashes: Vec::new(),
            name: format!("{name}, {options}"),
            options: options.clone(),
            seed: 1,
            orphan: 0,
            fs,
            recorder,
            model,
        };
        script.note();
        script
    }

    /// The tree is as it may be found from here on.
    fn note(&mut self) {
        let tree = dump::expected(&self.model);
        self.hashes.push(dump::hash(&tree));
        self.states.push(tree);
    }

    /// Forgets what led to the present, durable state: crashes are simulated from here on.
    pub fn settle(&mut self) {
        self.fs.sync_all().expect("sync");
        self.recorder.settle();
        self.states.clear();
        self.hashes.clear();
        self.note();
    }

    /// Number of the present state.
    pub fn state(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    /// Carries out an operation that succeeds, in one record.
    pub fn op(&mut self, op: Op) {
        self.op_in(op, 1);
    }

    fn op_in(&mut self, op: Op, records: u64) {
        self.recorder.mark(self.state() + records);
        if let Err(e) = apply::both(&self.fs, &mut self.model, &op, false) {
            panic!("{}: {e}", self.name);
        }
        self.note();
        if self.durable {
            self.recorder.mark(ACKNOWLEDGED | self.state());
        }
    }

    /// Carries out random operations, some of which the background does.
    pub fn random(&mut self, seed: u64, steps: usize) {
        let mut rng = Rng::new(seed);
        for _ in 0..steps {
            let op = random(&mut rng, &self.model, &TASTE);
            self.op(op);
            if rng.one_in(9) {
                self.sync();
            }
        }
    }

    /// How the volume is mounted.
    pub fn options(&self) -> MountOptions {
        self.options.clone()
    }

    /// The inode that a name in a directory stands for.
    pub fn child(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.model.child(dir, name.as_bytes())
    }

    /// Size of a file in bytes.
    pub fn size(&self, ino: Ino) -> u64 {
        self.model.nodes.get(&ino).map_or(0, |n| n.content.size)
    }

    /// Waits for everything so far to be durable.
    pub fn sync(&mut self) {
        self.fs.sync_all().expect("sync");
        self.recorder.mark(ACKNOWLEDGED | self.state());
    }

    pub fn digest(&mut self) {
        self.aside(|fs| background::digest_all(&fs.e).expect("digest"));
    }

    /// Work of the background is done by threads of its own, whose fences settle nothing that the
    /// threads of operations have stored, nor the other way round.
    fn aside<T: Send>(&self, work: impl FnOnce(&Fs) -> T + Send) -> T {
        let fs = &*self.fs;
        std::thread::scope(|s| s.spawn(|| work(fs)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A round; returns how many slots it retired.
    pub fn round(&mut self) -> u64 {
        self.aside(|fs| checkpoint::round(&fs.e).expect("round").slots)
    }

    pub fn zero(&mut self) {
        self.aside(|fs| checkpoint::zero_batch(&fs.e).expect("zero batch"));
    }

    /// Everything that happens in the background.
    pub fn background(&mut self) {
        self.sync();
        self.digest();
        self.round();
        self.zero();
    }

    /// Carries out random operations until the daemon dies in the middle of one, and mounts again. The
    /// machine goes on, so what was in flight then still is.
    pub fn killed(&mut self, seed: u64, steps: u64) {
        let mut rng = Rng::new(seed);
        // What came before is durable: no death goes back behind it.
        self.sync();
        let mut models = vec![self.model.clone()];
        let moment = self.recorder.len() as u64 + 1 + rng.below(steps * 8);
        self.recorder.die_after(moment as usize);
        let mut last = None;
        for _ in 0..steps {
            let op = random(&mut rng, &self.model, &TASTE);
            self.recorder.mark(self.state() + 1);
            let (fs, model) = (&self.fs, &mut self.model);
            // Operations and the background alike: a thread of its own, whose fences are its own.
            let done =
                std::thread::scope(|s| s.spawn(|| apply::both(fs, model, &op, false)).join());
            match done {
                Ok(Ok(())) => {}
                Ok(Err(e)) => panic!("{}: {e}", self.name),
                Err(panic) if panic.is::<Died>() => {
                    last = Some(op);
                    break;
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
            self.note();
            models.push(self.model.clone());
            if self.durable {
                self.recorder.mark(ACKNOWLEDGED | self.state());
            }
        }
        self.recorder.revive();
        self.reborn(&models, last.as_ref());
    }

    /// Mounts what a death has left, and goes on from the state that is found.
    fn reborn(&mut self, models: &[Model], last: Option<&Op>) {
        let (region, device) = (self.recorder.region(), self.recorder.device());
        let next = Media { region, device }.mount_quiet(&self.options);
        // The dead do not tidy up.
        std::mem::forget(std::mem::replace(&mut self.fs, next));
        let tree = dump::dump(&self.fs, ROOT).expect("the tree can be read");
        let mut after = models.last().expect("a state").clone();
        if let Some(op) = last {
            let ino = match op {
                Op::Create { dir, name, .. } => self.fs.lookup(*dir, &name.0).ok().map(|a| a.ino),
                _ => None,
            };
            let _ = apply::on_model(&mut after, op, ino, self.fs.request_max() as u64);
        }
        let found = std::iter::once(&after)
            .chain(models.iter().rev())
            .find(|m| difference(&tree, &dump::expected(m)).is_none());
        let Some(found) = found else {
            panic!("{}: after a death in {last:?} no state is there", self.name);
        };
        self.model = found.clone();
        self.note();
        self.model.forget_all();
        // Recovery has made durable what it found.
        self.recorder.mark(self.state());
        self.recorder.mark(ACKNOWLEDGED | self.state());
    }

    /// Ends the mount and begins another one, both recorded.
    pub fn remount(&mut self, clean: bool, options: &MountOptions) {
        if clean {
            self.fs.shutdown().expect("shutdown");
        } else {
            self.sync();
        }
        self.recorder.mark(ACKNOWLEDGED | self.state());
        let (region, device) = (self.recorder.region(), self.recorder.device());
        self.fs = Media { region, device }.mount_quiet(options);
        self.model.forget_all();
        self.options = options.clone();
        self.durable = self.fs.sync_is_free();
        self.name = format!("{}, then {options}", self.name);
    }

    pub fn file(&mut self, dir: Ino, name: &str) -> Ino {
        self.create(dir, name, S_IFREG | 0o644, 0)
    }

    pub fn create(&mut self, dir: Ino, name: &str, mode: u32, target: usize) -> Ino {
        self.op(Op::Create {
            dir,
            name: name.into(),
            mode,
            rdev: 0,
            by: (0, 0),
            target,
        });
        self.model.child(dir, name.as_bytes()).unwrap_or_default()
    }

    /// Writes `len` bytes that nothing else ever wrote.
    pub fn write(&mut self, ino: Ino, offset: u64, len: usize) {
        self.seed += 1;
        self.op(Op::Write {
            ino,
            offset,
            data: Data {
                seed: self.seed,
                len,
            },
            kill: false,
        });
    }

    pub fn truncate(&mut self, ino: Ino, size: u64) {
        self.op(Op::Truncate {
            ino,
            size,
            kill: false,
        });
    }

    pub fn fallocate(&mut self, ino: Ino, mode: FallocMode, offset: u64, len: u64) {
        if let FallocMode::Zero { keep_size } = mode {
            // Two records, and what is between them can be seen.
            self.recorder.mark(self.state() + 2);
            let halves = [FallocMode::Punch, FallocMode::Allocate { keep_size }];
            let got = self.fs.fallocate(ino, mode, offset, len);
            for half in halves {
                let want = self.model.fallocate(ino, half, offset, len);
                assert_eq!(got, want, "{}: fallocate of {ino}", self.name);
                self.note();
            }
            if self.durable {
                self.recorder.mark(ACKNOWLEDGED | self.state());
            }
        } else {
            self.op(Op::Fallocate {
                ino,
                mode,
                offset,
                len,
            });
        }
    }

    pub fn remove(&mut self, dir: Ino, name: &str) {
        let child = self.model.child(dir, name.as_bytes());
        let want_dir = child.is_some_and(|c| self.model.nodes[&c].is_dir());
        self.op(Op::Remove {
            dir,
            name: name.into(),
            want_dir,
        });
    }

    /// The kernel forgets an inode; without a name it is freed.
    pub fn forget(&mut self, ino: Ino) {
        self.op(Op::Forget { ino });
    }

    pub fn name(&self, name: &str) -> Name {
        name.into()
    }

    /// Which states a crash with these marks may leave.
    fn allowed(&self, marks: &[u64]) -> RangeInclusive<usize> {
        let most = |ack: bool| {
            let of = marks.iter().filter(|m| (**m & ACKNOWLEDGED != 0) == ack);
            of.map(|m| m & !ACKNOWLEDGED).max().unwrap_or(0) as usize
        };
        most(true)..=most(false).max(most(true)).min(self.states.len() - 1)
    }

    /// Looks at the crashes of the whole run.
    pub fn explore(self, depth: &Depth) {
        explore(&self, depth);
    }

    /// Mounts and finds out which state the tree is.
    fn recover(
        &self,
        media: &Media,
        allowed: RangeInclusive<usize>,
    ) -> Result<(Arc<Fs>, usize), String> {
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let tree = dump::dump(&fs, ROOT).map_err(|e| format!("the tree cannot be read: {e}"))?;
        let mut why = Vec::new();
        // A later state is likelier: what was begun mostly arrived.
        for k in allowed.clone().rev() {
            match difference(&tree, &self.states[k]) {
                None => return Ok((fs, k)),
                Some(d) => why.push(format!("state {k}: {d}")),
            }
        }
        let other = (0..self.states.len()).find(|k| difference(&tree, &self.states[*k]).is_none());
        Err(format!(
            "none of the states {allowed:?}, but {other:?}:\n{}",
            why.join("\n")
        ))
    }

    /// Uses a recovered volume for everything once, and mounts it again.
    fn used(&self, media: &Media, fs: Arc<Fs>, found: usize) -> Result<(), String> {
        let step = |what: &'static str| move |e| format!("after recovery, {what}: {e}");
        let me = Caller::default();
        let content = bytes(99, 2 * BLOCK + 100);
        let file = fs
            .mknod(me, ROOT, b"after", S_IFREG, 0)
            .map_err(step("mknod"))?
            .ino;
        let get = |fs: &Fs, ino| -> Result<(), String> {
            let got = fs.read(ino, 0, 3 * BLOCK).map_err(step("read"))?;
            if got == content {
                Ok(())
            } else {
                Err("what was written after recovery is gone".into())
            }
        };
        fs.write(file, 0, &content, false).map_err(step("write"))?;
        get(&fs, file)?;
        fs.sync_all().map_err(step("sync"))?;
        background::digest_all(&fs.e).map_err(step("digest"))?;
        checkpoint::round(&fs.e).map_err(step("round"))?;
        checkpoint::zero_batch(&fs.e).map_err(step("zero batch"))?;
        get(&fs, file)?;
        fs.abandon();
        drop(fs);
        media.fsck()?;
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let file = fs.lookup(ROOT, b"after").map_err(step("lookup"))?.ino;
        get(&fs, file)?;
        fs.unlink(ROOT, b"after").map_err(step("unlink"))?;
        fs.forget(file, 1);
        let tree = dump::dump(&fs, ROOT).map_err(step("reading the tree"))?;
        if let Some(d) = difference(&tree, &self.states[found]) {
            return Err(format!("after use: {d}"));
        }
        account::settle(&fs);
        account::check(&fs, &files(&tree))?;
        fs.shutdown().map_err(step("shutdown"))?;
        media.fsck()
    }

    /// Crashes during recovery, which finds the same state again.
    fn crash_again(&self, image: &CrashImage, found: usize) -> Result<(), String> {
        let recorder = image.restart();
        let media = Media {
            region: recorder.region(),
            device: recorder.device(),
        };
        drop(Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?);
        let budget = Budget {
            exhaustive: 6,
            picks: 2,
            random: 2,
            seed: 1,
        };
        for (n, second) in recorder.trace().explore(&budget).enumerate() {
            let media = media_of(&second);
            let told = |e: String| format!("{e}\nin recovery, {second}");
            if n % 23 == 0 {
                media.fsck().map_err(told)?;
            }
            self.recover(&media, found..=found).map_err(told)?;
        }
        Ok(())
    }
}

impl Run for Script {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn look(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = media_of(image);
        if n.is_multiple_of(depth.fsck) {
            media.fsck()?;
        }
        let (fs, found) = self.recover(&media, self.allowed(image.acked()))?;
        if n.is_multiple_of(depth.used) {
            self.used(&media, fs, found)?;
        }
        if n.is_multiple_of(depth.again) {
            self.crash_again(image, found)?;
        }
        Ok(self.hashes[found])
    }
}

fn media_of(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

/// As much of a model as the accounts need.
fn files(tree: &Tree) -> Model {
    let mut m = Model {
        root: ROOT,
        nodes: Default::default(),
    };
    for item in tree.values().filter(|i| i.mode & 0o170_000 == S_IFREG) {
        if let Some((ino, _, _)) = item.identity {
            let mut node = crate::model::Node {
                mode: item.mode,
                ..Default::default()
            };
            node.content.mapped = item.mapped.clone();
            m.nodes.insert(ino, node);
        }
    }
    m
}
