//! A program and the mode it runs in.
//!
//! Both together are one line, which is how a violation is told and run again:
//! `op: unlink; write-block`, `commit: random 17`, `ordered: threads 3 seed 5`.

use std::fmt;
use std::str::FromStr;

use quayfs_pmem::Backend;

use crate::crash::{Run, Script};
use crate::duo::Duo;
use crate::search::alphabet::{ALPHABET, Step, find, prepare};
use crate::search::stories::STORIES;
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

/// Every data mode, durability, checkpoint policy and staging policy at least once.
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
        options: "noatime,data=ordered",
        backend: Backend::File,
    },
    Mode {
        name: "swap",
        options: "noatime,durability=op,checkpoint=swap,ablation=staging:central",
        backend: Backend::Dax,
    },
    Mode {
        name: "commit-swap",
        options: "noatime,durability=commit,checkpoint=swap",
        backend: Backend::Dax,
    },
    Mode {
        name: "ordered-inplace",
        options: "noatime,data=ordered,checkpoint=inplace",
        backend: Backend::Dax,
    },
];

/// What runs.
#[derive(Clone, PartialEq, Eq)]
pub enum Text {
    /// Steps of the alphabet, then everything that happens in the background.
    Steps(Vec<&'static str>),
    /// One of the [`STORIES`], on the tight volume.
    Story(&'static str),
    /// Random steps with the background in between.
    Random(u64),
    /// Random steps, the death of the daemon in the middle of one, and more of them.
    Killed(u64),
    /// Threads with a seed.
    Threads(u64, u64),
}

/// A program in a mode.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    pub mode: &'static Mode,
    pub text: Text,
}

impl Program {
    /// All programs of one step in every mode, then all of two, each in a mode that depends on
    /// `seed`: six seeds in a row have them all in all modes.
    pub fn short(seed: u64) -> Vec<Self> {
        let one = |mode: usize, steps: Vec<&'static str>| Self {
            mode: &MODES[mode % MODES.len()],
            text: Text::Steps(steps),
        };
        let single = ALPHABET
            .iter()
            .flat_map(|a| (0..MODES.len()).map(move |mode| one(mode, vec![a.name])));
        let pairs = (0..ALPHABET.len() * ALPHABET.len()).map(|n| {
            let (a, b) = (n / ALPHABET.len(), n % ALPHABET.len());
            let mode = (a * 5 + b) as u64 + seed;
            one(mode as usize, vec![ALPHABET[a].name, ALPHABET[b].name])
        });
        let stories = STORIES.iter().flat_map(|(name, _)| {
            MODES.iter().map(|mode| Self {
                mode,
                text: Text::Story(name),
            })
        });
        stories.chain(single).chain(pairs).collect()
    }

    /// The `n`th of the programs that never end: random ones, some with threads, some with
    /// deaths.
    pub fn long(seed: u64, n: u64) -> Self {
        let mode = &MODES[n as usize % MODES.len()];
        let seed = seed.wrapping_mul(1 << 20) + n;
        let text = match n % 5 {
            3 => Text::Threads(2 + n / 5 % 3, seed),
            1 | 4 => Text::Killed(seed),
            _ => Text::Random(seed),
        };
        Self { mode, text }
    }

    /// Carries it out and records it.
    pub fn run(&self) -> Box<dyn Run> {
        let shape = match self.text {
            Text::Story(_) => &Shape::TIGHT,
            Text::Random(seed) | Text::Killed(seed) | Text::Threads(_, seed) if seed % 2 == 0 => {
                &Shape::TIGHT
            }
            _ => &Shape::TINY,
        };
        let mode = options(self.mode.options);
        let script = || Script::new(&self.to_string(), shape, self.mode.backend, &mode);
        match &self.text {
            Text::Steps(names) => {
                let mut s = script();
                prepare(&mut s);
                let steps: Vec<&Step> = names.iter().filter_map(|name| find(name)).collect();
                for step in steps {
                    step.run(&mut s);
                }
                s.background();
                Box::new(s)
            }
            Text::Story(name) => {
                let mut s = script();
                if let Some((_, story)) = STORIES.iter().find(|(n, _)| n == name) {
                    story(&mut s);
                }
                Box::new(s)
            }
            Text::Random(seed) => {
                let mut s = script();
                prepare(&mut s);
                s.random(*seed, 40);
                s.background();
                Box::new(s)
            }
            Text::Killed(seed) => {
                let mut s = script();
                prepare(&mut s);
                s.killed(*seed, 12);
                s.killed(*seed + 1, 8);
                s.random(*seed, 4);
                s.background();
                Box::new(s)
            }
            Text::Threads(threads, seed) => {
                let with = (shape, self.mode.backend);
                Box::new(Duo::run(with, &mode, *threads, 12, *seed))
            }
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.mode.name)?;
        match &self.text {
            Text::Steps(names) => f.write_str(&names.join("; ")),
            Text::Story(name) => write!(f, "story {name}"),
            Text::Random(seed) => write!(f, "random {seed}"),
            Text::Killed(seed) => write!(f, "killed {seed}"),
            Text::Threads(threads, seed) => write!(f, "threads {threads} seed {seed}"),
        }
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (mode, text) = line
            .split_once(':')
            .ok_or("a program is MODE: STEP; STEP")?;
        let mode = MODES
            .iter()
            .find(|m| m.name == mode.trim())
            .ok_or_else(|| format!("no mode {mode}"))?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
        let text = match words[..] {
            ["story", name] => Text::Story(
                STORIES
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(n, _)| *n)
                    .ok_or_else(|| format!("no story {name}"))?,
            ),
            ["random", seed] => Text::Random(number(seed)?),
            ["killed", seed] => Text::Killed(number(seed)?),
            ["threads", threads, "seed", seed] => Text::Threads(number(threads)?, number(seed)?),
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
        Ok(Self { mode, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_what_its_line_says() {
        let programs = Program::short(5);
        assert_eq!(
            programs.len(),
            ALPHABET.len() * (MODES.len() + ALPHABET.len()) + STORIES.len() * MODES.len()
        );
        let long = (0..8).map(|n| Program::long(3, n));
        for p in programs.into_iter().chain(long) {
            assert!(p.to_string().parse() == Ok(p));
        }
        assert!("op: sing".parse::<Program>().is_err());
        assert!("nowhere: create".parse::<Program>().is_err());
    }
}
