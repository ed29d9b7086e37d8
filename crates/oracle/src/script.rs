//! A recorded run of one thread.
//!
//! A [`Script`] carries out operations on a recorded volume and notes the tree after each. It marks
//! in the recording when an operation begins and when it is acknowledged as durable. For each image
//! that a crash may leave, the volume is recovered and the tree looked for among those between the
//! last acknowledged operation and the last begun one.

mod death;
mod judge;

use std::sync::Arc;

use quayfs_background::checkpoint::{self, Reach};
use quayfs_background::digest;
use quayfs_crashsim::Recorder;
use quayfs_fs::{Caller, FallocMode, Fs, Subject};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_pmem::Backend;
use quayfs_restart::{Postings, Requests};
use quayfs_store::error::FsError;

use crate::apply::Outcome;
use crate::crash::{Depth, explore};
use crate::dump::{self, Tree};
use crate::model::Model;
use crate::ops::{Data, Name, Op, Taste, random};
use crate::quota::{self, AllLimits};
use crate::rng::Rng;
use crate::{Media, Shape, apply};

/// Bit of a mark that says that an operation was acknowledged, not begun.
const ACKNOWLEDGED: u64 = 1 << 40;

/// Mark of a mount that has ended as it should: the volume says so until the next one begins.
const ENDED: u64 = 1 << 41;

/// Mark of the next mount.
const BEGINS: u64 = 1 << 42;

/// What random programs do.
const TASTE: Taste = Taste {
    names: 5,
    blocks: 40,
    write: 3,
    xattr: 300,
    inodes: 10,
    wild: false,
    quiet: true,
    limits: false,
};

/// What may be found.
struct State {
    tree: Tree,
    limits: AllLimits,
}

