//! Digest: records into home pages. One function for the running daemon and for recovery.

use super::cells::*;
use super::config::Config;
use super::state::*;
use crate::ordering::Ordering;

/// Plans the digest of `recs` and stores the new pages. `None` if there are too few free pages.
pub fn plan(w: &mut World, recs: u8, mut free: u8, by: u8) -> Option<Digest> {
    let mut node = [Node::default(); NODES];
    for (i, content) in node.iter_mut().enumerate() {
        // An unreadable home page is noticed by the scan; here it only must not be built upon.
        *content = w.home_node(i).unwrap_or_default();
    }
    let mut dg = Digest {
        pc: 1,
        recs,
        ..Digest::default()
    };
    let mut order: Vec<&Rec> = (0..MAX_RECS)
        .filter(|i| recs >> i & 1 == 1)
        .map(|i| &w.recs[i])
        .collect();
    order.sort_by_key(|rec| rec.seq);
    for rec in order {
        node[usize::from(rec.file)] = rec.image;
        node[BITMAP].bits = (node[BITMAP].bits | rec.set) & !rec.clear;
        dg.touched |= 1 << rec.file | u8::from(rec.set | rec.clear != 0) << BITMAP;
        dg.upto = rec.seq;
    }
    node[BITMAP].exists = true;
    for i in (0..NODES).filter(|i| dg.touched >> i & 1 == 1) {
        let old = w.m.load(NAT + i);
        if old != 0 {
            dg.old |= 1 << (old - 1);
        }
        if !node[i].exists {
            continue;
        }
        let page = (0..PAGES).find(|page| free >> page & 1 == 1)?;
        free &= !(1 << page);
        dg.nat[i] = page as u8 + 1;
        w.m.store(PAGE + page, node[i].pack(i), by);
    }
    Some(dg)
}

/// Switches the NAT entries.
pub fn switch(w: &mut World, dg: &Digest, by: u8) {
    for i in (0..NODES).filter(|i| dg.touched >> i & 1 == 1) {
        w.m.store(NAT + i, u16::from(dg.nat[i]), by);
    }
}

/// Writes the committed words of the slots that the digested records name.
pub fn mark(cfg: &Config, w: &mut World, dg: &Digest, by: u8) {
    for i in (0..MAX_RECS).filter(|i| dg.recs >> i & 1 == 1) {
        let rec = w.recs[i];
        for &stage in rec.stage.iter().filter(|&&stage| stage != 0) {
            let slot = w.stages[usize::from(stage) - 1].slot(cfg);
            w.m.store(SLOT_WORD + slot, u16::from(rec.seq), by);
        }
    }
}

/// Starts a digest of everything that may be digested.
pub fn begin(cfg: &Config, w: &World) -> Option<World> {
    let d = &w.dram;
    if d.dg.pc != 0 || d.dw.pc != 0 {
        return None;
    }
    let commit_mode = w.word(EPOCH) & 1 == 1;
    let ready = |i: &usize| {
        d.undigested >> i & 1 == 1
            && if commit_mode {
                w.recs[*i].seq <= d.commit_ts || !cfg.keeps(Ordering::DigestedBelowCommitTs)
            } else {
                d.durable >> i & 1 == 1 || !cfg.keeps(Ordering::BoundClearedAfterFence)
            }
    };
    let recs = (0..MAX_RECS).filter(ready).fold(0, |mask, i| mask | 1 << i);
    if recs == 0 {
        return None;
    }
    let mut next = w.clone();
    let mut dg = plan(&mut next, recs, d.free_pages, BY_DIGEST)?;
    for page in dg.nat.iter().filter(|&&page| page != 0) {
        next.dram.free_pages &= !(1 << (page - 1));
    }
    if !cfg.keeps(Ordering::PageBeforeNat) {
        dg.pc = 2;
    }
    next.dram.dg = dg;
    Some(next)
}

/// The next step of the digest in progress, up to the point where digested_seq may be stored.
pub fn step(cfg: &Config, w: &World) -> Option<World> {
    let dg = w.dram.dg;
    let mut w = w.clone();
    match dg.pc {
        0 => return None,
        1 => {
            w.m.fence(BY_DIGEST);
            w.dram.dg.pc = 2;
        }
        2 => {
            if cfg.keeps(Ordering::NatBeforeDigested) {
                switch(&mut w, &dg, BY_DIGEST);
            }
            if cfg.keeps(Ordering::CommittedWordBeforeDigested) {
                mark(cfg, &mut w, &dg, BY_DIGEST);
            }
            if !cfg.keeps(Ordering::OldPageAfterNat) {
                w.dram.free_pages |= dg.old;
            }
            w.dram.dg.pc = 3;
        }
        _ => {
            w.m.fence(BY_DIGEST);
            if !cfg.keeps(Ordering::OldPageAfterDigested) {
                w.dram.free_pages |= dg.old;
            }
            if !cfg.keeps(Ordering::RingAfterDigested) {
                w.dram.ring_head = end(&w, &dg);
            }
            w.dram.undigested &= !dg.recs;
            w.dram.durable &= !dg.recs;
            w.dram.dw = DWriter { pc: 1, dg };
            w.dram.dg = Digest::default();
        }
    }
    Some(w)
}

/// The lane position behind the last digested record.
pub fn end(w: &World, dg: &Digest) -> u8 {
    let digested = (0..MAX_RECS).filter(|i| dg.recs >> i & 1 == 1);
    digested.map(|i| w.recs[i].pos + 1).max().unwrap_or(0)
}

/// digested_seq becomes durable, then the lane's head; then space is free again.
pub fn store_d(cfg: &Config, w: &World) -> Option<World> {
    let DWriter { pc, dg } = w.dram.dw;
    let late_nat = !cfg.keeps(Ordering::NatBeforeDigested);
    let late_word = !cfg.keeps(Ordering::CommittedWordBeforeDigested);
    let mut w = w.clone();
    match pc {
        0 => return None,
        1 => {
            w.m.store(DIGESTED, u16::from(dg.upto), BY_D);
            w.dram.dw.pc = 2;
        }
        2 => {
            w.m.fence(BY_D);
            w.dram.digested = dg.upto;
            w.dram.free_pages |= dg.old;
            w.dram.dw.pc = if late_nat || late_word { 5 } else { 3 };
        }
        5 => {
            if late_nat {
                switch(&mut w, &dg, BY_D);
            }
            if late_word {
                mark(cfg, &mut w, &dg, BY_D);
            }
            w.dram.dw.pc = 6;
        }
        6 => {
            w.m.fence(BY_D);
            w.dram.dw.pc = 3;
        }
        3 => {
            w.m.store(HEAD, u16::from(end(&w, &dg)), BY_D);
            if !cfg.keeps(Ordering::HeadBeforeRingReuse) {
                w.dram.ring_head = end(&w, &dg);
            }
            w.dram.dw.pc = 4;
        }
        _ => {
            w.m.fence(BY_D);
            w.dram.ring_head = end(&w, &dg);
            w.dram.dw = DWriter::default();
        }
    }
    Some(w)
}
