//! Operations and commits of the running volume.

use super::cells::*;
use super::config::{Config, OpKind};
use super::state::*;
use crate::ordering::Ordering;

/// Whether `lbn` may be handed out: its bit is clear since a record at or below digested_seq, its state is
/// zero, and no live slot names it.
pub fn allocable(cfg: &Config, w: &World, lbn: usize) -> bool {
    let d = &w.dram;
    let lent = d.rd.pc != 0
        && d.rd.load[..usize::from(d.rd.loads)]
            .iter()
            .any(|load| usize::from(load.via) == lbn + 1);
    let zeroing = d.zb.pc != 0 && d.zb.lbns >> lbn & 1 == 1;
    d.bits >> lbn & 1 == 0
        && (d.released[lbn] <= d.digested || !cfg.keeps(Ordering::FreedRecordBelowDigested))
        && (!Entry::unpack(w.m.load(MAP + lbn)).written
            || d.trusted >> lbn & 1 == 1
            || !cfg.keeps(Ordering::ZeroBeforeReallocation))
        && (!zeroing || !cfg.keeps(Ordering::ZeroDurableBeforeReallocation))
        && (!d
            .slot
            .iter()
            .any(|slot| slot.used && usize::from(slot.lbn) == lbn)
            || !cfg.keeps(Ordering::NoLiveSlotOnReuse))
        && (!lent || !cfg.keeps(Ordering::BorrowedReserved))
}

/// Starts an operation: credits, LBNs, staged content. `None` where it cannot start now.
pub fn begin(cfg: &Config, w: &World, kind: OpKind) -> Option<World> {
    let d = &w.dram;
    let (file, blocks) = kind.target();
    let slots = if kind.stages() { blocks.len() } else { 0 };
    if d.op.pc != 0
        || w.left.ops == 0
        || usize::from(w.nrecs) == MAX_RECS
        || usize::from(w.nstages) + slots > MAX_STAGES
        || usize::from(d.ring_tail - d.ring_head) >= cfg.ring
        || usize::from(d.slot_tail - d.slot_head) + slots > cfg.slots
    {
        return None;
    }
    let old = d.node[file];
    let mut next = w.clone();
    next.left.ops -= 1;
    let mut rec = Rec {
        file: file as u8,
        image: old,
        after: d.published,
        ..Rec::default()
    };
    let mut op = OpThread {
        pc: 2,
        ..OpThread::default()
    };
    if let OpKind::Unlink(_) = kind {
        if !old.exists {
            return None;
        }
        rec.image = Node::default();
        rec.clear = old
            .map
            .iter()
            .filter(|&&l| l != 0)
            .fold(0, |bits, &l| bits | 1 << (l - 1));
        rec.after.0[file] = [ABSENT; BLKS];
        next.dram.op = OpThread { rec, ..op };
        return Some(next);
    }
    if !old.exists {
        rec.after.0[file] = [0; BLKS];
    }
    rec.image.exists = true;
    for (i, &block) in blocks.iter().enumerate() {
        let hole = old.map[block] == 0;
        if matches!(kind, OpKind::Falloc(..)) && !hole {
            return None;
        }
        let direct = matches!(kind, OpKind::Direct(..));
        let fresh = hole || (direct && cfg.keeps(Ordering::DirectToFresh));
        if fresh {
            let lbn = (0..cfg.lbns).find(|&lbn| allocable(cfg, &next, lbn))?;
            next.dram.bits |= 1 << lbn;
            next.dram.released[lbn] = 0;
            next.dram.trusted &= !(1 << lbn);
            rec.set |= 1 << lbn;
            rec.image.map[block] = lbn as u8 + 1;
            if !hole {
                rec.clear |= 1 << (old.map[block] - 1);
            }
        }
        let lbn = rec.image.map[block] - 1;
        if matches!(kind, OpKind::Falloc(..)) {
            rec.after.0[file][block] = 0;
            continue;
        }
        next.versions += 1;
        let version = next.versions;
        rec.after.0[file][block] = version;
        if direct {
            let pbn = Entry::unpack(next.m.load(MAP + usize::from(lbn))).pbn;
            // Daemons that die one after the other may leave many writes of one block under way.
            if next.m.is_full(DEV + usize::from(pbn)) {
                return None;
            }
            next.m
                .store(DEV + usize::from(pbn), u16::from(version), BY_DEVICE);
            op = OpThread {
                pc: 10,
                direct: true,
                lbn,
                version,
                ..op
            };
        } else {
            let epoch = next.word(EPOCH) >> 1;
            let stage = Stage {
                pos: next.dram.slot_tail,
                lbn,
                version,
                epoch,
            };
            let slot = stage.slot(cfg);
            next.stages[usize::from(next.nstages)] = stage;
            next.nstages += 1;
            rec.stage[i] = next.nstages;
            next.dram.slot_tail += 1;
            next.dram.slot[slot] = SlotInfo {
                used: true,
                pos: stage.pos,
                lbn,
                version,
                seq: 0,
            };
            next.m
                .store(SLOT_HEAD + slot, u16::from(next.nstages), BY_OP);
            next.m.store(SLOT_DATA + slot, u16::from(version), BY_OP);
            op.pc = 1;
        }
    }
    next.dram.op = OpThread { rec, ..op };
    Some(next)
}

