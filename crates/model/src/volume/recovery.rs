//! Recovery, a store or a fence at a time, so that it can crash anywhere.

use super::cells::*;
use super::config::Config;
use super::digest;
use super::state::*;
use crate::checker::Property;
use crate::medium::TORN;
use crate::ordering::Ordering;

/// The next step of the recovery in progress.
pub fn step(cfg: &Config, w: &World) -> World {
    let mut w = w.clone();
    let dg = w.rc.dg;
    let scan_first = !cfg.keeps(Ordering::UndoBeforeScan);
    match w.rc.pc {
        // What the next daemon reads must be durable before it acts on it.
        0 => {
            if cfg.keeps(Ordering::RecoveryDrainsFirst) {
                w.m.drain(0..DEV);
            }
            if scan_first {
                scan(cfg, &mut w);
            }
            w.rc.pc = if open_txn(&w) {
                1
            } else if cfg.keeps(Ordering::GenerationBurnt) {
                3
            } else {
                5
            };
        }
        1 => {
            undo(cfg, &mut w);
            w.rc.pc = 2;
        }
        2 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = if cfg.keeps(Ordering::UndoneTxnClosed) {
                3
            } else {
                5
            };
        }
        3 => {
            let generation = w.m.load(TXN_WORD);
            w.m.store(TXN_WORD, generation + 1, BY_RECOVERY);
            w.rc.pc = 4;
        }
        4 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = 5;
        }
        5 => {
            if !scan_first {
                scan(cfg, &mut w);
            }
            w.rc.pc = if cfg.keeps(Ordering::EpochLast) {
                6
            } else {
                20
            };
        }
        6 => {
            let recs = w.rc.dg.recs;
            let rewrites = w.rc.rewrite != [0; SLOTS];
            if recs == 0 {
                w.rc.pc = 13;
            } else {
                let free = unreferenced(&w);
                match digest::plan(&mut w, recs, free, BY_RECOVERY) {
                    Some(dg) => w.rc.dg = dg,
                    None => w.fail(Property::Stuck),
                }
                if rewrites && cfg.keeps(Ordering::HeaderRewriteBeforeDigested) {
                    rewrite(&mut w);
                }
                w.rc.pc = if cfg.keeps(Ordering::PageBeforeNat) {
                    7
                } else {
                    8
                };
            }
        }
        7 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = 8;
        }
        8 => {
            if cfg.keeps(Ordering::NatBeforeDigested) {
                digest::switch(&mut w, &dg, BY_RECOVERY);
            }
            if cfg.keeps(Ordering::CommittedWordBeforeDigested) {
                digest::mark(cfg, &mut w, &dg, BY_RECOVERY);
            }
            w.rc.pc = 9;
        }
        9 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = 10;
        }
        10 => {
            w.m.store(DIGESTED, u16::from(dg.upto), BY_RECOVERY);
            w.rc.pc = 11;
        }
        11 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = 12;
        }
        12 => {
            if !cfg.keeps(Ordering::NatBeforeDigested) {
                digest::switch(&mut w, &dg, BY_RECOVERY);
            }
            if !cfg.keeps(Ordering::CommittedWordBeforeDigested) {
                digest::mark(cfg, &mut w, &dg, BY_RECOVERY);
            }
            if !cfg.keeps(Ordering::HeaderRewriteBeforeDigested) {
                rewrite(&mut w);
            }
            w.rc.pc = 13;
        }
        // digested_seq is raised over every number seen, so that the gap is not taken for missing records.
        13 => {
            if cfg.keeps(Ordering::DigestedRaisedToSeen) {
                w.m.store(DIGESTED, u16::from(w.rc.max_seq), BY_RECOVERY);
            }
            w.rc.pc = if cfg.keeps(Ordering::DigestedRaisedBeforeCommitTs) {
                14
            } else {
                15
            };
        }
        14 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = 15;
        }
        15 => {
            if cfg.keeps(Ordering::CommitTsIsDigested) {
                let d = w.m.load(DIGESTED);
                w.m.store(COMMIT_TS, d, BY_RECOVERY);
            }
            if cfg.keeps(Ordering::HeadBeforeServing) {
                w.m.store(HEAD, u16::from(w.rc.end), BY_RECOVERY);
            }
            w.rc.pc = 16;
        }
        16 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = if cfg.keeps(Ordering::EpochLast) {
                20
            } else {
                30
            };
        }
        20 => {
            let epoch = u16::from(w.rc.epoch) + 1;
            w.m.store(EPOCH, epoch << 1 | u16::from(w.rc.mode), BY_RECOVERY);
            w.rc.pc = 21;
        }
        21 => {
            w.m.fence(BY_RECOVERY);
            w.rc.pc = if cfg.keeps(Ordering::EpochLast) {
                30
            } else {
                6
            };
        }
        // Too late: in flight while the first records of the new epoch are appended.
        30 if !cfg.keeps(Ordering::HeadBeforeServing) => {
            w.m.store(HEAD, u16::from(w.rc.end), BY_RECOVERY);
            w.rc.pc = 31;
        }
        _ => serve(cfg, &mut w),
    }
    w
}

