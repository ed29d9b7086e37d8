//! A program and the mode it runs in.
//!
//! Both together are one line, which is how a violation is told and run again:
//! `op: unlink; write-block`, `commit: random 17`, `ordered: threads 3 seed 5`,
//! `swap: scenario ring, dies after 57`.

use std::fmt;
use std::str::FromStr;

use quayfs_pmem::Backend;

use crate::crash::{Depth, Run, Script};
use crate::damage::Left;
use crate::damage::harm::Corruption;
use crate::mkfs::Mkfs;
use crate::pairs::Pair;
use crate::repair::Repair;
use crate::rng::Rng;
use crate::search::alphabet::{ALPHABET, Step, find, prepare};
use crate::search::repairs::repairs;
use crate::search::run::{DEPTH, DEPTH_OF_REPAIRS, DEPTH_OF_THREADS};
use crate::search::scenarios::{SCENARIOS, shape_of};
use crate::{Shape, options};

/// Mount options and the backend that goes with them.
#[derive(Debug, PartialEq, Eq)]
pub struct Mode {
    /// How it is written.
    pub name: &'static str,
    /// As after `-o`.
    pub options: &'static str,
    /// How the region behaves in a crash.
    pub backend: Backend,
}

/// Every data mode, durability, checkpoint policy and staging policy at least once. All steps and scenarios run in
/// each of them.
pub const MODES: &[Mode] = &[
    Mode {
        name: "op",
        options: "noatime,durability=op",
        backend: Backend::Dax,
    },
    Mode {
        name: "commit",
        options: "noatime,durability=commit",
        backend: Backend::File,
    },
    Mode {
        name: "ordered",
        options: "noatime,data=ordered,ablation=workers:1",
        backend: Backend::File,
    },
    Mode {
        name: "swap",
        options: "noatime,durability=op,checkpoint=swap,ablation=staging:central",
        backend: Backend::Dax,
    },
    Mode {
        name: "commit-swap",
        options: "noatime,durability=commit,checkpoint=swap,ablation=locking:file",
        backend: Backend::Dax,
    },
    Mode {
        name: "ordered-inplace",
        options: "noatime,data=ordered,checkpoint=inplace,ablation=nodelog:ssd",
        backend: Backend::Dax,
    },
    Mode {
        name: "writeback",
        options: "noatime,data=writeback,checkpoint=double",
        backend: Backend::Dax,
    },
    Mode {
        name: "commit-large",
        options: "noatime,durability=commit,large=4K",
        backend: Backend::File,
    },
];

/// With those above, each choice of a switch together with each choice of each other one that it can be
/// mounted with.
pub const PAIRS: &[Mode] = &[
    Mode {
        name: "op-file",
        options: "noatime,durability=op,checkpoint=inplace,ablation=staging:central,ablation=workers:1",
        backend: Backend::File,
    },
    Mode {
        name: "op-double",
        options: "noatime,durability=op,checkpoint=double,ablation=staging:central,\
                  ablation=locking:file,ablation=workers:1",
        backend: Backend::File,
    },
    Mode {
        name: "commit-node-log",
        options: "noatime,durability=commit,ablation=staging:central,ablation=locking:file,\
                  ablation=workers:1,ablation=nodelog:ssd",
        backend: Backend::Dax,
    },
    Mode {
        name: "ordered-swap",
        options: "noatime,data=ordered,checkpoint=swap,ablation=staging:central,\
                  ablation=locking:file,ablation=workers:1,ablation=nodelog:ssd",
        backend: Backend::File,
    },
    Mode {
        name: "ordered-double",
        options: "noatime,data=ordered,checkpoint=double,ablation=staging:central,ablation=nodelog:ssd",
        backend: Backend::File,
    },
    Mode {
        name: "writeback-swap",
        options: "noatime,data=writeback,checkpoint=swap,ablation=locking:file",
        backend: Backend::File,
    },
    Mode {
        name: "writeback-inplace",
        options: "noatime,data=writeback,checkpoint=inplace,ablation=staging:central,\
                  ablation=locking:file,ablation=workers:1,ablation=nodelog:ssd",
        backend: Backend::File,
    },
    Mode {
        name: "writeback-node-log",
        options: "noatime,data=writeback,ablation=staging:central,ablation=nodelog:ssd",
        backend: Backend::Dax,
    },
];

/// All of them.
pub fn modes() -> Vec<&'static Mode> {
    MODES.iter().chain(PAIRS).collect()
}

