//! What a mount can be told: the options after `-o`, and sizes.
//!
//! Every policy has one type here, whose `Display` is the spelling of the option. [`MountOptions`]
//! is made by [`MountOptions::parse`], which refuses what is unknown or contradicts itself;
//! printing a `MountOptions` gives a list that parses to the same value.

use std::fmt;

use quayfs_pmem::LEAST_MEMORY;

mod error;
mod parse;
mod quota;
pub mod remount;
mod restart;
mod size;
pub mod stored;
#[cfg(test)]
mod tests;

pub use error::OptionError;
pub use parse::{ACCEPTED, REFUSED};
pub use quayfs_layout::size::{exact_size, format_size};
pub use quota::Quota;
pub use restart::Restart;
pub use size::{SizeError, parse_size};

/// Which file data goes through the journal. Option `data=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// All data is staged in pmem and committed with the operation's record (the default).
    #[default]
    Journal,
    /// Data is written to the data device before the record that refers to it commits.
    Ordered,
    /// Only metadata is journaled: a commit that was not asked for does not wait for data, and what a power failure
    /// takes of the data cannot be read.
    Writeback,
}

/// When an operation is durable. Option `durability=`. The default depends on the backend of the
/// pmem region: `op` on `dax` and `volatile`, `commit` on `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the operation returns.
    Op,
    /// At `fsync`, at `O_SYNC` writes and every `commit=` seconds.
    Commit,
}

/// How checkpoint rounds put blocks on the data device. Option `checkpoint=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointPolicy {
    /// Contiguous runs in place, scattered blocks in one load that is swapped in (the default).
    #[default]
    Adaptive,
    /// Everything in one load that is swapped in.
    Swap,
    /// Everything in place.
    InPlace,
    /// Everything in place after a copy of it is durable elsewhere on the device: what a journal on the
    /// device costs, for measurements.
    Double,
}

/// Which way requests come. Option `transport=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse` where the mount goes on when its daemon dies; else rings, where the kernel has them switched on (the
    /// default).
    #[default]
    Auto,
    /// Reads and writes of `/dev/fuse`.
    Dev,
    /// Rings; `/dev/fuse` with a warning where the kernel has none.
    Uring,
}

/// What idle CPUs do while requests follow each other closely. Option `idle=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Poll in virtual machines of few CPUs, where halting costs more than a request, and where the daemon may ask for
    /// it; halt elsewhere (the default).
    #[default]
    Auto,
    /// Poll, where the daemon may ask for it.
    Poll,
    /// Halt, as always.
    Halt,
}

/// Whether the daemon answers `open`. Option `open=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenPolicy {
    /// Answer each open (the default); `O_DIRECT` files then get parallel direct writes.
    #[default]
    Answer,
    /// Tell the kernel once that no open needs an answer: cheaper open and close.
    Elide,
}

/// What checks permission bits. Option `permissions=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, for every caller (the default).
    #[default]
    Kernel,
    /// Nothing does: only the user who mounted may enter, and may do everything. Saves the message by which the
    /// kernel asks for the attributes of a directory again after each change in it.
    Owner,
}

/// Whether there are access control lists. Options `acl` and `noacl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acls {
    /// They are kept by the daemon and checked by the kernel.
    On,
    /// They can be neither set nor seen, and new inodes get none.
    Off,
}

/// What damaged metadata does to the mount. Option `errors=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The mount becomes read-only (the default).
    #[default]
    RemountRo,
    /// The operation gets `EIO`, the rest goes on.
    Continue,
}

/// When reading changes a file's access time. Options `relatime`, `strictatime` and `noatime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// When it is not newer than the last change, or a day old (the default).
    #[default]
    Relatime,
    /// Always. The kernel then caches nothing for open files, so that every read is seen.
    StrictAtime,
    /// Never.
    NoAtime,
}

/// Switches that turn one idea of the design off, for measurements. Option `ablation=KEY:VALUE`,
/// which may be given more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// `staging:central`: every write goes through one staging buffer under one lock.
    pub central_staging: bool,
    /// `checkpoint:swap`, `inplace` or `double`: replaces `checkpoint=`.
    pub checkpoint: Option<CheckpointPolicy>,
    /// `locking:file`: every range lock covers the whole file.
    pub file_locking: bool,
    /// `workers:1`: one checkpoint worker, whatever the number of CPUs.
    pub one_worker: bool,
    /// `nodelog:ssd`: what a commit covers goes to the data device, too, before it counts.
    pub node_log_on_device: bool,
    /// `messages:all`: the kernel asks for everything, remembers nothing and sends at most 128 KiB.
    pub all_messages: bool,
}

