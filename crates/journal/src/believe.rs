//! Which commits recovery believes: a proposal, if all that it covers is there.
//!
//! A commit of one drain stores its number together with what it vouches for, and any of that may be missing after a
//! crash. It was proposed when the one before it was durable, so what *that* lacks is damage. Two places take turns:
//! of two proposals the higher one is the last.

use crate::error::{Damage, JournalError};
use crate::geometry::JournalGeometry;
use crate::superblock::Superblock;
use crate::walk::Walk;
use quayfs_layout::jsb::{PROPOSALS, WordKind};
use quayfs_layout::record::SlotRun;
use quayfs_layout::{BLOCK, Guard, checksum};
use quayfs_pmem::Region;
use std::ops::Range;

/// What the superblock says of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commits {
    /// Everything at or below is durable.
    pub(crate) durable: u64,
    /// The last proposal, or the same.
    pub(crate) newest: u64,
    /// Commits were proposed, which leaves slot headers out.
    proposed: bool,
}

impl Commits {
    /// There is no proposal.
    pub(crate) fn settled(commit_ts: u64) -> Self {
        Self {
            durable: commit_ts,
            newest: commit_ts,
            proposed: false,
        }
    }

    fn of(commit_ts: u64, proposals: &[u64]) -> Self {
        let newest = proposals.iter().copied().max().unwrap_or(0);
        let before = proposals.iter().copied().filter(|cut| *cut < newest);
        let durable = commit_ts.max(before.max().unwrap_or(0));
        Self {
            durable,
            newest: newest.max(durable),
            proposed: newest > 0,
        }
    }

    /// The numbers whose records nothing vouches for but themselves. What is digested was durable.
    pub(crate) fn unproven(&self, digested: u64) -> Range<u64> {
        let from = self.durable.max(digested) + 1;
        from..(self.newest + 1).max(from)
    }
}

/// The commits of the last life, as far as the words can be read: the others are added to `damage`.
///
/// # Errors
/// [`JournalError::Superblock`] if nothing can be said.
pub(crate) fn commits(
    jsb: &Superblock<'_>,
    damage: &mut Vec<Damage>,
) -> Result<Commits, JournalError> {
    let commit_ts = jsb.load(WordKind::CommitTs)?;
    let proposals: Vec<u64> = (0..PROPOSALS as u8)
        .map(|place| {
            jsb.load_proposal(place).unwrap_or_else(|_| {
                damage.push(Damage::Word(WordKind::Proposal(place)));
                0
            })
        })
        .collect();
    Ok(Commits::of(commit_ts, &proposals))
}

/// Whether the records of all these numbers were found, and the payloads that they name.
pub(crate) fn is_whole(
    region: &Region,
    geo: &JournalGeometry,
    walks: &[Walk],
    numbers: Range<u64>,
) -> bool {
    if !Guard::Proposal.stands() {
        return true;
    }
    let records = walks.iter().flat_map(|walk| &walk.records);
    let mut found: Vec<_> = records.filter(|r| numbers.contains(&r.seq)).collect();
    found.sort_by_key(|r| r.seq);
    found.iter().map(|r| r.seq).eq(numbers)
        && found
            .iter()
            .flat_map(|r| &r.runs)
            .all(|run| is_there(region, geo, run))
}

/// Whether what a run names has the content that it says.
pub(crate) fn is_there(region: &Region, geo: &JournalGeometry, run: &SlotRun) -> bool {
    // What names a buffer that does not exist is damage of another kind, which is reported with the slots.
    if u32::from(run.buffer) >= geo.buffers {
        return true;
    }
    let mut payload = [0; BLOCK];
    (run.pos..).zip(&run.blocks).all(|(pos, (_, crc))| {
        let index = pos % geo.slots_per_buffer;
        region.read(geo.payload(run.buffer, index), &mut payload);
        checksum::crc32c(&payload) == *crc
    })
}

/// The slots (buffer, position) whose headers may be missing: where commits were proposed, all that records name.
pub(crate) fn without_headers(commits: Commits, walks: &[Walk]) -> Vec<(u16, u64)> {
    let walks = walks.iter().filter(|_| commits.proposed);
    let runs = walks.flat_map(|walk| &walk.records).flat_map(|r| &r.runs);
    let slots = |run: &SlotRun| {
        let buffer = run.buffer;
        (run.pos..)
            .take(run.blocks.len())
            .map(move |pos| (buffer, pos))
    };
    runs.flat_map(slots).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_higher_proposal_is_the_last_and_says_that_the_lower_one_is_durable() {
        let of = |commit_ts, proposals: [u64; 2]| {
            let c = Commits::of(commit_ts, &proposals);
            (c.durable, c.newest)
        };
        assert_eq!(of(5, [0, 0]), (5, 5));
        // The first of an epoch.
        assert_eq!(of(5, [9, 0]), (5, 9));
        assert_eq!(of(5, [9, 12]), (9, 12));
        assert_eq!(of(9, [15, 12]), (12, 15));
        // A commit of two drains came after them.
        assert_eq!(of(20, [15, 12]), (20, 20));
        assert_eq!(Commits::of(9, &[15, 12]).unproven(0), 13..16);
        assert_eq!(Commits::of(9, &[15, 12]).unproven(14), 15..16);
        assert!(Commits::of(9, &[15, 12]).unproven(15).is_empty());
        assert!(Commits::settled(9).unproven(3).is_empty());
    }
}