/// Those for programs with threads: with `data=writeback`, where data is neither in the journal nor written before
/// its record, they could not say what may be in a file.
fn modes_of_threads() -> Vec<&'static Mode> {
    let mut all = modes();
    all.retain(|m| !m.options.contains("data=writeback"));
    all
}

/// What runs.
#[derive(Clone, PartialEq, Eq)]
pub enum Text {
    /// Steps of the alphabet, then everything that happens in the background.
    Steps(Vec<&'static str>),
    /// One of the [`SCENARIOS`].
    Scenario(&'static str),
    /// Random steps with the background in between.
    Random(u64),
    /// Random steps, the death of the daemon in the middle of one, and more of them.
    Killed(u64),
    /// Threads with a seed.
    Threads(u64, u64),
    /// The same for longer, without a look at the crashes: what threads do to each other shows while
    /// they run.
    Race(u64, u64),
    /// A volume is made, over another one or over nothing.
    Mkfs(bool),
    /// A volume that was left in some state is damaged and repaired.
    Repair(Left, Vec<Corruption>),
}

/// A program in a mode.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    pub mode: &'static Mode,
    pub text: Text,
    /// After how many events the daemon dies, if it does: steps, scenarios and repairs only. Crashes come after.
    pub dies: Option<usize>,
    /// After deaths of the daemon the mount goes on.
    pub goes_on: bool,
}

impl Program {
    /// All programs of one step in each of [`MODES`], then all of two, each in a mode that depends on
    /// `seed`: as many seeds in a row as there are [`modes`] have them all in all.
    pub fn short(seed: u64) -> Vec<Self> {
        let all = modes();
        let one = |mode: usize, steps: Vec<&'static str>| Self {
            mode: all[mode % all.len()],
            text: Text::Steps(steps),
            dies: None,
            goes_on: false,
        };
        let single = ALPHABET
            .iter()
            .flat_map(|a| (0..MODES.len()).map(move |mode| one(mode, vec![a.name])));
        let pairs = (0..ALPHABET.len() * ALPHABET.len()).map(|n| {
            let (a, b) = (n / ALPHABET.len(), n % ALPHABET.len());
            let mode = (a * 5 + b) as u64 + seed;
            one(mode as usize, vec![ALPHABET[a].name, ALPHABET[b].name])
        });
        let scenarios = SCENARIOS.iter().flat_map(|(name, _)| {
            MODES.iter().map(|mode| Self {
                mode,
                text: Text::Scenario(name),
                dies: None,
                goes_on: false,
            })
        });
        let mkfs = [false, true].into_iter().flat_map(|over| {
            MODES[..2].iter().map(move |mode| Self {
                mode,
                text: Text::Mkfs(over),
                dies: None,
                goes_on: false,
            })
        });
        mkfs.chain(repairs())
            .chain(scenarios)
            .chain(single)
            .chain(pairs)
            .collect()
    }

    /// The `n`th of the programs that never end: random ones, some with threads, some with
    /// deaths.
    pub fn long(seed: u64, n: u64) -> Self {
        let modes = match n % 5 {
            3 => modes_of_threads(),
            _ => modes(),
        };
        // By the turn, not by the number: else a kind would miss modes if their number is a multiple of five.
        let mode = modes[(n / 5) as usize % modes.len()];
        let seed = seed.wrapping_mul(1 << 20) + n;
        let text = match n % 5 {
            3 => Text::Threads(2 + n / 5 % 3, seed),
            1 => {
                return Self {
                    mode,
                    text: Text::Killed(seed),
                    dies: None,
                    goes_on: n / 5 / modes.len() as u64 % 2 == 1,
                };
            }
            4 => return Self::mortal(mode, seed),
            _ => Text::Random(seed),
        };
        Self {
            mode,
            text,
            dies: None,
            goes_on: false,
        }
    }

    /// The deaths of this program at every `step`th moment of it.
    pub fn deaths(&self, step: usize) -> Vec<Self> {
        let events = self.run().trace().len();
        let dies = |n| Self {
            dies: Some(n),
            ..self.clone()
        };
        (0..=events).step_by(step).map(dies).collect()
    }