/// Everything that can be said at mount time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`: nothing may change, and nothing is written to either device.
    pub read_only: bool,
    /// `data=`.
    pub data: DataMode,
    /// `durability=`; `None` is the default of the pmem backend, or `commit` where `data=` asks
    /// for it (see [`MountOptions::durability_for`]).
    pub durability: Option<Durability>,
    /// `commit=`: seconds between commits with `durability=commit`.
    pub commit_seconds: u32,
    /// `checkpoint=`.
    pub checkpoint: CheckpointPolicy,
    /// `writeback`: the kernel's page cache collects writes (`writethrough` is the default).
    pub writeback_cache: bool,
    /// `atomic_writes`: writes between two calls are one, as with F2FS, and ranges can be exchanged, as with XFS.
    /// Files that are open for writing then bypass the kernel's page cache.
    pub atomic_writes: bool,
    /// `open=`.
    pub open: OpenPolicy,
    /// `errors=`.
    pub on_error: OnError,
    /// `transport=`: how requests reach the daemon.
    pub transport: Transport,
    /// `restart` or `norestart`; `None`: if the daemon dies, another one goes on where that is possible, and
    /// applications wait for it.
    pub restart: Option<Restart>,
    /// `buffers=`: use only this many of the staging buffers that `mkfs` made.
    pub buffers: Option<u32>,
    /// `ablation=`.
    pub ablation: Ablation,
    /// `idle=`: what idle CPUs do while requests follow each other closely.
    pub idle: Idle,
    /// `read_ahead=`: how far the kernel reads ahead of sequential reads, in bytes.
    pub read_ahead: u64,
    /// `large=`: requests of at least so many bytes go to the data device directly, with `durability=commit` and
    /// `data=journal`; 0: none. By default 128 KiB where a drain of the region is dear.
    pub large: Option<u64>,
    /// `memory=`: about how many bytes of metadata and staged data the daemon keeps in memory of its own; `None`: a quarter
    /// of what the machine and the control group give.
    pub memory: Option<u64>,
    /// `permissions=`.
    pub permissions: Permissions,
    /// `acl` or `noacl`; `None`: there are lists where the kernel checks permissions.
    pub acls: Option<Acls>,
    /// `quota` or `noquota`.
    pub quota: Option<Quota>,
    /// `idmap`: mounts of this one may map ids (`mount --bind -o X-mount.idmap=`).
    pub idmap: bool,
    /// `allow_other`: users other than the one who mounts may enter.
    pub allow_other: bool,
    /// `nosuid`: the kernel ignores set-user-id bits and file capabilities.
    pub nosuid: bool,
    /// `nodev`: the kernel opens no device nodes.
    pub nodev: bool,
    /// `noexec`: the kernel runs no programs.
    pub noexec: bool,
    /// `nosymfollow`: the kernel follows no symbolic links (Linux 5.10).
    pub nosymfollow: bool,
    /// `sync`: every write goes through the page cache at once; implies `durability=op`.
    pub sync: bool,
    /// `relatime` or `noatime`.
    pub atime: AtimePolicy,
    /// `nodiratime`: as `noatime`, for directories only.
    pub nodiratime: bool,
    /// `threads=`: threads that serve requests; `None` chooses by the number of CPUs.
    pub threads: Option<usize>,
    /// `fsname=`: what the mount table shows as the source instead of the volume's path.
    pub fsname: Option<String>,
    /// `subtype=`: the mount table shows type `fuse.SUBTYPE`; `subtype=none` leaves plain `fuse`.
    pub subtype: Option<String>,
    /// `remount`: change the flags of a mount that exists.
    pub remount: bool,
}

/// What `read_ahead=` is by default. Blocks that were overwritten at random lie on the data device in the order of
/// the rounds that wrote them; only a few megabytes at once make long requests of that.
const READ_AHEAD: u64 = 4 << 20;

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            data: DataMode::default(),
            durability: None,
            commit_seconds: 5,
            checkpoint: CheckpointPolicy::default(),
            writeback_cache: false,
            atomic_writes: false,
            restart: None,
            open: OpenPolicy::default(),
            on_error: OnError::default(),
            transport: Transport::default(),
            buffers: None,
            ablation: Ablation::default(),
            idle: Idle::default(),
            read_ahead: READ_AHEAD,
            large: None,
            memory: None,
            permissions: Permissions::default(),
            acls: None,
            quota: None,
            idmap: false,
            allow_other: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            nosymfollow: false,
            sync: false,
            atime: AtimePolicy::default(),
            nodiratime: false,
            threads: None,
            fsname: None,
            subtype: Some("quayfs".into()),
            remount: false,
        }
    }
}

impl MountOptions {
    /// The durability in force, given the default of the pmem backend.
    pub fn durability_for(&self, backend_default: Durability) -> Durability {
        match (self.durability, self.data) {
            (Some(d), _) => d,
            (None, DataMode::Journal) => backend_default,
            (None, _) => Durability::Commit,
        }
    }

    /// What `memory=` says, or its default.
    fn memory(&self) -> u64 {
        let quarter = || (quayfs_limits::usable() / 4).max(2 * LEAST_MEMORY);
        self.memory.unwrap_or_else(quarter)
    }

