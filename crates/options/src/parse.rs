//! Reading `-o` lists.
//!
//! Three kinds of option arrive here: our own, the flags that the kernel implements, and those
//! that only mount(8) and fstab understand and that it passes on. Of the kernel's flags the last
//! one wins, because fstab and the command line are merged that way; our own options may be
//! repeated but not contradicted.

mod fit;
mod foreign;
mod values;

use super::{Acls, AtimePolicy, Durability, MountOptions, OptionError, Quota, Restart};
use foreign::{impossible, is_for_others};
use quayfs_layout::geometry::BUFFERS_MAX;
use quayfs_pmem::LEAST_MEMORY;
use std::ops::RangeInclusive;
use values::{ABLATIONS, bad, choose, name, number, size};

pub use foreign::{ACCEPTED, REFUSED};

pub(super) use foreign::FROM_THE_TABLE;

/// The most that `large=` takes: more than any request has.
const LARGE_MAX: u64 = 1 << 30;
/// The most that `read_ahead=` takes.
const READ_AHEAD_MAX: u64 = 1 << 30;

/// The least and the most that `memory=` takes.
const MEMORY: RangeInclusive<u64> = 2 * LEAST_MEMORY..=1 << 50;

const SAID_TWICE: &str = "keep one of them";

impl MountOptions {
    /// Reads the values of any number of `-o` arguments, each a list separated by commas. Empty
    /// elements are skipped. Unknown options, impossible values and contradictions are errors.
    pub fn parse(lists: &[&str]) -> Result<Self, OptionError> {
        let words = words(lists);
        let mut parser = Parser {
            remount: words.contains(&"remount"),
            ..Parser::default()
        };
        for word in words {
            parser.word(word)?;
        }
        parser.finish()
    }
}

/// The elements of lists that are separated by commas.
pub(super) fn words<'a>(lists: &[&'a str]) -> Vec<&'a str> {
    let all = lists.iter().flat_map(|l| l.split(','));
    all.filter(|w| !w.is_empty()).collect()
}

#[derive(Default)]
pub(super) struct Parser<'a> {
    options: MountOptions,
    remount: bool,
    /// That nothing is to be recovered, and how it was said.
    norecovery: Option<&'a str>,
    /// Our own options so far: what each is about, and how it was said.
    said: Vec<(&'a str, &'a str)>,
}

impl<'a> Parser<'a> {
    /// Reads what is said of a mount that has these options.
    pub(super) fn onto(options: MountOptions) -> Self {
        Self {
            options,
            remount: true,
            ..Self::default()
        }
    }

    /// The options that one more word makes of them, whether or not they fit together.
    pub(super) fn with(mut self, word: &'a str) -> Result<MountOptions, OptionError> {
        self.word(word)?;
        Ok(self.options)
    }

    fn word(&mut self, word: &'a str) -> Result<(), OptionError> {
        let (key, value) = match word.split_once('=') {
            Some((k, v)) => (k, Some(v)),
            None => (word, None),
        };
        if self.kernel_flag(word) {
            return Ok(());
        }
        if let Some((said, why)) = impossible(word, key) {
            return Err(OptionError::Unsupported {
                option: said.into(),
                why,
            });
        }
        if is_for_others(key) || (self.remount && FROM_THE_TABLE.contains(&key)) {
            return Ok(());
        }
        match (key, value) {
            ("writeback" | "writethrough", None) => {
                self.once("page cache", word)?;
                self.options.writeback_cache = key == "writeback";
                Ok(())
            }
            ("atomic_writes", None) => {
                self.once("atomic writes", word)?;
                self.options.atomic_writes = true;
                Ok(())
            }
            ("restart" | "norestart", None) => {
                self.once("restart", word)?;
                let on = key == "restart";
                self.options.restart = Some(if on { Restart::On } else { Restart::Off });
                Ok(())
            }
            ("acl" | "noacl", None) => {
                self.once("access control lists", word)?;
                let on = key == "acl";
                self.options.acls = Some(if on { Acls::On } else { Acls::Off });
                Ok(())
            }
            // Users and groups are counted together, so to ask for one of them is to ask for both.
            ("quota" | "usrquota" | "grpquota" | "uquota" | "gquota", None) => {
                self.options.quota = Some(Quota::On);
                self.once("quotas", "quota")
            }
            ("noquota", None) => {
                self.options.quota = Some(Quota::Off);
                self.once("quotas", word)
            }
            ("idmap", None) => {
                self.options.idmap = true;
                Ok(())
            }
            // With `ro` nothing is written anyway: what a crash has left is recovered in memory.
            ("norecovery" | "noload", None) => {
                self.norecovery = Some(word);
                Ok(())
            }
            // FUSE servers are not told of these; what they ask for has another name here.
            ("sync" | "dirsync", None) => {
                self.options.sync |= key == "sync";
                self.options.durability = Some(Durability::Op);
                self.once("durability", "durability=op")
            }
            (_, Some(value)) => self.own(word, key, value),
            (_, None) => Err(missing_value(key)),
        }
    }

