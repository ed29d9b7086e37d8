//! One life: the program on media of which one call fails, and what is there afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use quayfs_crashsim::{Fault, FaultOp, Repeat, Stall};
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_oracle::apply::{self, Told};
use quayfs_oracle::dump::{self, Tree};
use quayfs_oracle::model::Model;
use quayfs_oracle::ops::Op;
use quayfs_oracle::{Media, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

use super::media::{Base, Pair};
use super::program::{Act, Step};

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
pub const OPS: [FaultOp; 4] = [
    FaultOp::Read,
    FaultOp::Write,
    FaultOp::Flush,
    FaultOp::Discard,
];

/// How the volume is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub name: &'static str,
    pub options: &'static str,
    pub backend: Backend,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    Once,
    Short,
    NoSpace,
    Forever,
    Stall,
}

/// Where: the n-th call of a kind, counted from the first.
#[derive(Clone, Copy, Debug)]
pub enum Injection {
    Device(FaultOp, u64, Wrong),
    Drain(u64),
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub error: Option<FsError>,
    pub read_only: bool,
}

/// Calls made up to the end of a step: reads, writes, flushes, discards, drains.
pub type Calls = [u64; 5];

/// What another thread may look at while the life is held up.
#[derive(Default)]
pub struct Window {
    fs: Mutex<Option<Arc<Fs>>>,
    /// The program has ended.
    over: AtomicBool,
}

pub struct Life<'a> {
    mode: Mode,
    options: MountOptions,
    steps: &'a [Step],
    pair: Pair,
    window: &'a Window,
    fs: Option<Arc<Fs>>,
    model: Model,
    /// The trees that there have been, oldest first.
    history: Vec<Tree>,
    /// The oldest of them that may be left: the last one that was said to be durable.
    durable: usize,
    /// What an operation would have made of the tree that failed at the very end.
    maybe: Option<Tree>,
    armed: Option<FaultOp>,
}

fn arm(pair: &Pair, injection: Injection) -> Option<Arc<Stall>> {
    let eio = Fault::Errno(libc::EIO);
    let (op, nth, fault, repeat) = match injection {
        Injection::Drain(nth) => {
            pair.drains.fail(nth);
            return None;
        }
        Injection::Device(op, nth, Wrong::Stall) => return Some(pair.faults.stall(op, nth)),
        Injection::Device(op, nth, wrong) => match wrong {
            Wrong::Short => (op, nth, Fault::Short, Repeat::Once),
            Wrong::NoSpace => (op, nth, Fault::Errno(libc::ENOSPC), Repeat::Once),
            Wrong::Forever => (op, nth, eio, Repeat::Forever),
            _ => (op, nth, eio, Repeat::Once),
        },
    };
    pair.faults.fail(op, nth, fault, repeat);
    None
}

