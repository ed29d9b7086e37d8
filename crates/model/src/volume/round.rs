//! Checkpoint rounds and zeroing passes.

use super::cells::*;
use super::config::Config;
use super::ops::allocable;
use super::state::*;
use crate::ordering::Ordering;

/// Starts a round: the cut, the live slots at or below it, and where each goes. `older`: of all slots that
/// could go the oldest only; what has been written again above that cut stays where it is.
pub fn cut(cfg: &Config, w: &World, swap: bool, older: bool) -> Option<World> {
    let d = &w.dram;
    if d.rd.pc != 0 || w.left.rounds == 0 {
        return None;
    }
    if d.zb.pc != 0 && cfg.keeps(Ordering::ZeroNotDuringTxn) {
        return None;
    }
    let upto = if cfg.keeps(Ordering::CutBelowDigested) {
        d.digested
    } else {
        newest_durable(w)
    };
    let live = |slot: &SlotInfo| slot.used && slot.seq != 0 && slot.seq > d.retired;
    let seqs = || {
        let may_go = |slot: &&SlotInfo| live(slot) && slot.seq <= upto;
        d.slot.iter().filter(may_go).map(|slot| slot.seq)
    };
    let (oldest, newest) = (seqs().min()?, seqs().max()?);
    if older && oldest == newest {
        return None;
    }
    let cut = if older { oldest } else { upto };
    let within = |slot: &SlotInfo| live(slot) && slot.seq <= cut;
    let mut rd = Round {
        pc: 1,
        cut,
        upto,
        generation: w.word(TXN_WORD) + 1,
        ..Round::default()
    };
    for (i, slot) in d.slot.iter().enumerate().filter(|(_, slot)| within(slot)) {
        let lbn = usize::from(slot.lbn);
        let superseded = d.slot.iter().any(|other| {
            live(other)
                && other.lbn == slot.lbn
                && other.seq > slot.seq
                && (other.seq <= upto || !cfg.keeps(Ordering::SupersededBelowDigested))
        });
        let freed = d.bits >> lbn & 1 == 0
            && (d.released[lbn] <= d.digested || !cfg.keeps(Ordering::FreedDropBelowDigested))
            && cfg.keeps(Ordering::RoundDropsFreed);
        let other_buffer = i % 2 == 1 && !cfg.keeps(Ordering::AllBuffers);
        if superseded || freed || other_buffer {
            continue;
        }
        let lent = |at: usize| rd.load.iter().any(|load| usize::from(load.via) == at + 1);
        let via = if swap {
            (0..cfg.lbns)
                .rev()
                .find(|&at| allocable(cfg, w, at) && !lent(at))? as u8
                + 1
        } else {
            0
        };
        // Rounds that die one after the other may leave many writes of one block under way.
        let home = if via == 0 { lbn } else { usize::from(via) - 1 };
        if w.m
            .is_full(DEV + usize::from(Entry::unpack(w.m.load(MAP + home)).pbn))
        {
            return None;
        }
        rd.load[usize::from(rd.loads)] = Load {
            lbn: slot.lbn,
            version: slot.version,
            via,
        };
        rd.loads += 1;
    }
    let mut next = w.clone();
    next.left.rounds -= 1;
    next.dram.rd = rd;
    Some(next)
}

fn newest_durable(w: &World) -> u8 {
    let commit_mode = w.word(EPOCH) & 1 == 1;
    let d = &w.dram;
    let known = if commit_mode { d.undigested } else { d.durable };
    let known = (0..MAX_RECS)
        .filter(|i| known >> i & 1 == 1)
        .map(|i| w.recs[i].seq);
    known.max().unwrap_or(0).max(d.digested)
}

/// The next step of the round in progress.
pub fn step(cfg: &Config, w: &World) -> Option<World> {
    let rd = w.dram.rd;
    let loads = &rd.load[..usize::from(rd.loads)];
    let mut w = w.clone();
    match rd.pc {
        0 => return None,
        // Content goes out once everything that it looked at has been published: in the place of what it
        // drops, readers must find the newer version.
        1 => {
            let op = &w.dram.op;
            let unpublished = op.pc >= 3 && op.rec.seq != 0 && op.rec.seq <= rd.upto;
            if unpublished && cfg.keeps(Ordering::PublishedBeforeRound) {
                return None;
            }
            for load in loads {
                let home = if load.via != 0 {
                    load.via - 1
                } else {
                    load.lbn
                };
                let pbn = Entry::unpack(w.m.load(MAP + usize::from(home))).pbn;
                w.m.store(DEV + usize::from(pbn), u16::from(load.version), BY_DEVICE);
            }
            w.dram.rd.pc = 2;
        }
        2 => {
            if cfg.keeps(Ordering::DeviceFlushBeforeTxn) {
                w.m.drain(DEV..CELLS);
            }
            w.dram.rd.pc = 3;
        }
        3 => {
            if w.dram.zb.pc != 0 && cfg.keeps(Ordering::ZeroNotDuringTxn) {
                return None;
            }
            let generation = u16::from(rd.generation);
            let start = pack_start(generation, w.m.load(RETIRED), w.m.load(DIGESTED));
            w.m.store(TXN_START, start, BY_ROUND);
            for lbn in loads.iter().flat_map(|load| [load.lbn + 1, load.via]) {
                if lbn != 0 {
                    let at = usize::from(lbn) - 1;
                    let undo = pack_undo(generation, w.m.load(MAP + at), w.m.load(CRC + at));
                    w.m.store(UNDO + at, undo, BY_ROUND);
                }
            }
            w.dram.rd.pc = if cfg.keeps(Ordering::UndoBeforeMap) {
                4
            } else {
                5
            };
        }
        4 => {
            w.m.fence(BY_ROUND);
            w.dram.rd.pc = 5;
        }
        5 => {
            change(cfg, &mut w, &rd);
            if !cfg.keeps(Ordering::SlotReuseAfterRetired) {
                release(cfg, &mut w, rd.cut);
            }
            w.dram.rd.pc = if cfg.keeps(Ordering::MapBeforeCommitWord) {
                6
            } else {
                7
            };
        }
        6 => {
            w.m.fence(BY_ROUND);
            w.dram.rd.pc = 7;
        }
        7 => {
            w.m.store(TXN_WORD, u16::from(rd.generation), BY_ROUND);
            w.dram.rd.pc = 8;
        }
        8 => {
            w.m.fence(BY_ROUND);
            if cfg.retired_after_commit {
                w.dram.rd.pc = 9;
            } else {
                finish(cfg, &mut w, &rd);
            }
        }
        // The simpler scheme: `retired_seq` by itself, once the transaction is closed.
        9 => {
            w.m.store(RETIRED, u16::from(rd.cut), BY_ROUND);
            w.dram.rd.pc = 10;
        }
        _ => {
            w.m.fence(BY_ROUND);
            finish(cfg, &mut w, &rd);
        }
    }
    Some(w)
}