/// The next step of the operation in progress.
pub fn step(cfg: &Config, w: &World) -> Option<World> {
    let mut w = w.clone();
    let commit_mode = w.word(EPOCH) & 1 == 1;
    let op = w.dram.op;
    let lbn = usize::from(op.lbn);
    match op.pc {
        0 => return None,
        // Payload and header. The fence of the record makes them durable, in `commit` mode the drain of the commit.
        1 => w.dram.op.pc = 2,
        2 => append(cfg, &mut w, commit_mode),
        3 => {
            w.m.fence(BY_OP);
            w.dram.durable |= w.dram.undigested;
            if cfg.keeps(Ordering::DurableBeforeReply) {
                w.dram.op.pc = 4;
            } else {
                w.dram.op = OpThread::default();
            }
        }
        4 => {
            publish(cfg, &mut w);
            w.dram.op = OpThread::default();
        }
        // Direct data: device, flush, CRC, fence, entry, fence, then the record.
        10 => {
            if cfg.keeps(Ordering::DirectFlushBeforeEntry) {
                w.m.drain(DEV..CELLS);
            }
            w.dram.op.pc = 11;
        }
        11 => {
            w.m.store(CRC + lbn, u16::from(op.version), BY_OP);
            w.dram.op.pc = if cfg.keeps(Ordering::CrcBeforeEntry) {
                12
            } else {
                13
            };
        }
        12 => {
            w.m.fence(BY_OP);
            w.dram.op.pc = 13;
        }
        13 => {
            let entry = Entry {
                written: true,
                ..Entry::unpack(w.m.load(MAP + lbn))
            };
            w.m.store(MAP + lbn, entry.pack(), BY_OP);
            w.dram.op.pc = if cfg.keeps(Ordering::EntryBeforeRecord) {
                14
            } else {
                2
            };
        }
        _ => {
            w.m.fence(BY_OP);
            w.dram.op.pc = 2;
        }
    }
    Some(w)
}

fn append(cfg: &Config, w: &mut World, commit_mode: bool) {
    let index = usize::from(w.nrecs);
    let mut rec = w.dram.op.rec;
    rec.seq = w.dram.next_seq;
    rec.pos = w.dram.ring_tail;
    rec.epoch = w.word(EPOCH) >> 1;
    w.dram.next_seq += 1;
    w.dram.ring_tail += 1;
    w.dram.last_appended = rec.seq;
    w.recs[index] = rec;
    w.nrecs += 1;
    w.dram.op.rec = rec;
    w.dram.undigested |= 1 << index;
    for &stage in rec.stage.iter().filter(|&&stage| stage != 0) {
        let slot = w.stages[usize::from(stage) - 1].slot(cfg);
        w.dram.slot[slot].seq = rec.seq;
    }
    let at = usize::from(rec.pos) % cfg.ring;
    w.m.store(REC_HEAD + at, index as u16 + 1, BY_OP);
    w.m.store(REC_BODY + at, index as u16 + 1, BY_OP);
    let n = usize::from(w.oracle.n);
    w.oracle.hist[n] = rec.after;
    w.oracle.seq[n] = rec.seq;
    w.oracle.n += 1;
    if commit_mode {
        publish(cfg, w);
        w.dram.op = OpThread::default();
    } else if cfg.keeps(Ordering::DurableBeforeReply) {
        w.dram.op.pc = 3;
    } else {
        publish(cfg, w);
        w.dram.op.pc = 3;
    }
}

/// Makes the change visible; in `op` mode the caller is answered now.
fn publish(cfg: &Config, w: &mut World) {
    let rec = w.dram.op.rec;
    w.dram.node[usize::from(rec.file)] = rec.image;
    w.dram.bits &= !rec.clear;
    for lbn in (0..LBNS).filter(|lbn| rec.clear >> lbn & 1 == 1) {
        w.dram.released[lbn] = rec.seq;
    }
    for &stage in rec.stage.iter().filter(|&&stage| stage != 0) {
        let stage = w.stages[usize::from(stage) - 1];
        w.dram.staged[usize::from(stage.lbn)] = stage.slot(cfg) as u8 + 1;
    }
    w.dram.published = rec.after;
    if w.word(EPOCH) & 1 == 0 {
        w.oracle.settle(1);
    }
}

impl Oracle {
    /// Everything before entry `first` can no longer be what a crash leaves.
    pub fn settle(&mut self, first: usize) {
        let n = usize::from(self.n);
        self.hist.copy_within(first..n, 0);
        self.seq.copy_within(first..n, 0);
        for i in n - first..n {
            (self.hist[i], self.seq[i]) = (View::default(), 0);
        }
        self.n -= first as u8;
        self.fixed = false;
    }
}

/// The next step of a commit (`commit` mode).
pub fn commit(cfg: &Config, w: &World) -> Option<World> {
    let mut w = w.clone();
    let (pc, cut) = w.dram.cm;
    match pc {
        0 if w.word(EPOCH) & 1 == 0
            || w.left.commits == 0
            || w.dram.last_appended <= w.dram.commit_ts =>
        {
            return None;
        }
        0 => {
            if cfg.keeps(Ordering::DrainBeforeCommitTs) {
                w.m.drain(0..DEV);
            }
            w.left.commits -= 1;
            w.dram.cm = (1, w.dram.last_appended);
        }
        1 => {
            w.m.store(COMMIT_TS, u16::from(cut), BY_COMMIT);
            w.dram.cm.0 = 2;
            if !cfg.keeps(Ordering::CommitTsBeforeReply) {
                acknowledge(&mut w, cut);
            }
        }
        _ => {
            w.m.drain(0..DEV);
            w.dram.commit_ts = cut;
            w.dram.cm = (0, 0);
            acknowledge(&mut w, cut);
        }
    }
    Some(w)
}

fn acknowledge(w: &mut World, cut: u8) {
    let n = usize::from(w.oracle.n);
    let first = (0..n).rfind(|&i| w.oracle.seq[i] <= cut).unwrap_or(0);
    w.oracle.settle(first);
}