    /// A scenario or a step, and a death at some moment of it.
    fn mortal(mode: &'static Mode, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let n = rng.below((SCENARIOS.len() * 4 + ALPHABET.len()) as u64) as usize;
        let (text, events) = match n.checked_sub(SCENARIOS.len() * 4) {
            None => (Text::Scenario(SCENARIOS[n % SCENARIOS.len()].0), 900),
            Some(step) => (Text::Steps(vec![ALPHABET[step].name]), 120),
        };
        Self {
            mode,
            text,
            dies: Some(rng.below(events) as usize),
            goes_on: rng.below(2) == 1,
        }
    }

    /// The `n`th of those with threads, in every mode in turn; most of them races.
    pub fn threads(seed: u64, n: u64) -> Self {
        let all = modes_of_threads();
        let modes = all.len();
        let (turn, mode) = (n / modes as u64, n as usize % modes);
        let (threads, seed) = (2 + turn / 4 % 3, seed.wrapping_mul(1 << 20) + turn);
        let text = if turn.is_multiple_of(4) {
            Text::Threads(threads, seed)
        } else {
            Text::Race(threads, seed)
        };
        Self {
            mode: all[mode],
            text,
            dies: None,
            goes_on: false,
        }
    }

    /// How closely its crashes are looked at.
    pub fn depth(&self) -> Depth {
        match self.text {
            Text::Threads(..) => DEPTH_OF_THREADS,
            Text::Repair(..) => DEPTH_OF_REPAIRS,
            _ => DEPTH,
        }
    }

    /// Carries it out and records it.
    pub fn run(&self) -> Box<dyn Run> {
        let shape = match self.text {
            Text::Scenario(name) => shape_of(name),
            Text::Random(seed)
            | Text::Killed(seed)
            | Text::Threads(_, seed)
            | Text::Race(_, seed)
                if seed % 2 == 0 =>
            {
                &Shape::TIGHT
            }
            _ => &Shape::TINY,
        };
        let mode = options(self.mode.options);
        let threads = match self.text {
            Text::Threads(threads, seed) => Some((threads, 12, seed)),
            Text::Race(threads, seed) => Some((threads, 48, seed)),
            _ => None,
        };
        if let Some((threads, steps, seed)) = threads {
            // A rename is promised 16 pages. A thread that finds all that is left promised to others is
            // told that there is no space, which the model knows nothing of.
            let nodes = shape.nodes + 16 * threads;
            let with = (&Shape { nodes, ..*shape }, self.mode.backend);
            return Box::new(Pair::run(with, &mode, threads, steps, seed));
        }
        if let Text::Mkfs(over) = self.text {
            let name = self.to_string();
            return Box::new(Mkfs::run(name, shape, self.mode.backend, over));
        }
        if let Text::Repair(left, ills) = &self.text {
            let name = self.to_string();
            let with = (self.mode.backend, &mode);
            return Box::new(Repair::run(name, *left, ills, self.dies, with));
        }
        let mut s = Script::new(&self.to_string(), shape, self.mode.backend, &mode);
        if self.goes_on {
            s.go_on();
        }
        match self.dies {
            Some(events) => s.dies(events, |s| self.play(s)),
            None => self.play(&mut s),
        }
        Box::new(s)
    }

    /// What one thread does.
    fn play(&self, s: &mut Script) {
        if !matches!(self.text, Text::Scenario(_)) {
            prepare(s);
        }
        match &self.text {
            Text::Steps(names) => {
                let steps: Vec<&Step> = names.iter().filter_map(|name| find(name)).collect();
                for step in steps {
                    step.run(s);
                }
                s.background();
            }
            Text::Scenario(name) => {
                if let Some((_, scenario)) = SCENARIOS.iter().find(|(n, _)| n == name) {
                    scenario(s);
                }
            }
            Text::Random(seed) => {
                s.random(*seed, 40);
                s.background();
            }
            Text::Killed(seed) => {
                s.killed(*seed, 12);
                s.killed(*seed + 1, 8);
                s.random(*seed, 4);
                s.background();
            }
            Text::Threads(..) | Text::Race(..) | Text::Mkfs(_) | Text::Repair(..) => {}
        }
    }
}

