//! The volume model: one operation at a time, beside it digest, rounds, zeroing passes and commits
//! in every interleaving, crashes anywhere, recovery, and the life after it.
//!
//! Concurrency of operations with each other is the business of the `lane` and `image` models.

mod cells;
mod config;
mod digest;
mod ops;
mod recovery;
mod round;
mod state;

pub use config::{Config, OpKind};
pub use state::{Budget, Step, World};

use crate::checker::{Model, Property};
use crate::medium::{Medium, TORN};
use crate::ordering::Ordering;
use cells::*;
use state::*;

/// The volume model under one configuration.
pub struct Volume(pub Config);

impl Model for Volume {
    type State = World;
    type Step = Step;

    fn initial(&self) -> World {
        let cfg = &self.0;
        let mut m = Medium::zeroed();
        m.format(EPOCH, 1 << 1 | u16::from(cfg.mode));
        for lbn in 0..LBNS {
            m.format(
                MAP + lbn,
                Entry {
                    pbn: lbn as u16,
                    written: false,
                }
                .pack(),
            );
        }
        m.format(NAT + BITMAP, 1);
        m.format(
            PAGE,
            Node {
                exists: true,
                ..Node::default()
            }
            .pack(BITMAP),
        );
        let absent = View([[ABSENT; BLKS]; FILES]);
        let mut oracle = Oracle {
            n: 1,
            ..Oracle::default()
        };
        oracle.hist[0] = absent;
        let dram = Dram {
            next_seq: 1,
            free_pages: (1 << PAGES) - 2,
            published: absent,
            ..Dram::default()
        };
        World {
            m,
            recs: Default::default(),
            nrecs: 0,
            stages: Default::default(),
            nstages: 0,
            versions: 0,
            phase: Phase::Serving,
            dram,
            rc: Recovery::default(),
            oracle,
            left: cfg.budget,
            rotted: false,
            fault: None,
        }
    }

    fn successors(&self, w: &World, out: &mut Vec<(Step, World)>) {
        let cfg = &self.0;
        if w.fault.is_some() || w.phase == Phase::Reported {
            return;
        }
        let mut push = |step, next: Option<World>| out.extend(next.map(|next| (step, next)));
        if w.phase == Phase::Recovering {
            if w.rc.pc == 0 && w.left.rot > 0 && !w.oracle.fixed {
                for at in SLOT_HEAD..SLOT_DATA {
                    if !matches!(w.m.load(at), 0 | TORN) && w.m.settled(at) {
                        let mut next = w.clone();
                        next.left.rot -= 1;
                        next.rotted = true;
                        next.m.format(at, TORN);
                        push(Step::Rot(at), Some(next));
                    }
                }
            }
            push(Step::Recover(w.rc.pc), Some(recovery::step(cfg, w)));
        } else {
            for &kind in cfg.ops {
                push(Step::Begin(kind), ops::begin(cfg, w, kind));
            }
            push(Step::Op(w.dram.op.pc), ops::step(cfg, w));
            push(Step::DigestBegin, digest::begin(cfg, w));
            push(Step::Digest(w.dram.dg.pc), digest::step(cfg, w));
            push(Step::StoreDigested(w.dram.dw.pc), digest::store_d(cfg, w));
            for swap in [false, true] {
                for older in [false, true] {
                    if if swap { cfg.swap } else { cfg.in_place } {
                        push(Step::Cut { swap, older }, round::cut(cfg, w, swap, older));
                    }
                }
            }
            push(Step::Round(w.dram.rd.pc), round::step(cfg, w));
            push(Step::ZeroBegin, round::zero_begin(cfg, w));
            push(Step::Zero(w.dram.zb.pc), round::zero(w));
            push(Step::Commit(w.dram.cm.0), ops::commit(cfg, w));
            if w.left.scribbles > 0 {
                for page in (0..PAGES).filter(|page| w.dram.free_pages >> page & 1 == 1) {
                    if w.m.load(PAGE + page) != 0 {
                        let mut next = w.clone();
                        next.left.scribbles -= 1;
                        next.m.store(PAGE + page, 1, BY_OTHER);
                        push(Step::Scribble(page as u8), Some(next));
                    }
                }
            }
        }
    }

    fn crashes(&self, w: &World, out: &mut Vec<(Step, World)>) {
        if w.left.crashes == 0 || w.fault.is_some() || w.phase == Phase::Reported {
            return;
        }
        for &mode in self.0.remount {
            w.m.after_power_loss(wide, |m| out.push((Step::PowerLoss, down(w, m, mode))));
            if self.0.deaths && w.m.in_flight().next().is_some() {
                out.push((Step::Death, down(w, w.m.clone(), mode)));
            }
        }
    }

    fn crash_at_random(
        &self,
        w: &World,
        draw: &mut dyn FnMut(usize) -> usize,
    ) -> Option<(Step, World)> {
        if w.left.crashes == 0 || w.fault.is_some() || w.phase == Phase::Reported {
            return None;
        }
        let mode = self.0.remount[draw(self.0.remount.len())];
        if self.0.deaths && draw(4) == 0 {
            return Some((Step::Death, down(w, w.m.clone(), mode)));
        }
        Some((
            Step::PowerLoss,
            down(w, w.m.one_after_power_loss(wide, draw), mode),
        ))
    }

