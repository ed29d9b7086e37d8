//! What recovery survives without a word and what is damage all the same: spare copies in the L2P
//! log, and slots for which a record vouches. Read from the media as they are, before recovery
//! writes any of it again.

use std::ops::Range;

use quayfs_journal::Scan;
use quayfs_layout::LINE;
use quayfs_layout::bytes::get_u64;
use quayfs_layout::jsb::{SeqWord, WordKind};
use quayfs_layout::l2p::{
    COMMIT_AT, Entry, SPARE_AT, START_AT, START_BYTES, Start, UNDO_BYTES, Undo, decode_commit,
    lane_off, lane_records,
};
use quayfs_layout::node::nat_decode;
use quayfs_layout::slot::{SLOT_HEADER_BYTES, committed};
use rangemap::RangeSet;

use super::media::Media;
use super::{Area, Check};

/// The page-table log as it lies on the medium.
pub(super) struct L2pLog {
    pub(super) commit: Option<u64>,
    pub(super) spare: Option<u64>,
    pub(super) starts: [Option<Start>; 2],
}

impl L2pLog {
    pub(super) fn read(media: &Media) -> Self {
        let off = media.geo.l2p_log_off;
        let word = |at| decode_commit(media.region.load_u64(off + at), media.salt);
        let start = |at| {
            let mut b = [0; START_BYTES];
            media.region.read(off + at, &mut b);
            Start::decode(&b, media.salt)
        };
        Self {
            commit: word(COMMIT_AT),
            spare: word(SPARE_AT),
            starts: START_AT.map(start),
        }
    }

    /// The transaction that is not finished, if its start can be read.
    pub(super) fn open(&self) -> Option<Start> {
        let last = self.commit.or(self.spare).unwrap_or(0);
        let starts = self.starts.into_iter().flatten();
        starts
            .max_by_key(|s| s.generation)
            .filter(|s| s.generation > last)
    }
}

/// Where the undo records of a transaction lie, with their lane and index.
pub(super) fn undo_places(media: &Media, start: &Start) -> Vec<(u64, u32, u64)> {
    let g = &media.geo;
    let fits = (1..=lane_records(g.l2p_lane_bytes)).contains(&start.per_lane)
        && start.records <= start.per_lane * g.l2p_lanes;
    if !fits {
        return Vec::new();
    }
    let place = |n: u64| {
        let (lane, index) = ((n / start.per_lane) as u32, n % start.per_lane);
        let off = g.l2p_log_off + lane_off(lane, g.l2p_lane_bytes) + index * UNDO_BYTES as u64;
        (off, lane, index)
    };
    (0..start.records).map(place).collect()
}

/// The undo record at a place of [`undo_places`], if it is one of `generation`.
pub(super) fn undo_at(
    media: &Media,
    (off, lane, index): (u64, u32, u64),
    generation: u64,
) -> Option<Undo> {
    let mut b = [0; UNDO_BYTES];
    media.region.read(off, &mut b);
    Undo::decode(&b, lane, index, media.salt)
        .filter(|u| u.generation == generation && u.lbn < media.geo.blocks)
}

/// Whether the map has been changed under this transaction, which happens only when all of its log
/// is durable.
fn touched(media: &Media, start: &Start) -> bool {
    let g = &media.geo;
    let inside = |off: u64| {
        off.checked_add(8)
            .is_some_and(|end| end <= media.region.len())
    };
    // A forged record may name any offset; attaching does not restore such a word.
    let word = start
        .word
        .filter(|w| w.off.is_multiple_of(8) && inside(w.off));
    word.is_some_and(|w| media.region.load_u64(w.off) != w.value)
        || undo_places(media, start)
            .into_iter()
            .filter_map(|place| undo_at(media, place, start.generation))
            .any(|u| media.region.load_u64(g.l2p_map_off + u.lbn * 8) != u.entry)
}

