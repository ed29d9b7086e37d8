//! Deaths of the daemon while the machine goes on: what was in flight then still is, and the next
//! mount reads it.

use quayfs_fs::{FallocMode, Fs};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::ROOT;
use quayfs_restart::{Postings, WHOLE};

use super::{ACKNOWLEDGED, BEGINS, Script, TASTE};
use crate::dump::{self, difference};
use crate::model::Model;
use crate::ops::{Op, random};
use crate::quota;
use crate::rng::Rng;
use crate::{Media, apply};

impl Script {
    /// Carries out random operations until the daemon dies in the middle of one, and mounts again.
    pub fn killed(&mut self, seed: u64, steps: u64) {
        let mut rng = Rng::new(seed);
        self.sync();
        // Where the mount goes on, blocks come to belong to others in between, whose content is newer.
        let busy = self.goes_on;
        let events = if busy { steps * 40 } else { steps * 8 };
        let moment = self.recorder.len() as u64 + 1 + rng.below(events);
        self.recorder.die_after(moment as usize);
        self.outlived(|s| {
            for _ in 0..steps {
                let op = random(&mut rng, &s.model, &TASTE);
                s.op(op);
                if busy && rng.one_in(4) {
                    s.background();
                }
            }
        });
    }

    /// Carries out `work`, of which the daemon dies after so many events, counted from where `work`
    /// calls [`Script::start_here`]. Then it is mounted again and everything is used. Only crashes after the
    /// death are of interest.
    pub fn dies(&mut self, events: usize, work: impl FnOnce(&mut Self) + Send) {
        self.dies = Some(events);
        self.outlived(work);
        self.afterlife();
        self.end();
    }

    /// Carries out `work` in a thread of its own, whose fences settle nothing for threads that come
    /// after it. If the daemon has not died by the end of `work`, it dies then.
    fn outlived(&mut self, work: impl FnOnce(&mut Self) + Send) {
        let done = std::thread::scope(|s| s.spawn(|| work(&mut *self)).join());
        if let Err(panic) = done
            && !self.recorder.has_died()
        {
            std::panic::resume_unwind(panic);
        }
        self.recorder.revive();
        if self.dies.take().is_some() {
            self.recorder.crash_from_here();
        }
        self.recorder.mark(BEGINS);
        self.reborn();
    }

    /// Mounts what a death has left, and goes on from the state that is found.
    fn reborn(&mut self) {
        let (region, device) = (self.recorder.region(), self.recorder.device());
        let media = Media { region, device };
        let next = match self.goes_on {
            true => {
                // As another process sees it.
                let left = || self.postings.file().try_clone().and_then(Postings::left);
                self.under_way += left()
                    .and_then(|left| left.left_over())
                    .expect("memory")
                    .len();
                self.postings = left().expect("memory");
                media.mount_after((&self.requests, &self.postings), &self.options)
            }
            false => media.mount_quiet(&self.options),
        };
        // The dead do not tidy up.
        std::mem::forget(std::mem::replace(&mut self.fs, next));
        let tree = dump::dump(&self.fs, ROOT).expect("the tree can be read");
        let mut possible = match self.goes_on {
            true => vec![self.model.clone()],
            false => self.models.clone(),
        };
        for op in std::mem::take(&mut self.begun) {
            let mut after = possible.last().expect("a state").clone();
            let ino = made(&self.fs, &op);
            let _ = apply::on_model(&mut after, &op, ino, self.fs.request_max() as u64);
            possible.push(after);
        }
        let limits = quota::limits(&self.fs);
        let is_there =
            |m: &&Model| m.limits == limits && difference(&tree, &dump::expected(m)).is_none();
        let Some(found) = possible.iter().rev().find(is_there) else {
            panic!("{}: after a death no state is there", self.name);
        };
        if self.goes_on {
            self.judge_request(&possible);
        }
        self.model = found.clone();
        self.models.clear();
        self.note();
        self.model.forget_all();
        // Recovery has made durable what it found.
        self.recorder.mark(self.state());
        self.recorder.mark(ACKNOWLEDGED | self.state());
    }

    /// Whether the request under way at the death counts as carried out if it is, and not if it is not. `possible`: the
    /// state before it, and that after it if there was one.
    fn judge_request(&self, possible: &[Model]) {
        let tree = |m: &Model| (dump::hash(&dump::expected(m)), m.limits.clone());
        let [before, after] = possible else {
            return;
        };
        let is_found = |m: &Model| {
            let found = dump::dump(&self.fs, ROOT).expect("the tree can be read");
            (dump::hash(&found), quota::limits(&self.fs)) == tree(m)
        };
        let whole = self
            .requests
            .outcome(self.request())
            .is_some_and(|o| o.progress == WHOLE);
        let is_right = match whole {
            true => is_found(after),
            // Changes of several records, which can be begun anew, may have come to their end.
            false => tree(before) == tree(after) || is_found(before) || is_found(after),
        };
        assert!(
            is_right,
            "{}: a request counts as carried out, and is not",
            self.name
        );
    }

    /// Uses what another mount has left: free blocks above all, which have to read as zeros.
    fn afterlife(&mut self) {
        let b = BLOCK as u64;
        let file = self.file(ROOT, "afterlife");
        let grow = FallocMode::Allocate { keep_size: false };
        // What is left is for use after a crash: a few blocks, and those that are kept for removing files.
        // A volume without more than that is not written to.
        let free = self.fs.statfs().free.saturating_sub(20).min(64);
        for at in (0..free).step_by(6) {
            self.fallocate(file, grow, at * b, 6.min(free - at) * b);
        }
        if free > 0 {
            self.write(file, b + 9, BLOCK);
        }
        self.background();
        self.remove(ROOT, "afterlife");
        self.forget(file);
        self.background();
    }
}

/// The inode that an operation has made, if it has arrived.
fn made(fs: &Fs, op: &Op) -> Option<quayfs_layout::Ino> {
    match op {
        Op::Create { dir, name, .. } => fs.lookup(*dir, &name.0).ok().map(|a| a.ino),
        op => apply::whiteout(fs, op),
    }
}