/// Behind a program whose mount outlives its daemon.
const GOES_ON: &str = ", goes on";

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.mode.name)?;
        match &self.text {
            Text::Mkfs(over) => f.write_str(if *over { "mkfs over" } else { "mkfs" }),
            Text::Steps(names) => f.write_str(&names.join("; ")),
            Text::Scenario(name) => write!(f, "scenario {name}"),
            Text::Random(seed) => write!(f, "random {seed}"),
            Text::Killed(seed) => write!(f, "killed {seed}"),
            Text::Threads(threads, seed) => write!(f, "threads {threads} seed {seed}"),
            Text::Race(threads, seed) => write!(f, "race {threads} seed {seed}"),
            Text::Repair(left, ills) => {
                write!(f, "repair {}", left.name())?;
                ills.iter().try_for_each(|ill| write!(f, ", {ill}"))
            }
        }?;
        if let Some(events) = self.dies {
            write!(f, ", dies after {events}")?;
        }
        f.write_str(if self.goes_on { GOES_ON } else { "" })
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (mode, text) = line
            .split_once(':')
            .ok_or("a program is MODE: STEP; STEP")?;
        let mode = modes()
            .into_iter()
            .find(|m| m.name == mode.trim())
            .ok_or_else(|| format!("no mode {mode}"))?;
        let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
        let (text, goes_on) = match text.strip_suffix(GOES_ON) {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (text, dies) = match text.split_once(", dies after ") {
            Some((text, events)) => (text, Some(number(events.trim())? as usize)),
            None => (text, None),
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = match words[..] {
            ["scenario", name] => Text::Scenario(
                SCENARIOS
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(n, _)| *n)
                    .ok_or_else(|| format!("no scenario {name}"))?,
            ),
            ["mkfs"] => Text::Mkfs(false),
            ["mkfs", "over"] => Text::Mkfs(true),
            ["random", seed] => Text::Random(number(seed)?),
            ["killed", seed] => Text::Killed(number(seed)?),
            ["threads", threads, "seed", seed] => Text::Threads(number(threads)?, number(seed)?),
            ["repair", ..] => {
                let mut parts = text.trim().trim_start_matches("repair").split(',');
                let left = parts.next().unwrap_or_default().trim();
                let left = Left::named(left).ok_or_else(|| format!("nothing is left {left}"))?;
                Text::Repair(left, parts.map(str::parse).collect::<Result<_, _>>()?)
            }
            ["race", threads, "seed", seed] => Text::Race(number(threads)?, number(seed)?),
            _ => Text::Steps(
                text.split(';')
                    .map(|name| {
                        let name = name.trim();
                        find(name)
                            .map(|s| s.name)
                            .ok_or_else(|| format!("no step {name}"))
                    })
                    .collect::<Result<_, _>>()?,
            ),
        };
        let mortal = matches!(
            text,
            Text::Steps(_) | Text::Scenario(_) | Text::Random(_) | Text::Repair(..)
        );
        if dies.is_some() && !mortal {
            return Err("only steps, scenarios, random programs and repairs die".into());
        }
        Ok(Self {
            mode,
            text,
            dies,
            goes_on,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_options::{Durability, MountOptions};
    use std::collections::HashSet;

    #[test]
    fn a_program_is_what_its_line_says() {
        let programs = Program::short(5);
        assert_eq!(
            programs.len(),
            ALPHABET.len() * (MODES.len() + ALPHABET.len())
                + SCENARIOS.len() * MODES.len()
                + 4
                + repairs().len()
        );
        let long = (0..20).map(|n| Program::long(3, n));
        let threads = (0..30).map(|n| Program::threads(3, n));
        for p in programs.into_iter().chain(long).chain(threads) {
            assert!(p.to_string().parse() == Ok(p));
        }
        assert!("op: sing".parse::<Program>().is_err());
        assert!("nowhere: create".parse::<Program>().is_err());
    }

    #[test]
    fn long_ones_of_each_kind_meet_every_mode() {
        let rounds = 5 * modes().len() as u64;
        for kind in 0..5 {
            let met: HashSet<&str> = (0..rounds)
                .filter(|n| n % 5 == kind)
                .map(|n| Program::long(3, n).mode.name)
                .collect();
            let all = match kind {
                3 => modes_of_threads().len(),
                _ => modes().len(),
            };
            assert_eq!(met.len(), all, "kind {kind}");
        }
    }

    /// The documents say how many there are, how many letters they are made of, and how long continuous integration
    /// searches after them.
    #[test]
    fn the_documents_count_the_short_ones() {
        let all = Program::short(1).len();
        let shares = shares_of_ci();
        let share = match all % shares {
            0 => format!("{}", all / shares),
            _ => format!("{} or {}", all / shares, all / shares + 1),
        };
        let letters = (ALPHABET.len(), SCENARIOS.len(), repairs().len());
        for (text, phrase) in [
            (
                include_str!("../../../../docs/internals/testing.md"),
                format!("steps are {all}: {share} of"),
            ),
            (
                include_str!("../../../../docs/internals/testing.md"),
                format!("until {} seconds have passed", seconds_of_ci()),
            ),
            (
                include_str!("../../../../docs/internals/crash-consistency.md"),
                format!(
                    "{} steps, {} scenarios and {} repairs make {all} short programs",
                    letters.0, letters.1, letters.2
                ),
            ),
        ] {
            let text: Vec<&str> = text.split_whitespace().collect();
            assert!(
                text.join(" ").contains(&phrase),
                "not said any more: {phrase}"
            );
        }
    }

    /// The number that stands behind this in what continuous integration runs.
    fn in_ci(before: &str) -> u64 {
        let (_, rest) = include_str!("../../../../.ci/run")
            .split_once(before)
            .expect("the step of the search");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    }

    fn seconds_of_ci() -> u64 {
        in_ci("crash SECONDS=")
    }

    fn shares_of_ci() -> usize {
        in_ci("+ 1))/") as usize
    }

    /// What a mode chooses of each switch.
    fn choices(options: &MountOptions, backend: Backend) -> [String; 8] {
        let a = &options.ablation;
        let durability = match backend {
            Backend::File => Durability::Commit,
            _ => Durability::Op,
        };
        [
            format!("{:?}", options.data),
            format!("{:?}", options.durability_for(durability)),
            format!("{:?}", a.checkpoint.unwrap_or(options.checkpoint)),
            format!("central staging {}", a.central_staging),
            format!("locks of files {}", a.file_locking),
            format!("one worker {}", a.one_worker),
            format!("node log on the device {}", a.node_log_on_device),
            format!("{backend:?}"),
        ]
    }

    fn pairs(choices: &[String; 8]) -> Vec<(&String, &String)> {
        let at = |i: usize| choices[..i].iter().map(move |other| (other, &choices[i]));
        (0..choices.len()).flat_map(at).collect()
    }

    /// Nothing is lost of them, though they are on their way for as long as they can be.
    #[test]
    fn large_writes_outlive_the_daemon() {
        let mode = MODES.iter().find(|m| m.name == "commit-large").unwrap();
        let mut under_way = 0;
        for seed in 0..60 {
            let mut s = Script::new(
                "large writes",
                &Shape::TINY,
                mode.backend,
                &options(mode.options),
            );
            s.go_on();
            prepare(&mut s);
            s.killed(seed, 12);
            s.killed(seed + 1000, 8);
            s.random(seed, 4);
            s.background();
            under_way += s.under_way;
            s.end();
        }
        assert!(under_way > 10, "{under_way}");
    }

    #[test]
    fn each_choice_of_a_switch_is_crashed_with_each_of_each_other() {
        let switches: [&[&str]; 7] = [
            &["data=journal", "data=ordered", "data=writeback"],
            &["durability=op", "durability=commit"],
            &[
                "checkpoint=adaptive",
                "checkpoint=swap",
                "checkpoint=inplace",
                "checkpoint=double",
            ],
            &["", "ablation=staging:central"],
            &["", "ablation=locking:file"],
            &["", "ablation=workers:1"],
            &["", "ablation=nodelog:ssd"],
        ];
        let mut mounts = vec![Vec::new()];
        for switch in switches {
            let with = |m: &Vec<_>| -> Vec<Vec<&str>> {
                let one = |choice| m.iter().copied().chain([choice]).collect();
                switch.iter().copied().map(one).collect()
            };
            mounts = mounts.iter().flat_map(with).collect();
        }
        let crashed: Vec<_> = modes()
            .iter()
            .map(|m| choices(&options(m.options), m.backend))
            .collect();
        let crashed: HashSet<_> = crashed.iter().flat_map(pairs).collect();
        let mut possible = 0;
        for mount in mounts {
            let chosen: Vec<&str> = mount.into_iter().filter(|o| !o.is_empty()).collect();
            // Some contradict each other.
            let Ok(options) = MountOptions::parse(&chosen) else {
                continue;
            };
            possible += 1;
            for backend in [Backend::Dax, Backend::File] {
                for pair in pairs(&choices(&options, backend)) {
                    assert!(crashed.contains(&pair), "{pair:?}: {chosen:?}");
                }
            }
        }
        assert!(possible > 100, "{possible}");
    }
}