/// Checks what attaching does not need.
pub(super) fn l2p_log(media: &Media, c: &mut Check) {
    let log = L2pLog::read(media);
    match (log.commit, log.spare) {
        // That the commit word is damaged is said by attaching.
        (Some(_), None) => c.findings.warning(
            Area::PageTable,
            "the log: the spare copy of its commit word fails the check",
        ),
        (Some(commit), Some(spare)) if spare > commit => {
            let what = format_args!(
                "the log: transaction {commit} is the last one finished, its spare copy says {spare}"
            );
            c.findings.error(Area::PageTable, what);
        }
        _ => {}
    }
    if let Some(start) = log.open() {
        undone(media, &start, c);
    }
    if let Some(start) = log.open()
        && log.starts[0] != log.starts[1]
        && touched(media, &start)
    {
        let what = format_args!(
            "the log: one of the two start records of transaction {} is damaged",
            start.generation
        );
        c.findings.warning(Area::PageTable, what);
    }
}

/// Words that the next attach restores, so that what they hold now is never read.
fn undone(media: &Media, start: &Start, c: &mut Check) {
    let (g, salt) = (&media.geo, media.salt);
    let retired = g.jsb_off + WordKind::Retired.offset();
    let word = media.region.load_u64(retired);
    if start.word.is_some_and(|w| w.off == retired)
        && SeqWord::decode(word, WordKind::Retired.salt(salt)).is_none()
    {
        let what =
            "journal superblock: the Retired word fails its check; the log has the one before it";
        c.findings.warning(Area::Journal, what);
    }
    for place in undo_places(media, start) {
        if let Some(u) = undo_at(media, place, start.generation)
            && Entry::decode(
                media.region.load_u64(g.l2p_map_off + u.lbn * 8),
                u.lbn,
                salt,
            )
            .is_none()
        {
            let what = format_args!(
                "the entry of LBN {} is damaged; the log has the one before it",
                u.lbn
            );
            c.findings.warning(Area::PageTable, what);
        }
    }
}

/// Checks slots that are live whatever they say, because a record says it better.
pub(super) fn vouched_slots(media: &Media, scan: &Scan, c: &mut Check) {
    if scan.repairs() > 0 {
        let what = format_args!(
            "{} slot headers fail their check; records vouch for these slots, and the next mount writes the headers again",
            scan.repairs()
        );
        c.findings.warning(Area::Journal, what);
    }
    for run in scan.records.iter().flat_map(|r| &r.runs) {
        for pos in run.pos..run.pos.saturating_add(run.blocks.len() as u64) {
            let index = pos % media.geo.slots_per_buffer;
            if u64::from(run.buffer) < media.geo.buffers && !word_is_sound(media, run.buffer, index)
            {
                let what = format_args!(
                    "staging buffer {}, slot {index}: its committed word fails the check; a record vouches for the slot",
                    run.buffer
                );
                c.findings.warning(Area::Journal, what);
            }
        }
    }
}

/// Nodes whose NAT entries fail their check.
pub(super) fn lost_entries(media: &Media) -> RangeSet<u64> {
    let g = &media.geo;
    let mut lost = RangeSet::new();
    let each = |ids: Range<u64>, words: Option<&[u8]>| {
        let Some(words) = words else {
            // An entry is never all zeros.
            lost.insert(ids);
            return;
        };
        for (id, word) in ids.zip(words.chunks_exact(8)) {
            if nat_decode(id as u32, get_u64(word, 0), media.salt).is_none() {
                lost.insert(id..id + 1);
            }
        }
    };
    media.region.table(g.nat_off, g.nat_entries, 8, each);
    lost
}

fn word_is_sound(media: &Media, buffer: u16, index: u64) -> bool {
    let g = &media.geo;
    let place = u64::from(buffer) * g.slots_per_buffer + index;
    let mut b = [0; SLOT_HEADER_BYTES];
    media
        .region
        .read(g.slot_hdr_off + place * LINE as u64, &mut b);
    committed(&b, media.salt, buffer, index).is_some()
}