/// A recorded run.
pub struct Script {
    pub fs: Arc<Fs>,
    pub recorder: Recorder,
    options: MountOptions,
    model: Model,
    /// What there is after each operation; the first one is that before any.
    states: Vec<State>,
    /// Hashes of their trees.
    hashes: Vec<u64>,
    /// Whether an operation is durable when it returns.
    durable: bool,
    name: String,
    seed: u64,
    /// The models of what the death of the daemon may leave: since the last time that all was durable.
    models: Vec<Model>,
    /// What has been begun and has not returned, in the order in which it arrives.
    begun: Vec<Op>,
    /// How many events after [`Script::start_here`] the daemon shall die.
    dies: Option<usize>,
    /// After its death the mount goes on: what has returned is there, and a request whose answer is missing is known to
    /// have been carried out, or not.
    goes_on: bool,
    requests: Arc<Requests>,
    postings: Arc<Postings>,
    /// Large writes that were on their way when daemons died.
    pub under_way: usize,
    /// Operations that a limit was in the way of.
    pub refusals: u64,
    /// Requests so far.
    asked: u64,
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
        recorder.start_here();
        let model = Model::new();
        let mut script = Self {
            durable: fs.sync_is_free(),
            states: Vec::new(),
            hashes: Vec::new(),
            name: format!("{name}, {options}"),
            options: options.clone(),
            seed: 1,
            models: Vec::new(),
            begun: Vec::new(),
            dies: None,
            goes_on: false,
            requests: Arc::new(Requests::new().expect("memory")),
            postings: Postings::new().expect("memory"),
            under_way: 0,
            refusals: 0,
            asked: 0,
            orphan: 0,
            fs,
            recorder,
            model,
        };
        script.note();
        script
    }

    /// From here on the mount goes on when its daemon dies, and large writes are on their way for as long as they can be.
    pub fn go_on(&mut self) {
        self.goes_on = true;
        self.fs.e.behind.outlive(Arc::clone(&self.postings));
        self.fs.e.behind.postpone();
    }

    /// The tree is as it may be found from here on.
    fn note(&mut self) {
        let tree = dump::expected(&self.model);
        self.hashes.push(dump::hash(&tree));
        let limits = self.model.limits.clone();
        self.states.push(State { tree, limits });
        self.models.push(self.model.clone());
    }

    /// Everything so far is durable, on this machine at least: no death goes back behind it.
    fn durable_so_far(&mut self) {
        self.models.drain(..self.models.len() - 1);
        self.recorder.mark(ACKNOWLEDGED | self.state());
    }

    /// Forgets what led to the present, durable state: crashes are simulated from here on.
    pub fn start_here(&mut self) {
        self.fs.sync_all().expect("sync");
        self.recorder.start_here();
        self.states.clear();
        self.hashes.clear();
        self.models.clear();
        self.note();
        if let Some(events) = self.dies {
            self.recorder.die_after(events);
        }
    }

    /// Number of the last request. No other has it: what is left of one that was carried out long ago says so still.
    fn request(&self) -> u64 {
        2 * self.asked
    }

    /// Number of the present state.
    pub fn state(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    /// Carries out an operation that succeeds, or fails as it must, in one record.
    pub fn op(&mut self, op: Op) {
        self.op_in(op, 1);
    }

    fn op_in(&mut self, op: Op, records: u64) {
        self.recorder.mark(self.state() + records);
        self.asked += 1;
        self.begun = vec![op.clone()];
        let outcome = {
            let _under_way = self
                .requests
                .begin(self.request(), quayfs_restart::Outcome::default());
            apply::both(&self.fs, &mut self.model, &op, false)
        };
        let outcome = outcome.unwrap_or_else(|e| panic!("{}: {e}", self.name));
        self.refusals += u64::from(outcome == Outcome::Refused);
        self.begun.clear();
        self.note();
        // Limits are durable when they are set, with all that was done before.
        let commits = matches!(&op, Op::SetQuota(set) if set.subject != Subject::default());
        if self.durable || commits {
            self.durable_so_far();
        }
    }

    /// Carries out random operations, some of which the background does.
    pub fn random(&mut self, seed: u64, steps: usize) {
        let mut rng = Rng::new(seed);
        for _ in 0..steps {
            let taste = Taste {
                limits: true,
                ..TASTE
            };
            let op = random(&mut rng, &self.model, &taste);
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

    /// Waits for everything so far to be durable. Whose `fsync` that is does not matter.
    pub fn sync(&mut self) {
        self.fs.fsync(ROOT).expect("fsync");
        self.durable_so_far();
    }

    /// A commit that nothing has asked for. Power may still take data (`data=writeback`).
    pub fn commit(&mut self) {
        self.aside(|fs| fs.e.commit().expect("commit"));
        if !self.lossy() {
            self.durable_so_far();
        }
    }

    pub fn digest(&mut self) {
        self.aside(|fs| digest::digest_all(&fs.e).expect("digest"));
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

    /// A round of the older half; returns how many blocks it wrote.
    pub fn room(&mut self) -> u64 {
        self.aside(|fs| {
            checkpoint::round_of(&fs.e, Reach::Older)
                .expect("round")
                .written
        })
    }

    pub fn trim(&mut self) {
        self.aside(|fs| fs.trim(Caller::default(), apply::EVERYTHING).expect("trim"));
    }

    /// Puts free blocks in order; returns how many LBNs own another block.
    pub fn gather(&mut self) -> u64 {
        self.aside(|fs| checkpoint::gather(&fs.e, usize::MAX).expect("gather"))
    }

    pub fn zero(&mut self) {
        self.aside(|fs| checkpoint::zero_freed(&fs.e).expect("zeroing pass"));
    }

    /// Everything that happens in the background.
    pub fn background(&mut self) {
        self.sync();
        self.digest();
        self.round();
        self.zero();
    }

    /// Ends the mount.
    pub fn end(&mut self) {
        self.fs.shutdown().expect("shutdown");
        self.durable_so_far();
        self.recorder.mark(ENDED);
    }

    /// The same, and what is staged stays so where it may.
    pub fn end_leaving_staged(&mut self) {
        self.fs.shutdown_leaving_staged().expect("shutdown");
        self.durable_so_far();
        self.recorder.mark(ENDED);
    }

    /// Ends the mount and begins another one, both recorded.
    pub fn remount(&mut self, clean: bool, options: &MountOptions) {
        match clean {
            true => self.end(),
            false => self.sync(),
        }
        self.begin(options);
    }

    /// Begins another mount after the end of the last one, recorded.
    pub fn begin(&mut self, options: &MountOptions) {
        self.recorder.mark(BEGINS);
        let (region, device) = (self.recorder.region(), self.recorder.device());
        self.fs = Media { region, device }.mount_quiet(options);
        if self.goes_on {
            self.go_on();
        }
        self.model.forget_all();
        self.options = options.clone();
        self.durable = self.fs.sync_is_free();
        self.name = format!("{}, then {options}", self.name);
    }

    pub fn file(&mut self, dir: Ino, name: &str) -> Ino {
        self.create(dir, name, S_IFREG | 0o644, 0)
    }

    /// A file without a name, open.
    pub fn tmpfile(&mut self, dir: Ino) -> Ino {
        let before: Vec<Ino> = self.model.nodes.keys().copied().collect();
        self.op(Op::Tmpfile {
            dir,
            mode: 0o640,
            umask: 0,
            by: (3, 4),
        });
        let made = |ino: &&Ino| !before.contains(*ino);
        self.model
            .nodes
            .keys()
            .find(made)
            .copied()
            .unwrap_or_default()
    }

    pub fn create(&mut self, dir: Ino, name: &str, mode: u32, target: usize) -> Ino {
        self.op(Op::Create {
            dir,
            name: name.into(),
            mode,
            rdev: 0,
            by: (0, 0),
            umask: 0,
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
            let half = |mode| Op::Fallocate {
                ino,
                mode,
                offset,
                len,
            };
            self.begun = halves.map(half).to_vec();
            let got = self.fs.fallocate(ino, mode, offset, len);
            for mode in halves {
                if got == Err(FsError::Quota) && mode != FallocMode::Punch {
                    let due = quota::due(&self.fs, &self.model, &half(mode));
                    due.unwrap_or_else(|e| panic!("{}: {e}", self.name));
                    self.refusals += 1;
                } else {
                    let want = self.model.fallocate(ino, mode, offset, len);
                    let got = got.clone().or_else(|e| match e {
                        FsError::Quota => Ok(()),
                        e => Err(e),
                    });
                    assert_eq!(got, want, "{}: fallocate of {ino}", self.name);
                }
                self.note();
            }
            self.begun.clear();
            if self.durable {
                self.durable_so_far();
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

    /// Looks at the crashes of the whole run.
    pub fn explore(self, depth: &Depth) {
        explore(&self, depth);
    }
}
