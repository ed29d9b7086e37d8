//! Reading `-o` lists.
//!
//! Three kinds of option arrive here: our own, the flags that the kernel implements, and those
//! that only mount(8) and fstab understand and that it passes on. Of the kernel's flags the last
//! one wins, because fstab and the command line are merged that way; our own options may be
//! repeated but not contradicted.

use super::{
    Acls, AtimePolicy, CheckpointPolicy, DataMode, Durability, Idle, MountOptions, OnError,
    OpenPolicy, Permissions, Transport, format_size, parse_size,
};
use quayfs_layout::geometry::BUFFERS_MAX;
use quayfs_pmem::LEAST_MEMORY;
use std::ops::RangeInclusive;

/// Why a list of mount options is refused. Prints as one line that says what is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option `{0}`: see `quayfs mount --help` for the list")]
    Unknown(String),
    /// The option exists, its value does not.
    #[error("mount option `{option}` cannot be `{value}`: use {expected}")]
    Value {
        /// Name of the option.
        option: String,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// Known to mount(8), but a FUSE file system cannot do it.
    #[error("mount option `{option}` cannot be honoured: {why}")]
    Unsupported {
        /// Name of the option.
        option: String,
        /// The reason and the way out.
        why: &'static str,
    },
    /// A mount has it otherwise and keeps it so.
    #[error(
        "mount option `{option}` cannot be changed by `remount`, only ro, nosuid, nodev, noexec and their opposites can: {why}"
    )]
    Fixed {
        /// The option as it was said.
        option: String,
        /// The way out.
        why: &'static str,
    },
    /// Two options exclude each other.
    #[error("mount options `{first}` and `{second}` contradict each other: {why}")]
    Contradiction {
        /// What was said first.
        first: String,
        /// What was said then.
        second: String,
        /// Which one to drop.
        why: &'static str,
    },
}

/// The most that `large=` takes: more than any request has.
const LARGE_MAX: u64 = 1 << 30;
/// The most that `read_ahead=` takes.
const READ_AHEAD_MAX: u64 = 1 << 30;

/// The least and the most that `memory=` takes.
const MEMORY: RangeInclusive<u64> = 2 * LEAST_MEMORY..=1 << 50;

/// What mount(8), fstab and systemd understand and pass on; they mean nothing to a mount.
const FOR_OTHERS: [&str; 25] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "async",
    "norelatime",
    "nostrictatime",
    "diratime",
    "silent",
    "loud",
    "nomand",
    "nolazytime",
    "noiversion",
    "default_permissions",
    "uhelper",
    "comment",
];
/// Shown in the mount table by the kernel, so they come back at `remount`.
pub(super) const FROM_THE_TABLE: [&str; 6] = [
    "fd", "rootmode", "user_id", "group_id", "max_read", "blksize",
];

const SAID_TWICE: &str = "keep one of them";

