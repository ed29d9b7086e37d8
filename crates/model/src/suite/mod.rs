//! What is run: every model under its configurations, and every ordering taken out once.

mod cases;
mod trials;

pub use cases::cases;
pub use trials::{Expect, Trial, trials};

use crate::checker::{Outcome, explore};
use crate::credits::{self, Credits};
use crate::image::{self, Images};
use crate::intent::{self, Intents};
use crate::lane::{self, Lanes};
use crate::ordering::{Kept, Ordering};
use crate::ppt::{self, Log};
use crate::reader::{self, Readers};
use crate::volume::{self, Volume};

/// More states than any configuration has.
const LIMIT: usize = 40_000_000;

/// How far the bounds go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// What the tests run.
    Quick,
    /// What the binary runs.
    Full,
}

/// A model under one configuration.
#[derive(Clone, Debug)]
pub enum Case {
    /// One operation at a time, digest, rounds, commits, recovery.
    Volume(volume::Config),
    /// Numbers, bounds, lanes, cuts.
    Lane(lane::Config),
    /// Operations that share objects.
    Image(image::Config),
    /// L2P transactions.
    Log(ppt::Config),
    /// A read beside everything else.
    Reader(reader::Config),
    /// Space and locks.
    Credit(credits::Config),
    /// Truncates in steps.
    Intent(intent::Config),
}

impl Case {
    /// The name of the model.
    pub fn model(&self) -> &'static str {
        match self {
            Case::Volume(_) => "volume",
            Case::Lane(_) => "lane",
            Case::Image(_) => "image",
            Case::Log(_) => "l2p log",
            Case::Reader(_) => "reader",
            Case::Credit(_) => "credit",
            Case::Intent(_) => "intent",
        }
    }

    /// The name of the configuration, unique over all models.
    pub fn name(&self) -> &'static str {
        match self {
            Case::Volume(c) => c.name,
            Case::Lane(c) => c.name,
            Case::Image(c) => c.name,
            Case::Log(c) => c.name,
            Case::Reader(c) => c.name,
            Case::Credit(c) => c.name,
            Case::Intent(c) => c.name,
        }
    }

    /// The same without some orderings.
    pub fn without(&self, out: &[Ordering]) -> Case {
        let kept = out
            .iter()
            .fold(Kept::ALL, |kept, &ordering| kept.without(ordering));
        let mut case = self.clone();
        match &mut case {
            Case::Volume(c) => c.kept = kept,
            Case::Lane(c) => c.kept = kept,
            Case::Image(c) => c.kept = kept,
            Case::Log(c) => c.kept = kept,
            Case::Reader(c) => c.kept = kept,
            Case::Credit(c) => c.kept = kept,
            Case::Intent(c) => c.kept = kept,
        }
        case
    }

    /// Visits everything.
    pub fn run(&self) -> Outcome {
        match self.clone() {
            Case::Volume(c) => explore(&Volume(c), LIMIT),
            Case::Lane(c) => explore(&Lanes(c), LIMIT),
            Case::Image(c) => explore(&Images(c), LIMIT),
            Case::Log(c) => explore(&Log(c), LIMIT),
            Case::Reader(c) => explore(&Readers(c), LIMIT),
            Case::Credit(c) => explore(&Credits(c), LIMIT),
            Case::Intent(c) => explore(&Intents(c), LIMIT),
        }
    }

    /// The bounds in a few words.
    pub fn bounds(&self) -> String {
        match self {
            Case::Volume(c) => c.bounds(),
            Case::Lane(c) => {
                let jobs: usize = c.jobs.iter().map(|jobs| jobs.len()).sum();
                let mode = if c.commit { "commit" } else { "op" };
                format!(
                    "{mode}; {jobs} ops, 2 lanes of {}, {} committers",
                    c.ring, c.committers
                )
            }
            Case::Image(c) => {
                let mode = if c.commit { "commit" } else { "op" };
                let jobs: Vec<String> = c.jobs.iter().map(|job| format!("{job:?}")).collect();
                format!("{mode}; {}", jobs.join(" | "))
            }
            Case::Log(c) => {
                format!(
                    "{} txns, {} single stores, {} crashes",
                    c.txns, c.stores, c.crashes
                )
            }
            Case::Reader(c) => {
                let who = if c.scrub { "scrub" } else { "read" };
                let way = if c.swap {
                    "swapping round"
                } else {
                    "round in place"
                };
                format!("{who}, write, {way}")
            }
            Case::Credit(c) => {
                let [slots, log, lbns, pages] = c.space;
                format!("{slots} slots, {log} records, {lbns} LBNs, {pages} pages")
            }
            Case::Intent(c) => format!(
                "{} truncates, {} writes, {} extensions, {} crashes",
                c.truncates, c.writes, c.extends, c.crashes
            ),
        }
    }
}