    fn check(&self, w: &World) -> Result<(), Property> {
        if let Some(property) = w.fault {
            return Err(property);
        }
        if w.phase != Phase::Serving {
            return Ok(());
        }
        self.check_reads(w)?;
        self.check_owners(w)
    }

    /// `op`, where asked for: nothing keeps a mounted volume from coming to rest, all digested.
    fn finished(&self, w: &World) -> Option<bool> {
        let d = &w.dram;
        let pcs = [d.op.pc, d.dg.pc, d.dw.pc, d.rd.pc, d.zb.pc, d.cm.0];
        let rests = w.phase == Phase::Serving && pcs == [0; 6] && d.undigested == 0;
        self.0.progress.then_some(rests)
    }

    fn explain(&self, before: &World, step: Step, after: &World) -> String {
        explain(&self.0, before, step, after)
    }
}

/// The volume after a crash that left `m`, about to be mounted in `mode`.
fn down(w: &World, m: Medium<CELLS>, mode: u8) -> World {
    let mut next = World { m, ..w.clone() };
    next.left.crashes -= 1;
    next.phase = Phase::Recovering;
    next.dram = Dram::default();
    next.rc = Recovery {
        mode,
        ..Recovery::default()
    };
    next
}

impl Volume {
    /// What the running volume shows is what was published; scrub finds nothing wrong.
    fn check_reads(&self, w: &World) -> Result<(), Property> {
        let d = &w.dram;
        for file in 0..FILES {
            for block in 0..BLKS {
                let node = d.node[file];
                if d.op.direct && usize::from(d.op.lbn) + 1 == usize::from(node.map[block]) {
                    // Being overwritten right now, where that is allowed.
                    continue;
                }
                let want = d.published.0[file][block];
                let got = match node.map[block] {
                    _ if !node.exists => ABSENT,
                    0 => 0,
                    lbn => match d.staged[usize::from(lbn) - 1] {
                        0 => w.home(usize::from(lbn) - 1),
                        slot => w.m.load(SLOT_DATA + usize::from(slot) - 1) as u8,
                    },
                };
                if got == BROKEN {
                    return Err(Property::Unreadable);
                } else if got != want {
                    return Err(Property::ForeignContent);
                }
            }
        }
        let quiet = d.rd.pc == 0 && d.op.pc == 0;
        for lbn in 0..self.0.lbns {
            let hidden = d
                .slot
                .iter()
                .any(|slot| slot.used && usize::from(slot.lbn) == lbn);
            let free = d.bits >> lbn & 1 == 0 && self.0.keeps(Ordering::ScrubSkipsFree);
            if quiet && !hidden && !free && w.home(lbn) == BROKEN {
                return Err(Property::FalseDamage);
            }
        }
        Ok(())
    }

    /// Nothing has two owners, and nothing has none.
    fn check_owners(&self, w: &World) -> Result<(), Property> {
        let d = &w.dram;
        let mut owned = 0u8;
        for lbn in d
            .node
            .iter()
            .flat_map(|node| node.map)
            .filter(|&lbn| lbn != 0)
        {
            if owned >> (lbn - 1) & 1 == 1 {
                return Err(Property::DoubleOwned);
            }
            owned |= 1 << (lbn - 1);
        }
        if d.op.pc == 0 && owned != d.bits {
            return Err(Property::Leaked);
        }
        if d.rd.pc == 0 {
            let pbns = (0..LBNS).fold(0u8, |set, lbn| {
                set | 1 << Entry::unpack(w.m.load(MAP + lbn)).pbn
            });
            if pbns != (1 << LBNS) - 1 {
                return Err(Property::NotAPermutation);
            }
        }
        if d.dg.pc == 0 && d.dw.pc == 0 {
            let mut pages = d.free_pages;
            for page in (0..NODES)
                .map(|node| w.m.load(NAT + node))
                .filter(|&page| page != 0)
            {
                if pages >> (page - 1) & 1 == 1 {
                    return Err(Property::DoubleOwned);
                }
                pages |= 1 << (page - 1);
            }
        }
        Ok(())
    }
}