    /// Flags of the kernel: the last one wins.
    fn kernel_flag(&mut self, word: &str) -> bool {
        let o = &mut self.options;
        match word {
            "ro" => o.read_only = true,
            "rw" => o.read_only = false,
            "suid" => o.nosuid = false,
            "nosuid" => o.nosuid = true,
            "dev" => o.nodev = false,
            "nodev" => o.nodev = true,
            "exec" => o.noexec = false,
            "noexec" => o.noexec = true,
            "symfollow" => o.nosymfollow = false,
            "nosymfollow" => o.nosymfollow = true,
            "atime" | "relatime" => o.atime = AtimePolicy::Relatime,
            "strictatime" => o.atime = AtimePolicy::StrictAtime,
            "noatime" => o.atime = AtimePolicy::NoAtime,
            "diratime" => o.nodiratime = false,
            "nodiratime" => o.nodiratime = true,
            "allow_other" => o.allow_other = true,
            "remount" => o.remount = true,
            _ => return false,
        }
        true
    }

    fn own(&mut self, word: &'a str, key: &'a str, value: &'a str) -> Result<(), OptionError> {
        let o = &mut self.options;
        match key {
            "data" => o.data = choose(key, value, &values::DATA)?,
            "durability" => o.durability = Some(choose(key, value, &values::DURABILITY)?),
            "commit" => o.commit_seconds = number(key, value, 1, 300)?,
            "checkpoint" => o.checkpoint = choose(key, value, &values::CHECKPOINT)?,
            "open" => o.open = choose(key, value, &values::OPEN)?,
            "permissions" => o.permissions = choose(key, value, &values::PERMISSIONS)?,
            "errors" => o.on_error = choose(key, value, &values::ERRORS)?,
            "transport" => o.transport = choose(key, value, &values::TRANSPORT)?,
            "idle" => o.idle = choose(key, value, &values::IDLE)?,
            "read_ahead" => o.read_ahead = size(key, value, 0..=READ_AHEAD_MAX)?,
            "large" => o.large = Some(size(key, value, 0..=LARGE_MAX)?),
            "memory" => o.memory = Some(size(key, value, MEMORY)?),
            "buffers" => o.buffers = Some(number(key, value, 1, BUFFERS_MAX)?),
            "threads" => o.threads = Some(number(key, value, 1, 256)? as usize),
            "fsname" => o.fsname = Some(name(key, value)?),
            "subtype" => o.subtype = Some(name(key, value)?).filter(|name| name != "none"),
            "ablation" => return self.ablation(word, key, value),
            _ => return Err(OptionError::Unknown(word.into())),
        }
        self.once(key, word)
    }

    fn ablation(&mut self, word: &'a str, key: &str, value: &str) -> Result<(), OptionError> {
        let a = &mut self.options.ablation;
        let about = match value.split_once(':') {
            Some(("staging", "central")) => {
                a.central_staging = true;
                "ablation=staging"
            }
            Some(("checkpoint", "adaptive")) => return Err(bad(key, value, ABLATIONS)),
            Some(("checkpoint", policy)) => {
                a.checkpoint = Some(choose("ablation=checkpoint", policy, &values::CHECKPOINT)?);
                "ablation=checkpoint"
            }
            Some(("locking", "file")) => {
                a.file_locking = true;
                "ablation=locking"
            }
            Some(("workers", "1")) => {
                a.one_worker = true;
                "ablation=workers"
            }
            Some(("messages", "all")) => {
                a.all_messages = true;
                "ablation=messages"
            }
            Some(("nodelog", "ssd")) => {
                a.node_log_on_device = true;
                "ablation=nodelog"
            }
            _ => return Err(bad(key, value, ABLATIONS)),
        };
        self.once(about, word)
    }

    /// Notes that something was said, unless the contrary was.
    fn once(&mut self, about: &'a str, word: &'a str) -> Result<(), OptionError> {
        match self.said.iter().find(|(a, _)| *a == about) {
            Some((_, before)) if *before != word => Err(OptionError::Contradiction {
                first: (*before).into(),
                second: word.into(),
                why: SAID_TWICE,
            }),
            Some(_) => Ok(()),
            None => {
                self.said.push((about, word));
                Ok(())
            }
        }
    }
}

fn missing_value(key: &str) -> OptionError {
    let takes_value = [
        "data",
        "durability",
        "commit",
        "checkpoint",
        "open",
        "permissions",
        "errors",
        "transport",
        "idle",
        "read_ahead",
        "large",
        "memory",
        "buffers",
        "threads",
        "ablation",
        "fsname",
        "subtype",
    ];
    if takes_value.contains(&key) {
        return bad(key, "", format!("{key}=VALUE"));
    }
    OptionError::Unknown(key.into())
}
