//! What looks damaged: node pages and blocks, read without any lock.

use std::collections::BTreeMap;

use quayfs_layout::{BLOCK, Lbn};
use quayfs_ppt::BlockState;
use quayfs_store::damage::Watch;
use quayfs_store::engine::Engine;
use rangemap::RangeSet;

use super::{Limiter, Pass};
use crate::data::read::{self, Want};

const B: u64 = BLOCK as u64;
/// LBNs looked up between two looks at the world.
const STRIDE: u64 = 64 << 10;

/// Bytes compared with the disk between two looks at the world.
const MENDED: usize = 64 << 20;

/// What a scan has met.
#[derive(Default)]
pub(super) struct Suspects {
    /// Node pages, and what is wrong with them.
    pub(super) nodes: BTreeMap<u32, String>,
    /// Blocks.
    pub(super) lbns: RangeSet<Lbn>,
}

/// About how many bytes there are to verify.
pub(super) fn total(e: &Engine) -> u64 {
    let blocks = e.config.geometry.visible_blocks();
    (e.nodes.live() + blocks.saturating_sub(e.blocks_free())) * B
}

/// Verifies the home of every node that has one.
pub(super) fn pages(e: &Engine, pass: &Pass, limiter: &mut Limiter<'_>, out: &mut Suspects) {
    let chunk = pass.chunk();
    let mut unpaid = 0;
    // Whole in memory: the disk has to have them too.
    let mut whole = RangeSet::new();
    for id in 1..e.config.geometry.nat_entries as u32 {
        if unpaid == chunk || id % 4096 == 0 {
            limiter.wait_for(unpaid * B);
            unpaid = 0;
            mend(e, pass, std::mem::take(&mut whole));
            if pass.must_stop(e) {
                return;
            }
        }
        let home = e.nodes.home_of(id);
        if matches!(home, Ok(None)) {
            continue;
        }
        unpaid += 1;
        pass.verified(B);
        match (e.nodes.verify(id), home) {
            (Err(fault), _) => {
                pass.suspect();
                out.nodes.insert(id, fault.to_string());
            }
            (Ok(_), Ok(Some(page))) => {
                let at = e.config.geometry.node_page(page);
                whole.insert(at..at + B);
            }
            _ => {}
        }
    }
    mend(e, pass, whole);
}

/// Has pages of the region that the disk has otherwise than memory written again.
fn mend(e: &Engine, pass: &Pass, pages: RangeSet<u64>) {
    if e.is_read_only() {
        return;
    }
    for run in pages {
        pass.mended(e.region.mend(run.start, run.end - run.start, false));
    }
}

/// The same of everything else that has been stored to since the volume was mounted: what else there is, is read when it is
/// needed.
pub(super) fn stored(e: &Engine, pass: &Pass) {
    // Nothing lies behind the batch log, which a read of memory does not show.
    let g = &e.config.geometry;
    let end = if g.batch_log_bytes > 0 {
        g.batch_log_off
    } else {
        e.region.len()
    };
    for at in (0..end).step_by(MENDED) {
        if pass.must_stop(e) || e.is_read_only() {
            return;
        }
        pass.mended(e.region.mend(at, (end - at).min(MENDED as u64), true));
    }
    match e.region.mend_heads() {
        Ok(heads) => pass.mended(heads),
        Err(why) => e.fail(&why),
    }
}

/// Verifies the newest version of every block, staged or on the data device.
pub(super) fn blocks(e: &Engine, pass: &Pass, limiter: &mut Limiter<'_>, out: &mut Suspects) {
    let chunk = pass.chunk() as usize;
    let mut wants: Vec<Want> = Vec::with_capacity(chunk);
    let mut buf = vec![0; chunk * BLOCK];
    let end = e.config.geometry.blocks;
    for lbn in 0..end {
        if lbn % STRIDE == 0 && pass.must_stop(e) {
            return;
        }
        // What changes behind this look is found out by the read.
        let held = if e.staged.get(lbn).is_some() {
            true
        } else {
            match e.ppt.lookup(lbn) {
                Ok(m) => m.state == BlockState::Written,
                Err(_) => {
                    pass.suspect();
                    out.lbns.insert(lbn..lbn + 1);
                    false
                }
            }
        };
        if held {
            let at = wants.len() * BLOCK;
            wants.push(Want { lbn, at });
        }
        if wants.len() == chunk || lbn + 1 == end {
            if pass.must_stop(e) {
                return;
            }
            limiter.wait_for(wants.len() as u64 * B);
            verify(e, pass, &wants, &mut buf, out);
            wants.clear();
        }
    }
}

fn verify(e: &Engine, pass: &Pass, wants: &[Want], buf: &mut [u8], out: &mut Suspects) {
    let aside = Watch::bystander();
    if read::blocks_on_media(e, &aside, wants, &mut buf[..wants.len() * BLOCK]).is_err() {
        for w in wants {
            let alone = Want { lbn: w.lbn, at: 0 };
            if read::blocks_on_media(e, &aside, &[alone], &mut buf[..BLOCK]).is_err() {
                pass.suspect();
                out.lbns.insert(w.lbn..w.lbn + 1);
            }
        }
    }
    pass.verified(wants.len() as u64 * B);
}
