//! Free numbers that are taken away for a while: nothing is made of them, and they go back with [`Allocator::release`].

use std::ops::Range;

use quayfs_layout::node::BITS_PER_PAGE;
use quayfs_sync::atomic::Ordering;

use super::{Allocator, Group, Screen};
use crate::error::Result;
use crate::ns::node::NodeStore;

impl Allocator {
    /// Takes numbers that are free and not reserved, in order from `from` on: at most `most`, and never more than
    /// half of them, so that others still get some. Groups that are not loaded ([`Allocator::load_all`]) are passed
    /// over. Also returns where to go on, which is the end if there is nothing more to take. What is taken goes back
    /// with [`Allocator::release`].
    pub fn take_free(&self, from: u64, most: u64) -> (Vec<Range<u64>>, u64) {
        let mut runs = Vec::new();
        let free = self.credits.load(Ordering::Acquire).max(0).cast_unsigned();
        let mut left = most.min(free.div_ceil(2));
        if left == 0 || self.groups.is_empty() || !self.reserve(left, 0) {
            return (runs, self.total);
        }
        let mut at = from;
        while left > 0 && at < self.total {
            let g = at / BITS_PER_PAGE;
            let end = self.total.min((g + 1) * BITS_PER_PAGE);
            let mut group = self.groups[g as usize].lock();
            match group.free.overlapping(&(at..end)).next().cloned() {
                Some(r) => {
                    let start = r.start.max(at);
                    let r = start..r.end.min(end).min(start.saturating_add(left));
                    left -= r.end - r.start;
                    at = r.end;
                    group.free.remove(r.clone());
                    runs.push(r);
                }
                None => at = end,
            }
        }
        self.unreserve(left);
        let next = if left == 0 { at } else { self.total };
        (runs, next)
    }

    /// Which numbers are free, at most so many: those that are allocated next, and then the others in order. Some may
    /// be allocated by the time this returns.
    pub fn free_runs(
        &self,
        most: u64,
        store: &NodeStore,
        screen: &dyn Screen,
    ) -> Result<Vec<Range<u64>>> {
        let (mut runs, mut left) = (Vec::new(), most);
        if self.groups.is_empty() {
            return Ok(runs);
        }
        let cursor = self.cursor.load(Ordering::Relaxed).min(self.total);
        for window in [cursor..self.total, 0..cursor] {
            let mut at = window.start;
            while left > 0 && at < window.end {
                let end = window.end.min((at / BITS_PER_PAGE + 1) * BITS_PER_PAGE);
                let g = at / BITS_PER_PAGE;
                let mut group = self.groups[g as usize].lock();
                self.load(g, &mut group, store, screen)?;
                for r in group.free.overlapping(&(at..end)) {
                    let start = r.start.max(at);
                    let r = start..r.end.min(end).min(start.saturating_add(left));
                    left -= r.end - r.start;
                    if !r.is_empty() {
                        runs.push(r);
                    }
                }
                at = end;
            }
        }
        Ok(runs)
    }

    /// Takes those of these numbers, which are in order, that are free and not reserved. Returns them.
    pub fn take_these(&self, numbers: &[u64]) -> Vec<u64> {
        let end = numbers.partition_point(|n| *n < self.total);
        let numbers = &numbers[..end];
        let n = numbers.len() as u64;
        if self.groups.is_empty() || !self.reserve(n, 0) {
            return Vec::new();
        }
        let mut taken = Vec::with_capacity(numbers.len());
        for of_group in numbers.chunk_by(|a, b| a / BITS_PER_PAGE == b / BITS_PER_PAGE) {
            let mut group = self.groups[(of_group[0] / BITS_PER_PAGE) as usize].lock();
            let Group { free, .. } = &mut *group;
            for &number in of_group {
                if free.contains(&number) {
                    free.remove(number..number + 1);
                    taken.push(number);
                }
            }
        }
        self.unreserve(n - taken.len() as u64);
        taken
    }
}