fn open_txn(w: &World) -> bool {
    let start = w.m.load(TXN_START);
    start != TORN && start >> 12 == w.m.load(TXN_WORD) + 1
}

fn undo(cfg: &Config, w: &mut World) {
    let start = w.m.load(TXN_START);
    for lbn in 0..LBNS {
        let undo = w.m.load(UNDO + lbn);
        let (generation, entry, crc) = unpack_undo(undo);
        if undo != TORN && generation == start >> 12 {
            w.m.store(MAP + lbn, entry, BY_RECOVERY);
            w.m.store(CRC + lbn, crc, BY_RECOVERY);
        }
    }
    if cfg.keeps(Ordering::RetiredUndone) && !cfg.retired_after_commit {
        w.m.store(RETIRED, start & 0x3f, BY_RECOVERY);
    }
    if !cfg.keeps(Ordering::DigestedNeverUndone) {
        w.m.store(DIGESTED, start >> 6 & 0x3f, BY_RECOVERY);
    }
}

fn unreferenced(w: &World) -> u8 {
    let used = (0..NODES)
        .map(|node| w.m.load(NAT + node))
        .filter(|&page| page != 0);
    used.fold((1 << PAGES) - 1, |free, page| free & !(1u8 << (page - 1)))
}

fn rewrite(w: &mut World) {
    for slot in 0..SLOTS {
        if w.rc.rewrite[slot] != 0 {
            w.m.store(SLOT_HEAD + slot, u16::from(w.rc.rewrite[slot]), BY_RECOVERY);
        }
    }
}

