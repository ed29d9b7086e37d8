//! Which commits recovery believes: a proposal, if all that it covers is there.
//!
//! A commit of one drain stores its number together with what it vouches for, and any of that may be missing after a
//! crash. With it, in the same sector, goes the number of the last commit that was durable then (`commit_ts`): what *that*
//! lacks is damage. One more commit may have been on its way, and is looked at if the last one is not whole.

use crate::error::{Damage, JournalError};
use crate::geometry::JournalGeometry;
use crate::superblock::Superblock;
use crate::walk::Walk;
use quayfs_layout::jsb::{PROPOSALS, WordKind};
use quayfs_layout::record::SlotRun;
use quayfs_layout::{BLOCK, Guard, checksum};
use quayfs_pmem::Region;
use smallvec::SmallVec;
use std::ops::Range;

/// What the superblock says of commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commits {
    /// Everything at or below is durable.
    pub(crate) durable: u64,
    /// Proposals that are not proven to be, the last one first.
    pub(crate) proposed: SmallVec<[u64; PROPOSALS]>,
    /// Commits were proposed, which leaves slot headers out.
    without_headers: bool,
}

impl Commits {
    /// There is no proposal.
    pub(crate) fn settled(commit_ts: u64) -> Self {
        Self::of(commit_ts, SmallVec::new())
    }

    fn of(commit_ts: u64, mut proposals: SmallVec<[u64; PROPOSALS]>) -> Self {
        let without_headers = proposals.iter().any(|cut| *cut > 0);
        proposals.retain(|cut| *cut > commit_ts);
        proposals.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            durable: commit_ts,
            proposed: proposals,
            without_headers,
        }
    }

    /// The numbers up to a proposal whose records nothing vouches for but themselves. What is digested was durable.
    pub(crate) fn unproven(&self, proposal: u64, digested: u64) -> Range<u64> {
        let from = self.durable.max(digested) + 1;
        from..(proposal + 1).max(from)
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
    let proposals = (0..PROPOSALS as u8)
        .map(|place| {
            jsb.load_proposal(place).unwrap_or_else(|_| {
                damage.push(Damage::Word(WordKind::Proposal(place)));
                0
            })
        })
        .collect();
    Ok(Commits::of(commit_ts, proposals))
}

/// The number of the commit that is believed, and what `walk` finds up to it: the last proposal that is whole, or else
/// what is durable. What that cuts off was never acknowledged.
pub(crate) fn walk_to_believed(
    region: &Region,
    geo: &JournalGeometry,
    commits: &Commits,
    digested: u64,
    walk: impl Fn(u64) -> Vec<Walk>,
) -> (u64, Vec<Walk>) {
    for &proposal in &commits.proposed {
        let walks = walk(proposal);
        let unproven = commits.unproven(proposal, digested);
        if is_whole(region, geo, &walks, unproven) {
            return (proposal, walks);
        }
    }
    (commits.durable, walk(commits.durable))
}

/// Whether the records of all these numbers were found, and the payloads that they name.
fn is_whole(region: &Region, geo: &JournalGeometry, walks: &[Walk], numbers: Range<u64>) -> bool {
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
pub(crate) fn without_headers(commits: &Commits, walks: &[Walk]) -> Vec<(u16, u64)> {
    let walks = walks.iter().filter(|_| commits.without_headers);
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
    fn proposals_above_the_durable_commit_are_looked_at_the_last_one_first() {
        let of = |commit_ts, proposals: [u64; 3]| {
            let c = Commits::of(commit_ts, proposals.into());
            assert_eq!(c.durable, commit_ts);
            c.proposed.to_vec()
        };
        assert_eq!(of(5, [0, 0, 0]), []);
        // The first of an epoch, alone and with a second one on its way.
        assert_eq!(of(5, [9, 0, 0]), [9]);
        assert_eq!(of(5, [9, 12, 0]), [12, 9]);
        assert_eq!(of(9, [9, 12, 0]), [12]);
        assert_eq!(of(12, [18, 12, 15]), [18, 15]);
        assert_eq!(of(15, [18, 12, 15]), [18]);
        // A commit of two drains came after them.
        assert_eq!(of(20, [15, 12, 18]), []);
        let c = Commits::of(9, [15, 12, 9].into());
        assert_eq!(c.unproven(15, 0), 10..16);
        assert_eq!(c.unproven(12, 11), 12..13);
        assert!(c.unproven(15, 15).is_empty());
        assert!(Commits::settled(9).unproven(9, 3).is_empty());
    }
}
