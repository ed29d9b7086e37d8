//! Bounds of one run of the volume model.

use super::state::Budget;
use crate::ordering::{Kept, Ordering};

/// An operation that a caller may issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// One block, staged.
    Write(u8, u8),
    /// Both blocks of a file in one request, staged.
    WriteBoth(u8),
    /// An LBN without content.
    Falloc(u8, u8),
    /// One block straight to the data device.
    Direct(u8, u8),
    /// The file and its LBNs go.
    Unlink(u8),
}

impl OpKind {
    /// File and blocks that are touched.
    pub fn target(self) -> (usize, &'static [usize]) {
        match self {
            OpKind::Write(file, 0) | OpKind::Falloc(file, 0) | OpKind::Direct(file, 0) => {
                (file.into(), &[0])
            }
            OpKind::Write(file, _) | OpKind::Falloc(file, _) | OpKind::Direct(file, _) => {
                (file.into(), &[1])
            }
            OpKind::WriteBoth(file) => (file.into(), &[0, 1]),
            OpKind::Unlink(file) => (file.into(), &[]),
        }
    }
    /// Whether content goes through slots.
    pub fn stages(self) -> bool {
        matches!(self, OpKind::Write(..) | OpKind::WriteBoth(_))
    }
}

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    /// For the table.
    pub name: &'static str,
    /// Durability of the first life, and of those that may follow: 0 `op`, 1 `commit`.
    pub mode: u8,
    /// Durability modes of later mounts.
    pub remount: &'static [u8],
    /// What callers may do, in any order.
    pub ops: &'static [OpKind],
    /// Logical blocks (at most 3), slots (at most 3), records per lane (at most 3).
    pub lbns: usize,
    /// Slots of the ring.
    pub slots: usize,
    /// Records of the lane.
    pub ring: usize,
    /// Rounds may write in place.
    pub in_place: bool,
    /// Rounds may swap.
    pub swap: bool,
    /// The daemon may die as well as the power fail.
    pub deaths: bool,
    /// The simpler scheme: `retired_seq` outside the transaction, after its commit.
    pub retired_after_commit: bool,
    /// Whether a state of rest must stay reachable.
    pub progress: bool,
    /// How often each thing may happen.
    pub budget: Budget,
    /// The orderings that are observed.
    pub kept: Kept,
}

impl Config {
    /// Whether an ordering is observed.
    pub fn keeps(&self, ordering: Ordering) -> bool {
        self.kept.has(ordering)
    }

    /// The bounds in a few words.
    pub fn bounds(&self) -> String {
        let b = &self.budget;
        let mode = |mode| if mode == 0 { "op" } else { "commit" };
        let mut text = format!(
            "{}: {} operations out of {}; LBNs {}, slots {}, ring {}",
            mode(self.mode),
            b.ops,
            self.ops.len(),
            self.lbns,
            self.slots,
            self.ring
        );
        for (n, what) in [
            (
                b.commits * self.mode.max(u8::from(self.remount != [0])),
                "commits",
            ),
            (b.rounds, "rounds"),
            (b.batches, "zeroing passes"),
            (
                b.crashes,
                if self.deaths {
                    "crashes or deaths"
                } else {
                    "crashes"
                },
            ),
            (b.rot, "rot"),
        ] {
            if n > 0 {
                text += &format!(", {what} {n}");
            }
        }
        text
    }
}
