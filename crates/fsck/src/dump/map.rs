//! The page table, and what is free.

use std::ops::Range;

use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry};
use quayfs_layout::node::{self, BITS_PER_PAGE, NodeKind};

use super::nodes::{self, Look};
use super::{Fields, Lines, Shown, Window};
use crate::media::Media;

/// What entries that follow each other have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Zero,
    Written,
    Damaged,
}

/// Entries from `lbn` on, whose physical blocks follow each other as well.
struct Run {
    lbn: u64,
    pbn: u64,
    len: u64,
    state: State,
    /// Of the first one.
    crc: u32,
}

impl Run {
    fn takes(&self, pbn: u64, state: State) -> bool {
        state == self.state && (state == State::Damaged || pbn == self.pbn + self.len)
    }

    fn line(&self) -> Shown {
        match self.state {
            State::Zero => {
                shown!({ "lbn": self.lbn, "blocks": self.len, "state": "zero", "pbn": self.pbn })
            }
            State::Written => shown!({
                "lbn": self.lbn, "blocks": self.len, "state": "written", "pbn": self.pbn,
                "crc": (self.len == 1).then(|| format!("{:08x}", self.crc)),
            }),
            State::Damaged => shown!({ "lbn": self.lbn, "blocks": self.len, "state": "damaged" }),
        }
    }
}

/// Runs of entries from the first LBN of the window on.
pub(super) fn runs(media: &Media, window: Window) -> Fields {
    let g = &media.geo;
    let mut fields = vec![
        ("blocks", shown!(g.blocks)),
        ("spare_from", shown!(g.visible_blocks())),
    ];
    let mut lines = Lines::new(window);
    let mut run: Option<Run> = None;
    for lbn in window.first..g.blocks {
        let word = media.region.load_u64(g.l2p_map_off + lbn * ENTRY_BYTES);
        let (pbn, state) = match Entry::decode(word, lbn, media.salt) {
            None => (0, State::Damaged),
            Some(Entry { pbn, state }) => match state {
                BlockState::Zero => (pbn, State::Zero),
                BlockState::Written => (pbn, State::Written),
            },
        };
        match &mut run {
            Some(run) if run.takes(pbn, state) => run.len += 1,
            before => {
                let fits = before.take().is_none_or(|r| lines.push(r.lbn, r.line()));
                if !fits {
                    break;
                }
                *before = Some(Run {
                    lbn,
                    pbn,
                    len: 1,
                    state,
                    crc: media.region.load_u32(g.l2p_crc_off + lbn * CRC_BYTES),
                });
            }
        }
    }
    if let Some(run) = run {
        lines.push(run.lbn, run.line());
    }
    lines.finish("entries", &mut fields);
    fields
}

/// How much is free of everything that is allocated, and the runs of free LBNs.
pub(super) fn free(media: &Media, window: Window) -> Fields {
    let g = &media.geo;
    let used = nodes::pages_in_use(media);
    let mut fields = vec![
        ("node_pages", shown!(g.node_pages)),
        ("node_pages_free", shown!(g.node_pages.saturating_sub(used))),
    ];
    let mut damaged = Vec::new();
    let inodes = clear(media, g.ino_bitmap_base, g.inodes(), &mut damaged);
    let ids = clear(media, g.dyn_bitmap_base, g.dyn_nodes(), &mut damaged);
    let blocks = clear(media, g.lbn_bitmap_base, g.visible_blocks(), &mut damaged);
    let sum = |runs: &[Range<u64>]| runs.iter().map(|r| r.end - r.start).sum::<u64>();
    fields.extend([
        ("inodes", shown!(g.inodes())),
        ("inodes_free", shown!(sum(&inodes))),
        ("node_ids", shown!(g.dyn_nodes())),
        ("node_ids_free", shown!(sum(&ids))),
        ("blocks", shown!(g.visible_blocks())),
        ("blocks_free", shown!(sum(&blocks))),
        ("damaged_bitmaps", shown!(damaged)),
    ]);
    let mut lines = Lines::new(window);
    for run in blocks {
        let line = shown!({ "lbn": run.start, "blocks": run.end - run.start });
        if !lines.push(run.start, line) {
            break;
        }
    }
    lines.finish("free_blocks", &mut fields);
    fields
}

/// Runs of clear bits among the first `total`. Of a page that cannot be read none is taken for free.
fn clear(media: &Media, base: u64, total: u64, damaged: &mut Vec<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut add = |free: Range<u64>| match runs.last_mut() {
        Some(last) if last.end == free.start => last.end = free.end,
        _ => runs.push(free),
    };
    for n in 0..total.div_ceil(BITS_PER_PAGE) {
        let all = n * BITS_PER_PAGE..total.min((n + 1) * BITS_PER_PAGE);
        let id = base + n;
        match nodes::look(media, id as u32) {
            Look::Absent => add(all),
            Look::Page(page) if node::kind(&page[..]) == Some(NodeKind::Bitmap) => all
                .filter(|i| !node::bit(&page[..], i % BITS_PER_PAGE))
                .for_each(|i| add(i..i + 1)),
            Look::Page(_) | Look::Damaged(_) => damaged.push(id),
        }
    }
    runs
}