fn finish(cfg: &Config, w: &mut World, rd: &Round) {
    release(cfg, w, rd.cut);
    w.dram.rd = Round::default();
}

/// The stores of the transaction: swaps, states, checksums, `retired_seq`.
fn change(cfg: &Config, w: &mut World, rd: &Round) {
    for load in &rd.load[..usize::from(rd.loads)] {
        let lbn = usize::from(load.lbn);
        let old = Entry::unpack(w.m.load(MAP + lbn));
        let mut pbn = old.pbn;
        if load.via != 0 {
            let via = usize::from(load.via) - 1;
            pbn = Entry::unpack(w.m.load(MAP + via)).pbn;
            let mut lent = Entry {
                pbn: old.pbn,
                written: false,
            };
            if !cfg.keeps(Ordering::BorrowedEndsZero) {
                lent.written = old.written;
                w.dram.trusted |= 1 << via;
                w.m.store(CRC + via, w.m.load(CRC + lbn), BY_ROUND);
            }
            w.m.store(MAP + via, lent.pack(), BY_ROUND);
        }
        w.m.store(MAP + lbn, Entry { pbn, written: true }.pack(), BY_ROUND);
        w.m.store(CRC + lbn, u16::from(load.version), BY_ROUND);
    }
    if !cfg.retired_after_commit {
        w.m.store(RETIRED, u16::from(rd.cut), BY_ROUND);
    }
}

/// Slots at or below `retired` leave the staged map; the ring's head passes them in order.
fn release(cfg: &Config, w: &mut World, retired: u8) {
    let d = &mut w.dram;
    d.retired = retired;
    for (i, slot) in d.slot.iter_mut().enumerate() {
        if slot.used && slot.seq != 0 && slot.seq <= retired {
            let staged = &mut d.staged[usize::from(slot.lbn)];
            if usize::from(*staged) == i + 1 {
                *staged = 0;
            }
            // Not free before the head has passed it, but no longer live.
            slot.used = false;
        }
    }
    while d.slot_head < d.slot_tail {
        let slot = &mut d.slot[usize::from(d.slot_head) % cfg.slots];
        if slot.used {
            break;
        }
        *slot = SlotInfo::default();
        d.slot_head += 1;
    }
}

/// Starts a zeroing pass over every freed LBN that still has content.
pub fn zero_begin(cfg: &Config, w: &World) -> Option<World> {
    let d = &w.dram;
    if d.zb.pc != 0 || w.left.batches == 0 {
        return None;
    }
    // A round has content on its way to the device at 1 and 2, and has not begun its transaction.
    if d.rd.pc > 2 && cfg.keeps(Ordering::ZeroNotDuringTxn) {
        return None;
    }
    let mut zb = ZeroBatch {
        pc: 1,
        ..ZeroBatch::default()
    };
    for lbn in 0..cfg.lbns {
        let entry = w.m.load(MAP + lbn);
        let freed = d.bits >> lbn & 1 == 0
            && (d.released[lbn] <= d.digested || !cfg.keeps(Ordering::ZeroBelowDigested));
        if freed && Entry::unpack(entry).written {
            zb.lbns |= 1 << lbn;
            zb.read[lbn] = entry as u8;
        }
    }
    if zb.lbns == 0 {
        return None;
    }
    let mut next = w.clone();
    next.left.batches -= 1;
    next.dram.zb = zb;
    Some(next)
}

/// The next step of the zeroing pass in progress.
pub fn zero(w: &World) -> Option<World> {
    let zb = w.dram.zb;
    let mut w = w.clone();
    match zb.pc {
        0 => return None,
        1 => {
            for lbn in (0..LBNS).filter(|lbn| zb.lbns >> lbn & 1 == 1) {
                let pbn = Entry::unpack(u16::from(zb.read[lbn])).pbn;
                w.m.store(
                    MAP + lbn,
                    Entry {
                        pbn,
                        written: false,
                    }
                    .pack(),
                    BY_ZERO,
                );
            }
            w.dram.zb.pc = 2;
        }
        _ => {
            w.m.fence(BY_ZERO);
            w.dram.zb = ZeroBatch::default();
        }
    }
    Some(w)
}