impl MountOptions {
    /// Reads the values of any number of `-o` arguments, each a list separated by commas. Empty
    /// elements are skipped. Unknown options, impossible values and contradictions are errors.
    pub fn parse(lists: &[&str]) -> Result<Self, OptionError> {
        let words: Vec<&str> = lists
            .iter()
            .flat_map(|l| l.split(','))
            .filter(|w| !w.is_empty())
            .collect();
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

#[derive(Default)]
pub(super) struct Parser<'a> {
    options: MountOptions,
    remount: bool,
    /// That nothing is to be recovered, and how it was said.
    norecovery: Option<&'a str>,
    /// Our own options so far: what each is about, and how it was said.
    said: Vec<(&'static str, &'a str)>,
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
        if is_for_others(key) || (self.remount && FROM_THE_TABLE.contains(&key)) {
            return Ok(());
        }
        if let Some(why) = impossible(key) {
            return Err(OptionError::Unsupported {
                option: key.into(),
                why,
            });
        }
        match (key, value) {
            ("writeback", None) => {
                self.once("page cache", word)?;
                self.options.writeback_cache = true;
                Ok(())
            }
            ("writethrough", None) => {
                self.once("page cache", word)?;
                self.options.writeback_cache = false;
                Ok(())
            }
            ("atomic_writes", None) => {
                self.once("atomic writes", word)?;
                self.options.atomic_writes = true;
                Ok(())
            }
            ("restart", None) => {
                self.once("restart", word)?;
                self.options.restart = true;
                Ok(())
            }
            ("acl", None) => {
                self.once("access control lists", word)?;
                self.options.acls = Some(Acls::On);
                Ok(())
            }
            ("noacl", None) => {
                self.once("access control lists", word)?;
                self.options.acls = Some(Acls::Off);
                Ok(())
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
        let about = match key {
            "data" => {
                o.data = choose(key, value, &DATA)?;
                "data"
            }
            "durability" => {
                o.durability = Some(choose(key, value, &DURABILITY)?);
                "durability"
            }
            "commit" => {
                o.commit_seconds = number(key, value, 1, 300)?;
                "commit"
            }
            "checkpoint" => {
                o.checkpoint = choose(key, value, &CHECKPOINT)?;
                "checkpoint"
            }
            "open" => {
                o.open = choose(key, value, &OPEN)?;
                "open"
            }
            "permissions" => {
                o.permissions = choose(key, value, &PERMISSIONS)?;
                "permissions"
            }
            "errors" => {
                o.on_error = choose(key, value, &ERRORS)?;
                "errors"
            }
            "transport" => {
                o.transport = choose(key, value, &TRANSPORT)?;
                "transport"
            }
            "idle" => {
                o.idle = choose(key, value, &IDLE)?;
                "idle"
            }
            "read_ahead" => {
                o.read_ahead = size(key, value, 0..=READ_AHEAD_MAX)?;
                "read_ahead"
            }
            "large" => {
                o.large = Some(size(key, value, 0..=LARGE_MAX)?);
                "large"
            }
            "memory" => {
                o.memory = Some(size(key, value, MEMORY)?);
                "memory"
            }
            "buffers" => {
                o.buffers = Some(number(key, value, 1, BUFFERS_MAX)?);
                "buffers"
            }
            "threads" => {
                o.threads = Some(number(key, value, 1, 256)? as usize);
                "threads"
            }
            "fsname" => {
                o.fsname = Some(name(key, value)?);
                "fsname"
            }
            "subtype" => {
                let name = name(key, value)?;
                o.subtype = (name != "none").then_some(name);
                "subtype"
            }
            "ablation" => self.ablation(key, value)?,
            _ => return Err(OptionError::Unknown(word.into())),
        };
        self.once(about, word)
    }

    fn ablation(&mut self, key: &str, value: &str) -> Result<&'static str, OptionError> {
        let a = &mut self.options.ablation;
        match value.split_once(':') {
            Some(("staging", "central")) => {
                a.central_staging = true;
                Ok("ablation=staging")
            }
            Some(("checkpoint", "adaptive")) => Err(bad(key, value, ABLATIONS)),
            Some(("checkpoint", policy)) => {
                a.checkpoint = Some(choose("ablation=checkpoint", policy, &CHECKPOINT)?);
                Ok("ablation=checkpoint")
            }
            Some(("locking", "file")) => {
                a.file_locking = true;
                Ok("ablation=locking")
            }
            Some(("workers", "1")) => {
                a.one_worker = true;
                Ok("ablation=workers")
            }
            Some(("messages", "all")) => {
                a.all_messages = true;
                Ok("ablation=messages")
            }
            Some(("nodelog", "ssd")) => {
                a.node_log_on_device = true;
                Ok("ablation=nodelog")
            }
            _ => Err(bad(key, value, ABLATIONS)),
        }
    }

    /// Notes that something was said, unless the contrary was.
    fn once(&mut self, about: &'static str, word: &'a str) -> Result<(), OptionError> {
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

    fn finish(self) -> Result<MountOptions, OptionError> {
        let o = self.options;
        let conflict = |first: String, second: &str, why| {
            Err(OptionError::Contradiction {
                first,
                second: second.into(),
                why,
            })
        };
        if o.data != DataMode::Journal && o.durability == Some(Durability::Op) {
            return conflict(
                o.data.to_string(),
                "durability=op",
                "data outside the journal is durable at a commit only; drop one of them",
            );
        }
        if let Some(word) = self.norecovery
            && !o.read_only
        {
            return conflict(
                word.into(),
                "rw",
                "who writes has to recover what a crash has left; say ro, which writes to no device",
            );
        }
        let may_be_op = o.durability.is_none() && o.data == DataMode::Journal;
        if o.ablation.node_log_on_device && (may_be_op || o.durability == Some(Durability::Op)) {
            return conflict(
                "ablation=nodelog:ssd".into(),
                "durability=op",
                "records reach the data device at a commit; say durability=commit, or data=ordered",
            );
        }
        if o.atomic_writes && o.writeback_cache {
            return conflict(
                "atomic_writes".into(),
                "writeback",
                "what the kernel collects has no order; drop one of them",
            );
        }
        if o.atomic_writes && o.open == OpenPolicy::Elide {
            return conflict(
                "atomic_writes".into(),
                "open=elide",
                "what belongs together is told by the open file it was written through; drop one of them",
            );
        }
        if o.restart && o.transport == Transport::Uring {
            return conflict(
                "restart".into(),
                "transport=uring",
                "what the kernel has put into a ring is lost with the daemon; drop one of them",
            );
        }
        if o.restart && o.atomic_writes {
            return conflict(
                "restart".into(),
                "atomic_writes",
                "writes that wait for their commit are lost with the daemon; drop one of them",
            );
        }
        if o.permissions == Permissions::Owner && o.allow_other {
            return conflict(
                "permissions=owner".into(),
                "allow_other",
                "others may enter only where the kernel checks permissions; drop one of them",
            );
        }
        if o.permissions == Permissions::Owner && o.idmap {
            return conflict(
                "permissions=owner".into(),
                "idmap",
                "the kernel maps ids only where it checks permissions; drop one of them",
            );
        }
        if o.permissions == Permissions::Owner && o.acls == Some(Acls::On) {
            return conflict(
                "permissions=owner".into(),
                "acl",
                "lists mean something only where the kernel checks permissions; drop one of them",
            );
        }
        if o.atime == AtimePolicy::StrictAtime && o.open == OpenPolicy::Elide {
            return conflict(
                "strictatime".into(),
                "open=elide",
                "the kernel reports every read only of files that it may not open by itself; drop one of them",
            );
        }
        if let Some(ablated) = o.ablation.checkpoint
            && o.checkpoint != ablated
            && let Some((_, said)) = self.said.iter().find(|(a, _)| *a == "checkpoint")
        {
            let first = (*said).to_string();
            return conflict(
                first,
                &format!("ablation=checkpoint:{}", ablated.name()),
                SAID_TWICE,
            );
        }
        Ok(o)
    }
}

const DATA: [(&str, DataMode); 3] = [
    ("journal", DataMode::Journal),
    ("ordered", DataMode::Ordered),
    ("writeback", DataMode::Writeback),
];
const DURABILITY: [(&str, Durability); 2] =
    [("op", Durability::Op), ("commit", Durability::Commit)];
const OPEN: [(&str, OpenPolicy); 2] =
    [("answer", OpenPolicy::Answer), ("elide", OpenPolicy::Elide)];
const PERMISSIONS: [(&str, Permissions); 2] = [
    ("kernel", Permissions::Kernel),
    ("owner", Permissions::Owner),
];
const ERRORS: [(&str, OnError); 2] = [
    ("remount-ro", OnError::RemountRo),
    ("continue", OnError::Continue),
];
const CHECKPOINT: [(&str, CheckpointPolicy); 4] = [
    ("adaptive", CheckpointPolicy::Adaptive),
    ("swap", CheckpointPolicy::Swap),
    ("inplace", CheckpointPolicy::InPlace),
    ("double", CheckpointPolicy::Double),
];
const IDLE: [(&str, Idle); 3] = [
    ("auto", Idle::Auto),
    ("poll", Idle::Poll),
    ("halt", Idle::Halt),
];
const TRANSPORT: [(&str, Transport); 3] = [
    ("auto", Transport::Auto),
    ("dev", Transport::Dev),
    ("uring", Transport::Uring),
];
const ABLATIONS: &str = "staging:central, checkpoint:swap, checkpoint:inplace, checkpoint:double, \
    locking:file, workers:1, nodelog:ssd or messages:all";

fn bad(option: &str, value: &str, expected: impl Into<String>) -> OptionError {
    OptionError::Value {
        option: option.into(),
        value: value.into(),
        expected: expected.into(),
    }
}

fn choose<T: Copy>(key: &str, value: &str, from: &[(&str, T)]) -> Result<T, OptionError> {
    match from.iter().find(|(name, _)| *name == value) {
        Some((_, found)) => Ok(*found),
        None => {
            let names: Vec<_> = from.iter().map(|(name, _)| *name).collect();
            Err(bad(key, value, names.join(" or ")))
        }
    }
}

fn number(key: &str, value: &str, min: u32, max: u32) -> Result<u32, OptionError> {
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(bad(key, value, format!("a number from {min} to {max}"))),
    }
}

fn size(key: &str, value: &str, sizes: RangeInclusive<u64>) -> Result<u64, OptionError> {
    if let Ok(bytes) = parse_size(value)
        && sizes.contains(&bytes)
    {
        return Ok(bytes);
    }
    let (least, most) = (format_size(*sizes.start()), format_size(*sizes.end()));
    let expected = match sizes.start() {
        0 => format!("a size up to {most}"),
        _ => format!("a size from {least} to {most}"),
    };
    Err(bad(key, value, expected))
}

fn name(key: &str, value: &str) -> Result<String, OptionError> {
    if value.is_empty() {
        return Err(bad(key, value, "a name that is not empty"));
    }
    if value.contains(char::is_control) {
        return Err(bad(key, value, "a name without control characters"));
    }
    Ok(value.into())
}

fn is_for_others(key: &str) -> bool {
    FOR_OTHERS.contains(&key) || ["x-", "X-"].iter().any(|p| key.starts_with(p)) || key == "helper"
}

fn impossible(key: &str) -> Option<&'static str> {
    Some(match key {
        "lazytime" => "times are journaled with the operation that changes them; drop it",
        "mand" => "Linux has no mandatory locks any more; drop it",
        "allow_root" => "use allow_other, or mount as root",
        "nonempty" => "an existing tree is covered without asking; drop it",
        _ => return None,
    })
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
