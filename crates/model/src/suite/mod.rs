//! What is run: every model under its configurations, and every ordering taken out once.

mod cases;
mod trials;
mod volumes;

pub use cases::cases;
pub use trials::{Expect, Trial, trials};
pub use volumes::strolls;

use crate::batch::{self, Batches};
use crate::behind::{self, Behind};
use crate::checker::{Outcome, explore, walk};
use crate::credits::{self, Credits};
use crate::image::{self, Images};
use crate::intent::{self, Intents};
use crate::lane::{self, Lanes};
use crate::ordering::{Kept, Ordering};
use crate::ppt::{self, Log};
use crate::reader::{self, Readers};
use crate::redo::{self, Redo};
use crate::restart::{self, Restarts};
use crate::shadow::{self, Shadow};
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
pub struct Case(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Volume(volume::Config),
    Lane(lane::Config),
    Image(image::Config),
    Log(ppt::Config),
    Reader(reader::Config),
    Credit(credits::Config),
    Intent(intent::Config),
    Batch(batch::Config),
    Redo(redo::Config),
    Restart(restart::Config),
    Behind(behind::Config),
    Shadow(shadow::Config),
}

impl Case {
    /// The name of the model.
    pub fn model(&self) -> &'static str {
        match &self.0 {
            Kind::Volume(_) => "volume",
            Kind::Lane(_) => "lane",
            Kind::Image(_) => "image",
            Kind::Log(_) => "l2p log",
            Kind::Reader(_) => "reader",
            Kind::Credit(_) => "credit",
            Kind::Intent(_) => "intent",
            Kind::Batch(_) => "batch",
            Kind::Redo(_) => "redo",
            Kind::Restart(_) => "restart",
            Kind::Behind(_) => "behind",
            Kind::Shadow(_) => "shadow",
        }
    }

    /// The name of the configuration, unique over all models.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Volume(c) => c.name,
            Kind::Lane(c) => c.name,
            Kind::Image(c) => c.name,
            Kind::Log(c) => c.name,
            Kind::Reader(c) => c.name,
            Kind::Credit(c) => c.name,
            Kind::Intent(c) => c.name,
            Kind::Batch(c) => c.name,
            Kind::Redo(c) => c.name,
            Kind::Restart(c) => c.name,
            Kind::Behind(c) => c.name,
            Kind::Shadow(c) => c.name,
        }
    }

    /// The same without some orderings.
    pub fn without(&self, out: &[Ordering]) -> Case {
        let kept = out
            .iter()
            .fold(Kept::ALL, |kept, &ordering| kept.without(ordering));
        let mut case = self.clone();
        match &mut case.0 {
            Kind::Volume(c) => c.kept = kept,
            Kind::Lane(c) => c.kept = kept,
            Kind::Image(c) => c.kept = kept,
            Kind::Log(c) => c.kept = kept,
            Kind::Reader(c) => c.kept = kept,
            Kind::Credit(c) => c.kept = kept,
            Kind::Intent(c) => c.kept = kept,
            Kind::Batch(c) => c.kept = kept,
            Kind::Redo(c) => c.kept = kept,
            Kind::Restart(c) => c.kept = kept,
            Kind::Behind(c) => c.kept = kept,
            Kind::Shadow(c) => c.kept = kept,
        }
        case
    }

    /// Visits everything.
    pub fn run(&self) -> Outcome {
        match self.0.clone() {
            Kind::Volume(c) => explore(&Volume(c), LIMIT),
            Kind::Lane(c) => explore(&Lanes(c), LIMIT),
            Kind::Image(c) => explore(&Images(c), LIMIT),
            Kind::Log(c) => explore(&Log(c), LIMIT),
            Kind::Reader(c) => explore(&Readers(c), LIMIT),
            Kind::Credit(c) => explore(&Credits(c), LIMIT),
            Kind::Intent(c) => explore(&Intents(c), LIMIT),
            Kind::Batch(c) => explore(&Batches(c), LIMIT),
            Kind::Redo(c) => explore(&Redo(c), LIMIT),
            Kind::Restart(c) => explore(&Restarts(c), LIMIT),
            Kind::Behind(c) => explore(&Behind(c), LIMIT),
            Kind::Shadow(c) => explore(&Shadow(c), LIMIT),
        }
    }

    /// The bounds in a few words.
    pub fn bounds(&self) -> String {
        match &self.0 {
            Kind::Volume(c) => c.bounds(),
            Kind::Batch(c) => c.bounds(),
            Kind::Lane(c) => {
                let jobs: usize = c.jobs.iter().map(|jobs| jobs.len()).sum();
                let mode = if c.commit { "commit" } else { "op" };
                format!(
                    "{mode}; {jobs} ops, 2 lanes of {}, {} committers",
                    c.ring, c.committers
                )
            }
            Kind::Image(c) => {
                let mode = if c.commit { "commit" } else { "op" };
                let jobs: Vec<String> = c.jobs.iter().map(|job| format!("{job:?}")).collect();
                format!("{mode}: {}", jobs.join(", "))
            }
            Kind::Log(c) => {
                format!(
                    "{} txns, {} single stores, {} crashes",
                    c.txns, c.stores, c.crashes
                )
            }
            Kind::Reader(c) => {
                let who = if c.scrub { "scrub" } else { "read" };
                let way = if c.swap {
                    "swapping round"
                } else {
                    "round in place"
                };
                format!("{who}, write, {way}")
            }
            Kind::Credit(c) => {
                let [slots, log, lbns, pages] = c.space;
                format!("slots {slots}, records {log}, LBNs {lbns}, pages {pages}")
            }
            Kind::Redo(c) => format!(
                "stores {}, settled at home {}, crashes or deaths {}",
                c.stores, c.at_home, c.crashes
            ),
            Kind::Restart(c) => {
                let records: Vec<_> = c
                    .requests
                    .iter()
                    .filter(|n| **n > 0)
                    .map(u8::to_string)
                    .collect();
                format!(
                    "requests of {} records, {} threads, others {}, deaths {}",
                    records.join(" + "),
                    c.threads,
                    c.background,
                    c.deaths
                )
            }
            Kind::Behind(c) => format!("files {}, deaths {}", c.files, c.deaths),
            Kind::Shadow(c) => format!(
                "stores {} to each, looks {}, deaths {}",
                c.stores, c.looks, c.deaths
            ),
            Kind::Intent(c) => format!(
                "truncates {}, writes {}, extensions {}, crashes {}",
                c.truncates, c.writes, c.extends, c.crashes
            ),
        }
    }

    /// Walks at random instead of visiting everything; only the volume model has bounds for that.
    pub fn stroll(&self, seed: u64, walks: u32) -> Option<Outcome> {
        match self.0.clone() {
            Kind::Volume(c) => Some(walk(&Volume(c), seed, walks)),
            _ => None,
        }
    }
}