    /// Bytes of a region on a disk that may lie in memory because they were stored to: half of the memory that there is.
    pub fn memory_for_region(&self) -> u64 {
        self.memory() / 2
    }

    /// Bytes for node pages that are at hand.
    pub fn memory_for_pages(&self) -> u64 {
        self.memory() / 4
    }

    /// Bytes for inodes that are at hand.
    pub fn memory_for_inodes(&self) -> u64 {
        self.memory() / 8
    }

    /// Whether there are access control lists. Where permissions are not checked they would mean nothing.
    pub fn has_acls(&self) -> bool {
        self.permissions == Permissions::Kernel && self.acls != Some(Acls::Off)
    }

    /// The checkpoint policy in force: an ablation beats the option.
    pub fn checkpoint_policy(&self) -> CheckpointPolicy {
        self.ablation.checkpoint.unwrap_or(self.checkpoint)
    }
}

impl fmt::Display for DataMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "data=journal",
            Self::Ordered => "data=ordered",
            Self::Writeback => "data=writeback",
        })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Op => "op",
            Self::Commit => "commit",
        })
    }
}

impl CheckpointPolicy {
    fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Swap => "swap",
            Self::InPlace => "inplace",
            Self::Double => "double",
        }
    }
}

impl fmt::Display for CheckpointPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint={}", self.name())
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Dev => "dev",
            Self::Uring => "uring",
        })
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Poll => "poll",
            Self::Halt => "halt",
        })
    }
}

impl fmt::Display for OpenPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "open=answer",
            Self::Elide => "open=elide",
        })
    }
}

impl fmt::Display for Acls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "acl",
            Self::Off => "noacl",
        })
    }
}

impl fmt::Display for OnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RemountRo => "errors=remount-ro",
            Self::Continue => "errors=continue",
        })
    }
}

impl fmt::Display for AtimePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relatime => "relatime",
            Self::StrictAtime => "strictatime",
            Self::NoAtime => "noatime",
        })
    }
}

/// The switches that are on, separated by commas; nothing if none is.
impl fmt::Display for Ablation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checkpoint = self.checkpoint.map(|c| format!("checkpoint:{}", c.name()));
        let on = [
            self.central_staging.then_some("staging:central"),
            checkpoint.as_deref(),
            self.file_locking.then_some("locking:file"),
            self.one_worker.then_some("workers:1"),
            self.node_log_on_device.then_some("nodelog:ssd"),
            self.all_messages.then_some("messages:all"),
        ];
        let on: Vec<_> = on
            .iter()
            .flatten()
            .map(|s| format!("ablation={s}"))
            .collect();
        f.write_str(&on.join(","))
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = vec![if self.read_only { "ro" } else { "rw" }.to_string()];
        out.push(self.data.to_string());
        out.extend(self.durability.map(|d| format!("durability={d}")));
        out.push(format!("commit={}", self.commit_seconds));
        if self.ablation.checkpoint.is_none() || self.checkpoint != CheckpointPolicy::default() {
            out.push(self.checkpoint.to_string());
        }
        out.push(
            if self.writeback_cache {
                "writeback"
            } else {
                "writethrough"
            }
            .to_string(),
        );
        if self.atomic_writes {
            out.push("atomic_writes".into());
        }
        out.push(self.open.to_string());
        out.push(self.on_error.to_string());
        out.push(format!("transport={}", self.transport));
        out.extend(self.restart.map(|r| r.to_string()));
        if self.idle != Idle::Auto {
            out.push(format!("idle={}", self.idle));
        }
        if self.read_ahead != READ_AHEAD {
            out.push(format!("read_ahead={}", self.read_ahead));
        }
        out.extend(self.large.map(|n| format!("large={n}")));
        out.extend(self.memory.map(|n| format!("memory={n}")));
        out.extend(self.buffers.map(|n| format!("buffers={n}")));
        out.extend((self.ablation != Ablation::default()).then(|| self.ablation.to_string()));
        out.extend(self.threads.map(|n| format!("threads={n}")));
        if self.permissions == Permissions::Owner {
            out.push("permissions=owner".into());
        }
        out.extend(self.acls.map(|a| a.to_string()));
        out.extend(self.quota.map(|q| q.to_string()));
        out.push(self.atime.to_string());
        for (on, name) in [
            (self.nodiratime, "nodiratime"),
            (self.idmap, "idmap"),
            (self.allow_other, "allow_other"),
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (self.nosymfollow, "nosymfollow"),
            (self.sync, "sync"),
            (self.remount, "remount"),
        ] {
            out.extend(on.then(|| name.to_string()));
        }
        out.extend(self.fsname.as_ref().map(|n| format!("fsname={n}")));
        out.push(format!(
            "subtype={}",
            self.subtype.as_deref().unwrap_or("none")
        ));
        f.write_str(&out.join(","))
    }
}