/// Reads headers and lanes, decides what is live and what is replayed, and asks the oracle.
fn scan(cfg: &Config, w: &mut World) {
    let stored = w.word(EPOCH);
    let epoch = stored >> 1;
    let commit_mode = if cfg.keeps(Ordering::StoredModeRules) {
        stored & 1
    } else {
        w.rc.mode
    } == 1;
    let (digested, retired, commit_ts) = (w.word(DIGESTED), w.word(RETIRED), w.word(COMMIT_TS));
    let mut damage = false;
    let mut rc = Recovery {
        scanned: true,
        epoch,
        retired,
        max_seq: digested.max(commit_ts).max(retired),
        end: w.word(HEAD),
        ..w.rc
    };

    // The lane, from its head to the first record that does not validate.
    let mut recs = Vec::new();
    for pos in w.word(HEAD).. {
        let at = usize::from(pos) % cfg.ring;
        let Some(&rec) = w.rec_at(REC_HEAD + at) else {
            break;
        };
        let known = rec.epoch == epoch || !cfg.keeps(Ordering::EpochInRecords);
        if rec.pos != pos || !known {
            break;
        }
        rc.max_seq = rc.max_seq.max(rec.seq);
        let index = w.m.load(REC_HEAD + at);
        if w.m.load(REC_BODY + at) != index {
            break;
        }
        rc.end = pos + 1;
        recs.push(index as u8 - 1);
    }
    let seq = |i: &u8| w.recs[usize::from(*i)].seq;
    // One fence settles a record and what it stages: that of the last one may not have come.
    let last = recs
        .last()
        .copied()
        .filter(|i| !commit_mode && seq(i) > digested);
    if let Some(i) = last
        && cfg.keeps(Ordering::LastRecordWhole)
        && stages(w, i).any(|(_, s)| w.m.load(SLOT_DATA + s.slot(cfg)) != u16::from(s.version))
    {
        recs.pop();
    }
    if commit_mode {
        let have: Vec<u8> = recs.iter().map(seq).collect();
        damage |= (digested + 1..=commit_ts).any(|n| !have.contains(&n));
    }
    recs.retain(|i| !commit_mode || seq(i) <= commit_ts);
    recs.retain(|i| seq(i) > digested || !cfg.keeps(Ordering::ReplayAboveDigested));
    rc.dg = Digest {
        recs: recs.iter().fold(0, |mask, i| mask | 1 << i),
        ..Digest::default()
    };

    // Slots: live by committed word, or vouched for by a record that is replayed.
    for slot in 0..cfg.slots {
        let word = w.word(SLOT_WORD + slot);
        rc.max_seq = rc.max_seq.max(word);
        if word <= retired || word > digested {
            continue;
        }
        match w.stage_at(SLOT_HEAD + slot) {
            Some(s) if s.epoch == epoch || cfg.keeps(Ordering::SlotEpochUpToCurrent) => {
                rc.slot[slot] = live(s, word);
            }
            _ => damage = true,
        }
    }
    for &i in &recs {
        for (index, stage) in stages(w, i) {
            let slot = stage.slot(cfg);
            let header = w.m.load(SLOT_HEAD + slot);
            if header != u16::from(index) {
                rc.rewrite[slot] = index;
                damage |= header != TORN && last != Some(i);
            }
            rc.slot[slot] = live(stage, seq(&i));
        }
    }
    w.rc = rc;
    if damage {
        match (w.oracle.fixed, w.rotted) {
            (true, true) => w.fail(Property::NotIdempotent),
            (false, true) => w.phase = Phase::Reported,
            _ => w.fail(Property::FalseDamage),
        }
        return;
    }
    judge(w, stored & 1 == 1, commit_ts);
}

/// What a record stages, with its number.
fn stages(w: &World, rec: u8) -> impl Iterator<Item = (u8, &Stage)> {
    let staged = w.recs[usize::from(rec)].stage.into_iter();
    let staged = staged.filter(|&index| index != 0);
    staged.map(|index| (index, &w.stages[usize::from(index) - 1]))
}

fn live(stage: &Stage, seq: u8) -> SlotInfo {
    SlotInfo {
        used: true,
        pos: stage.pos,
        lbn: stage.lbn,
        version: stage.version,
        seq,
    }
}

/// What the recovered volume will show: homes, changed by the records that are replayed.
fn shown(w: &World) -> View {
    let mut order: Vec<&Rec> = (0..MAX_RECS)
        .filter(|i| w.rc.dg.recs >> i & 1 == 1)
        .map(|i| &w.recs[i])
        .collect();
    order.sort_by_key(|rec| rec.seq);
    let mut view = View::default();
    for (file, blocks) in view.0.iter_mut().enumerate() {
        let newest = order.iter().rfind(|rec| usize::from(rec.file) == file);
        let node = newest.map_or_else(|| w.home_node(file), |rec| Some(rec.image));
        *blocks = match node {
            None => [BROKEN; BLKS],
            Some(node) if !node.exists => [ABSENT; BLKS],
            Some(node) => node.map.map(|lbn| content(w, &w.rc.slot, lbn)),
        };
    }
    view
}

/// A block through the staged slots and the map; `lbn` counts from 1, 0 is a hole.
fn content(w: &World, slots: &[SlotInfo; SLOTS], lbn: u8) -> u8 {
    if lbn == 0 {
        return 0;
    }
    let staged = slots
        .iter()
        .enumerate()
        .filter(|(_, s)| s.used && s.lbn == lbn - 1);
    match staged.max_by_key(|(_, s)| s.seq) {
        Some((i, s)) if w.m.load(SLOT_DATA + i) == u16::from(s.version) => s.version,
        Some(_) => BROKEN,
        None => w.home(usize::from(lbn) - 1),
    }
}

