//! What a crash may leave of what several threads did.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use quayfs_crashsim::{CrashImage, Trace};
use quayfs_fs::Fs;
use quayfs_layout::inode::ROOT;
use quayfs_store::error::FsError;

use super::worker::{Mark, State, Worker, decode, own};
use super::{PART, Pair, Shared};
use crate::Media;
use crate::crash::{Depth, Run};
use crate::dump::{self, difference};
use crate::quota;

impl Run for Pair {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorded()
    }

    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = Media {
            region: Arc::new(image.region()),
            device: Arc::new(image.device()),
        };
        if n.is_multiple_of(depth.fsck) {
            media.fsck()?;
        }
        let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
        let found = self.judge(&fs, image.acked())?;
        if n.is_multiple_of(depth.used) {
            fs.shutdown().map_err(|e| e.to_string())?;
            media.fsck()?;
            let fs = Fs::mount_quiet(media.volume(), &self.options).map_err(|e| e.to_string())?;
            self.judge(&fs, image.acked())?;
        }
        Ok(found)
    }
}

impl Pair {
    /// Which states are there, as a number.
    fn judge(&self, fs: &Fs, marks: &[u64]) -> Result<u64, String> {
        let found = states(fs, &self.workers, self.shared, |w| w.allowed(marks))?;
        let chosen = agree(&found, marks)?;
        // They charge the same projects, users and groups.
        let all = dump::dump(fs, ROOT).map_err(|e| format!("cannot be read: {e}"))?;
        quota::check(fs, &all)?;
        let number = |sum: u64, state: &usize| sum.wrapping_mul(1_000_003) + *state as u64;
        Ok(chosen.iter().fold(0, number))
    }
}

/// Which of the allowed states are there, for each thread.
pub(super) fn states(
    fs: &Fs,
    workers: &[Worker],
    shared: Shared,
    allowed: impl Fn(&Worker) -> RangeInclusive<usize>,
) -> Result<Vec<Vec<usize>>, String> {
    let names =
        names(fs, shared).map_err(|e| format!("the shared directories cannot be read: {e}"))?;
    let found = |w: &Worker| w.found(fs, shared.file, &names, &allowed(w));
    workers.iter().map(found).collect()
}

/// The names of all threads in the shared directories.
fn names(fs: &Fs, shared: Shared) -> Result<BTreeSet<(usize, String)>, FsError> {
    let mut names = BTreeSet::new();
    for (at, dir) in shared.dirs.iter().enumerate() {
        fs.readdir(*dir, 0, |e| {
            names.insert((at, String::from_utf8_lossy(&e.name).into_owned()));
            true
        })?;
    }
    names.retain(|(_, name)| !name.starts_with('.'));
    Ok(names)
}

impl Worker {
    /// The states that a crash with these marks may leave.
    fn allowed(&self, marks: &[u64]) -> RangeInclusive<usize> {
        let most = |wanted| {
            let mine = marks.iter().map(|m| decode(*m));
            mine.filter(|(thread, mark, _)| *thread == self.number && *mark == wanted)
                .map(|(_, _, state)| state)
                .max()
                .unwrap_or(0)
        };
        let low = most(Mark::Durable);
        low..=most(Mark::Begun).clamp(low, self.states.len() - 1)
    }

    /// Those of the allowed states that are there, the last one first: operations that change
    /// nothing leave several.
    fn found(
        &self,
        fs: &Fs,
        shared: u64,
        names: &BTreeSet<(usize, String)>,
        allowed: &RangeInclusive<usize>,
    ) -> Result<Vec<usize>, String> {
        let read = |e| format!("thread {}: cannot be read: {e}", self.number);
        let tree = own(dump::dump(fs, self.dir).map_err(read)?);
        let part = fs
            .read(shared, self.number * PART, PART as usize)
            .map_err(read)?;
        let prefix = self.name(0).trim_end_matches('0').to_owned();
        let names: BTreeSet<_> = names
            .iter()
            .filter(|(_, name)| name.starts_with(&prefix))
            .cloned()
            .collect();
        let wrong = |s: &State| {
            let want = s.names.iter().map(|(dir, n)| (*dir, self.name(*n)));
            let want: BTreeSet<_> = want.collect();
            if let Some(d) = difference(&tree, &s.tree) {
                Some(d.to_string())
            } else if s.part != part {
                Some("its part of the shared file".into())
            } else if want != names {
                Some(format!("names {names:?} instead of {want:?}"))
            } else {
                None
            }
        };
        let mut why = Vec::new();
        let mut found = Vec::new();
        for k in allowed.clone().rev() {
            match wrong(&self.states[k]) {
                None => found.push(k),
                Some(d) => why.push(format!("state {k}: {d}")),
            }
        }
        if found.is_empty() {
            let (low, high) = (allowed.start(), allowed.end());
            let (n, why) = (self.number, why.join("\n"));
            return Err(format!("thread {n}, states {low} to {high}:\n{why}"));
        }
        Ok(found)
    }
}

/// Chooses for each thread one of the states found, such that with each operation all are there that
/// had returned before it began. There is a choice of the latest ones if there is any.
fn agree(found: &[Vec<usize>], marks: &[u64]) -> Result<Vec<usize>, String> {
    let marks: Vec<_> = marks.iter().map(|m| decode(*m)).collect();
    let mut at = vec![0; found.len()];
    'again: loop {
        let chosen: Vec<usize> = at.iter().zip(found).map(|(i, f)| f[*i]).collect();
        for (thread, state) in chosen.iter().enumerate() {
            let begun = (thread as u64, Mark::Begun, *state);
            let Some(begun) = marks.iter().position(|m| *m == begun) else {
                continue;
            };
            for (other, mark, returned) in &marks[..begun] {
                if *mark == Mark::Begun || chosen[*other as usize] >= *returned {
                    continue;
                }
                at[thread] += 1;
                if at[thread] == found[thread].len() {
                    return Err(format!(
                        "operation {state} of thread {thread} is there, but not operation \
                         {returned} of thread {other}, which had returned before that one began"
                    ));
                }
                continue 'again;
            }
        }
        return Ok(chosen);
    }
}

#[cfg(test)]
mod tests {
    use super::super::worker::encode;
    use super::*;

    #[test]
    fn what_had_returned_before_must_be_there_too() {
        let marks = [
            encode(0, Mark::Begun, 1),
            encode(0, Mark::Returned, 1),
            encode(1, Mark::Begun, 1),
        ];
        assert_eq!(agree(&[vec![1], vec![1]], &marks), Ok(vec![1, 1]));
        assert_eq!(agree(&[vec![1], vec![0]], &marks), Ok(vec![1, 0]));
        assert!(agree(&[vec![0], vec![1]], &marks).is_err());
        // An operation that changes nothing may as well not have been there.
        assert_eq!(agree(&[vec![0], vec![1, 0]], &marks), Ok(vec![0, 0]));
        // Those that ran at once may come in any order.
        assert_eq!(agree(&[vec![0], vec![1]], &marks[2..]), Ok(vec![0, 1]));
    }
}