fn explain(cfg: &Config, before: &World, step: Step, after: &World) -> String {
    let survived = || {
        let cells = before.m.in_flight().map(|at| match after.m.load(at) {
            TORN => format!("{} torn", name(at)),
            value if value == before.m.load(at) => format!("{} new", name(at)),
            _ => format!("{} old", name(at)),
        });
        cells.collect::<Vec<_>>().join(", ")
    };
    let unless = |ordering, yes: &str, no: &str| {
        if cfg.keeps(ordering) {
            yes.to_string()
        } else {
            no.to_string()
        }
    };
    match step {
        Step::Begin(kind) => format!("operation: {}", operation(kind)),
        Step::Op(pc) => match pc {
            1 => "operation: staged".into(),
            2 => format!("operation: record {} is appended", after.dram.last_appended),
            3 => "operation: record, payload and header fenced".into(),
            4 => "operation: published, answered".into(),
            10 => unless(
                Ordering::DirectFlushBeforeEntry,
                "direct data: device flushed",
                "direct data: device NOT flushed",
            ),
            11 => "direct data: CRC stored".into(),
            13 => "direct data: entry becomes written".into(),
            _ => "direct data: fence".into(),
        },
        Step::DigestBegin => format!("digest up to {}: new pages stored", after.dram.dg.upto),
        Step::Digest(1) => "digest: fence".into(),
        Step::Digest(2) if !cfg.keeps(Ordering::NatBeforeDigested) => {
            "digest: committed words stored, NAT entries NOT yet".into()
        }
        Step::Digest(2) if !cfg.keeps(Ordering::CommittedWordBeforeDigested) => {
            "digest: NAT entries stored, committed words NOT yet".into()
        }
        Step::Digest(2) => "digest: NAT entries and committed words stored".into(),
        Step::Digest(_) => "digest: fence; digested_seq may be stored".into(),
        Step::StoreDigested(1) => format!("digested_seq = {} stored", before.dram.dw.dg.upto),
        Step::StoreDigested(2) => "digested_seq fenced".into(),
        Step::StoreDigested(3) => "lane head stored".into(),
        Step::StoreDigested(5) => "NAT entries or committed words stored, too late".into(),
        Step::StoreDigested(_) => "fence".into(),
        Step::Cut { swap, older } => {
            let how = if swap { "by swap" } else { "in place" };
            let of = if older { " of the oldest" } else { "" };
            format!("round{of} {how}: cut at {}", after.dram.rd.cut)
        }
        Step::Round(1) => "round: content written to the device".into(),
        Step::Round(2) => unless(
            Ordering::DeviceFlushBeforeTxn,
            "round: device flushed",
            "round: device NOT flushed",
        ),
        Step::Round(3) => "round: start and undo records stored".into(),
        Step::Round(5) => "round: entries, CRCs and retired_seq stored".into(),
        Step::Round(7) => "round: commit word stored".into(),
        Step::Round(8) => "round: fence; transaction committed".into(),
        Step::Round(9) => "round: retired_seq stored".into(),
        Step::Round(_) => "round: fence".into(),
        Step::ZeroBegin => format!(
            "zeroing pass reads the entries of {:#b}",
            after.dram.zb.lbns
        ),
        Step::Zero(1) => "zeroing pass: entries stored".into(),
        Step::Zero(_) => "zeroing pass: fence".into(),
        Step::Commit(0) => format!(
            "commit: cut at {}, {}",
            after.dram.cm.1,
            unless(Ordering::DrainBeforeCommitTs, "drain", "NO drain")
        ),
        Step::Commit(1) => "commit: commit_ts stored".into(),
        Step::Commit(_) => "commit: commit_ts drained, answered".into(),
        Step::PowerLoss => {
            let at = if before.phase == Phase::Recovering {
                "in recovery "
            } else {
                ""
            };
            format!("POWER LOSS {at}[{}]", survived())
        }
        Step::Death => "DEATH of the daemon; everything in flight stays in flight".into(),
        Step::Rot(at) => format!("ROT: {} no longer validates", name(at)),
        Step::Scribble(page) => format!("freed page {page} is put to another use"),
        Step::Recover(pc) => recovery_step(cfg, pc, before, after),
    }
}

fn operation(kind: OpKind) -> String {
    let file = |f: u8| char::from(b'A' + f);
    match kind {
        OpKind::Write(f, b) => format!("write {}[{b}]: LBN chosen, staged", file(f)),
        OpKind::WriteBoth(f) => format!("write {}[0..2]: LBNs chosen, staged", file(f)),
        OpKind::Falloc(f, b) => format!("fallocate {}[{b}]", file(f)),
        OpKind::Direct(f, b) => format!("direct write {}[{b}]: device written", file(f)),
        OpKind::Unlink(f) => format!("unlink {}", file(f)),
    }
}

fn recovery_step(cfg: &Config, pc: u8, before: &World, after: &World) -> String {
    let scanned = !before.rc.scanned && after.rc.scanned || after.fault != before.fault;
    let what = match pc {
        0 if cfg.keeps(Ordering::RecoveryDrainsFirst) => "what will be read is made durable",
        0 => "starts to read",
        1 => "undo of the open transaction stored",
        3 => "generation closed",
        5 => "log is ready",
        6 => "digest of the replayed records: new pages stored",
        8 => "NAT entries and committed words stored",
        10 => "digested_seq stored",
        13 if cfg.keeps(Ordering::DigestedRaisedToSeen) => {
            "digested_seq raised to the highest number seen"
        }
        13 => "digested_seq stays",
        15 => "commit_ts and heads stored",
        20 => "new epoch stored",
        30.. => "serves",
        _ => "fence",
    };
    format!("recovery: {what}{}", if scanned { "; scan" } else { "" })
}