fn judge(w: &mut World, commit_mode: bool, commit_ts: u8) {
    let view = shown(w);
    let oracle = &w.oracle;
    let n = usize::from(oracle.n);
    let hist = &oracle.hist[..n];
    let wanted = if oracle.fixed || !commit_mode {
        hist.contains(&view)
    } else {
        (0..n)
            .rfind(|&i| oracle.seq[i] <= commit_ts)
            .is_some_and(|i| hist[i] == view)
    };
    if !wanted || w.home_node(BITMAP).is_none() {
        let fixed = oracle.fixed;
        let property = blame(w, &view, fixed, commit_mode);
        w.fail(property);
        return;
    }
    w.oracle = Oracle {
        n: 1,
        fixed: true,
        ..Oracle::default()
    };
    w.oracle.hist[0] = view;
}

fn blame(w: &World, view: &View, fixed: bool, commit_mode: bool) -> Property {
    let hist = &w.oracle.hist[..usize::from(w.oracle.n)];
    let cells = |view: &View| view.0.as_flattened().to_vec();
    if cells(view).contains(&BROKEN) || w.home_node(BITMAP).is_none() {
        Property::Unreadable
    } else if fixed {
        Property::NotIdempotent
    } else if (0..FILES * BLKS).any(|at| {
        let got = cells(view)[at];
        got != ABSENT
            && got != 0
            && !hist.iter().any(|h| cells(h)[at] == got)
            && hist.iter().all(|h| matches!(cells(h)[at], 0 | ABSENT))
    }) {
        Property::ForeignContent
    } else if commit_mode {
        Property::NotTheCommit
    } else if (0..FILES * BLKS).all(|at| hist.iter().any(|h| cells(h)[at] == cells(view)[at])) {
        Property::Torn
    } else {
        Property::AckedLost
    }
}

/// Builds DRAM from what recovery found, and starts to serve.
fn serve(cfg: &Config, w: &mut World) {
    let rc = w.rc;
    let mut d = Dram::default();
    let mut view = View::default();
    for file in 0..FILES {
        d.node[file] = w.home_node(file).unwrap_or_default();
        view.0[file] = if d.node[file].exists {
            d.node[file].map.map(|lbn| content(w, &rc.slot, lbn))
        } else {
            [ABSENT; BLKS]
        };
    }
    d.bits = w.home_node(BITMAP).unwrap_or_default().bits;
    d.digested = w.word(DIGESTED);
    d.retired = w.word(RETIRED);
    d.commit_ts = w.word(COMMIT_TS);
    d.slot = rc.slot;
    for (i, slot) in rc.slot.iter().enumerate().filter(|(_, slot)| slot.used) {
        let at = usize::from(slot.lbn);
        let other = d.staged[at];
        if other == 0 || rc.slot[usize::from(other) - 1].seq < slot.seq {
            d.staged[at] = i as u8 + 1;
        }
    }
    let positions = || rc.slot.iter().filter(|slot| slot.used).map(|slot| slot.pos);
    d.slot_head = positions().min().unwrap_or(0);
    d.slot_tail = positions().max().map_or(0, |pos| pos + 1);
    d.ring_head = rc.end;
    d.ring_tail = rc.end;
    d.free_pages = unreferenced(w);
    d.next_seq = if !cfg.keeps(Ordering::NumbersAboveDigested) {
        1
    } else if !cfg.keeps(Ordering::NumbersAboveSeen) {
        rc.dg.upto.max(d.digested) + 1
    } else {
        rc.max_seq.max(rc.dg.upto) + 1
    };
    d.last_appended = d.next_seq - 1;
    d.published = view;
    if view != w.oracle.hist[0] {
        w.fail(Property::NotIdempotent);
    }
    w.oracle.fixed = false;
    w.rotted = false;
    w.dram = d;
    w.rc = Recovery::default();
    w.phase = Phase::Serving;
}