/// Lives with one fault, and checks all that must hold; how each step ended, and the calls made.
pub fn live(
    base: &Base,
    mode: Mode,
    steps: &[Step],
    injection: Option<Injection>,
) -> Vec<(End, Calls)> {
    let window = Window::default();
    let pair = Pair::new(base, mode.backend);
    let stall = injection.and_then(|i| arm(&pair, i));
    let life = Life::new(pair, mode, steps, &window, injection);
    let Some(stall) = stall else {
        return life.run();
    };
    let wake = Arc::clone(&stall);
    std::thread::scope(|s| {
        let window = &window;
        let life = s.spawn(move || {
            // Also when it panics: no thread may wait for a call that will never come.
            let _over = Over(window, wake);
            life.run()
        });
        assert!(
            stall.reached_unless(|| window.over.load(Ordering::Acquire)),
            "{injection:?}: never called"
        );
        let fs = window.fs.lock().clone();
        if let Some(fs) = fs {
            aside(&fs, mode);
        }
        stall.release();
        match life.join() {
            Ok(seen) => seen,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Calls made by the first mount, which is not part of the program: `recovery` is tried later.
pub fn at_first_mount(base: &Base, mode: Mode) -> Calls {
    let steps = [];
    let window = Window::default();
    let mut life = Life::new(Pair::new(base, mode.backend), mode, &steps, &window, None);
    life.mount().expect("mount");
    life.calls()
}

struct Over<'a>(&'a Window, Arc<Stall>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        self.1.look_again();
    }
}

/// What another thread can do while a call is held up: none of this may wait for that call.
fn aside(fs: &Fs, mode: Mode) {
    let new = fs.mknod(ME, ROOT, b"aside", S_IFREG, 0).expect("mknod");
    assert_eq!(fs.lookup(ROOT, b"aside").map(|a| a.ino), Ok(new.ino));
    if mode.options.contains("data=") {
        // Written directly: the held-up call may be just before it in the device.
        fs.getattr(new.ino).expect("getattr");
    } else {
        fs.write(new.ino, 0, b"cargo", false).expect("write");
        assert_eq!(fs.read(new.ino, 0, 9), Ok(b"cargo".to_vec()));
    }
    fs.unlink(ROOT, b"aside").expect("unlink");
    fs.forget(new.ino, 2);
    fs.status();
}

impl<'a> Life<'a> {
    fn new(
        pair: Pair,
        mode: Mode,
        steps: &'a [Step],
        window: &'a Window,
        injection: Option<Injection>,
    ) -> Self {
        Self {
            mode,
            options: options(mode.options),
            steps,
            pair,
            window,
            fs: None,
            model: Model::new(),
            history: vec![dump::expected(&Model::new())],
            durable: 0,
            maybe: None,
            armed: match injection {
                Some(Injection::Device(op, _, Wrong::Forever)) => Some(op),
                _ => None,
            },
        }
    }

    fn run(mut self) -> Vec<(End, Calls)> {
        self.mount().expect("the first mount");
        let mut seen = Vec::new();
        for i in 0..self.steps.len() {
            let error = self.step(i);
            if let Some(why) = error.as_ref().and_then(FsError::cause) {
                assert!(why.contains("os error"), "{}: no cause: {why}", self.what());
            }
            let read_only = self.fs.as_ref().is_some_and(|f| f.e.is_read_only());
            let dead = self.fs.is_none() && error.is_some();
            seen.push((End { error, read_only }, self.calls()));
            if read_only {
                self.stranded();
            }
            if read_only || dead {
                break;
            }
        }
        self.set_fs(None);
        self.afterwards();
        seen
    }

    fn calls(&self) -> Calls {
        let [r, w, f, d] = OPS.map(|op| self.pair.faults.calls(op));
        [r, w, f, d, self.pair.drains.count()]
    }

    fn set_fs(&mut self, fs: Option<Arc<Fs>>) {
        self.fs.clone_from(&fs);
        *self.window.fs.lock() = fs;
    }

    fn what(&self) -> String {
        format!("{:?}", self.mode)
    }

    fn mount(&mut self) -> Result<(), String> {
        let (region, device) = (
            Arc::clone(&self.pair.media.region),
            Arc::clone(&self.pair.media.device),
        );
        let volume = Volume::from_parts(region, device, Access::ReadWrite);
        let volume = volume.map_err(|e| e.to_string())?;
        let fs = Fs::mount_quiet(volume, &self.options).map_err(|e| e.to_string())?;
        self.set_fs(Some(fs));
        Ok(())
    }

    fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().expect("mounted")
    }

    /// One step; what went wrong.
    fn step(&mut self, i: usize) -> Option<FsError> {
        let steps = self.steps;
        let all = self.history.len() - 1;
        match &steps[i].act {
            Act::Op(make) => {
                let op = make(&self.model)?;
                return self.operation(&op);
            }
            Act::Sync => {
                let error = self.fs().sync_all().err();
                match error {
                    None => self.durable = all,
                    Some(_) => self.unchanged(None),
                }
                return error;
            }
            Act::ReadAll => match dump::dump(self.fs(), ROOT) {
                Ok(tree) => assert_eq!(dump::difference(&tree, &self.history[all]), None),
                Err(e) => {
                    self.unchanged(None);
                    return Some(e);
                }
            },
            Act::Unmount => {
                let fs = self.fs.take().expect("mounted");
                self.set_fs(None);
                let error = fs.shutdown().err();
                if error.is_none() {
                    self.durable = all;
                    self.model.forget_all();
                }
                return error;
            }
            Act::Kill => {
                self.fs().abandon();
                self.set_fs(None);
                self.model.forget_all();
            }
            Act::Mount => return self.remount(),
        }
        None
    }

    /// Mounts again; if that fails, once more on healed media.
    fn remount(&mut self) -> Option<FsError> {
        let error = self.mount().err().map(FsError::device);
        if error.is_some() {
            self.pair.heal();
            self.armed = None;
            self.mount().expect("a second try on healed media");
        }
        error
    }

    fn is_durable_at_once(&self) -> bool {
        self.fs().sync_is_free()
    }

    fn operation(&mut self, op: &Op) -> Option<FsError> {
        let got = apply::on_fs(self.fs(), &self.model, op);
        let ino = match (&got, op) {
            (Ok(Told::Attr { ino, .. }), Op::Create { .. } | Op::Tmpfile { .. }) => Some(*ino),
            (Err(_), Op::Create { .. } | Op::Tmpfile { .. }) => Some(u64::MAX),
            (_, op @ Op::Rename { .. }) => apply::whiteout(self.fs(), op),
            _ => None,
        };
        let mut after = self.model.clone();
        let max = self.fs().request_max() as u64;
        let want = apply::on_model(&mut after, op, ino, max);
        match got {
            Ok(told) => {
                assert_eq!(Ok(told), want, "{}: {op:?}", self.what());
                self.acknowledged(after);
                None
            }
            Err(error) => {
                assert!(want.is_ok(), "{}: {op:?}: {error}", self.what());
                self.unchanged(Some(after));
                Some(error)
            }
        }
    }

    fn acknowledged(&mut self, after: Model) {
        let tree = dump::expected(&after);
        self.model = after;
        if dump::difference(&tree, &self.history[self.history.len() - 1]).is_some() {
            self.history.push(tree);
        }
        if self.is_durable_at_once() {
            self.durable = self.history.len() - 1;
        }
    }

    /// Reads everything, whatever is to fail.
    fn look(&self) -> Result<Tree, FsError> {
        self.pair.faults.heal();
        let tree = dump::dump(self.fs(), ROOT);
        if let Some(op) = self.armed {
            let eio = Fault::Errno(libc::EIO);
            self.pair.faults.fail(op, 1, eio, Repeat::Forever);
        }
        tree
    }

    /// After an error everything is readable, and nothing has happened.
    fn unchanged(&mut self, failed: Option<Model>) {
        let tree = self.look().expect("dump");
        let now = self.history.last().expect("a tree");
        assert_eq!(dump::difference(&tree, now), None, "{}", self.what());
        if self.fs().e.is_read_only() {
            self.maybe = failed.map(|m| dump::expected(&m));
        }
    }

    /// Read-only for good: nothing can be changed, everything can be read, and unmounting works.
    fn stranded(&mut self) {
        let now = self.history.last().expect("a tree");
        let tree = self.look().expect("dump");
        assert_eq!(dump::difference(&tree, now), None, "{}", self.what());
        self.pair.faults.heal();
        let fs = self.fs();
        let refused = Some(FsError::ReadOnly);
        assert_eq!(fs.mkdir(ME, ROOT, b"no", 0o755).err(), refused);
        if let Some(ino) = self.model.child(ROOT, b"s") {
            assert_eq!(fs.write(ino, 0, b"x", false).err(), refused);
        }
        if !fs.sync_is_free() && self.durable + 1 < self.history.len() {
            assert!(fs.sync_all().is_err(), "{}: it pretends", self.what());
        }
        fs.shutdown().expect("shutdown");
    }

    /// What is there at the next mount, on media that work.
    fn afterwards(&mut self) {
        // With data=writeback a power failure may take data that was not synced.
        let power = !self.mode.options.contains("writeback");
        for (what, media) in self.pair.afterlives(power) {
            let what = format!("{}: {what}", self.what());
            media.fsck().unwrap_or_else(|e| panic!("{what}: {e}"));
            self.next_mount(&media, &what);
            media.fsck().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }

    fn next_mount(&self, media: &Media, what: &str) {
        let fs = media.mount_quiet(&self.options);
        let tree = dump::dump(&fs, ROOT).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut allowed = self.history[self.durable..].iter().chain(&self.maybe);
        let last = self.history.last().expect("a tree");
        assert!(
            allowed.any(|t| dump::difference(&tree, t).is_none()),
            "{what}: {:?}; of {} trees {} and later will do",
            dump::difference(&tree, last),
            self.history.len(),
            self.durable
        );
        fs.mkdir(ME, ROOT, b"new", 0o755).expect("mkdir");
        fs.shutdown().expect("shutdown");
    }
}
