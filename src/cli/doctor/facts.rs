//! What can be known of a machine without changing anything on it.

use crate::mount::server::Server;
use crate::mount::table;
use quayfs_fs::volume::glance;
use quayfs_mkfs::probe_signature;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Why `/dev/fuse` does not open.
    pub fuse: Option<String>,
    /// Where `fusermount3` is, and whether it has the rights of root.
    pub fusermount: Option<(PathBuf, bool)>,
    /// There is an `/etc/mtab`, without which `fusermount3` unmounts nothing.
    pub has_mtab: bool,
    /// It is root who asks.
    pub is_root: bool,
    /// Version of the kernel.
    pub kernel: (u32, u32),
    /// Parameters of modules can be seen, which is not so in every container.
    pub sees_modules: bool,
    /// `enable_uring` of the module `fuse`, if there is one.
    pub rings: Option<bool>,
    /// `kernel.io_uring_disabled`.
    pub uring_disabled: Option<u8>,
    /// Words of the processor's features.
    pub cpu: Vec<String>,
    /// Persistent memory.
    pub namespaces: Vec<Namespace>,
    /// Character devices of persistent memory.
    pub dax_devices: Vec<String>,
    /// What a power failure spares, of each region of persistent memory.
    pub domains: Vec<String>,
    /// Mounts that are mapped without the page cache.
    pub dax_mounts: Vec<String>,
    /// Mounts that pass no flushes on.
    pub unsafe_mounts: Vec<String>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Most open files, as far as it can be raised.
    pub nofile: Option<u64>,
    /// Bytes that may be locked into memory; none if there is no limit.
    pub memlock: Option<u64>,
    /// Bytes of memory that a process may use.
    pub memory: u64,
    /// What was asked about.
    pub target: Option<Target>,
}

/// A namespace of persistent memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    pub name: String,
    /// `fsdax`, `devdax`, `sector`, `raw`.
    pub mode: String,
    pub bytes: u64,
}

/// A disk, not a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub name: String,
    pub bytes: u64,
    /// Something that a power failure empties, and a flush writes out.
    pub volatile_cache: Option<bool>,
    /// The kernel was told to take the cache for something else than the disk says.
    pub overridden: bool,
    /// It is that of a virtual machine.
    pub virtual_disk: bool,
}

/// A place for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub path: PathBuf,
    pub what: What,
}

/// What lies there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Something in a volume that is mounted here. It is not looked at: its daemon may not answer.
    Mount(PathBuf),
    /// A volume with this backend.
    Volume { backend: String, bytes: u64 },
    /// A block device of so many bytes.
    Device {
        bytes: u64,
        on_disk: bool,
        /// What is on it.
        holds: Option<&'static str>,
    },
    /// A block device that is in use: how.
    Taken(String),
    /// A directory, in a file system with so many bytes free.
    Directory { free: u64, kind: &'static str },
    /// Nothing that a volume could be made of.
    Unusable(String),
}

impl Facts {
    /// What is found below this root directory; what only the system itself can say is that of this process.
    pub fn of_this_machine(root: &Path, target: Option<&Path>) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let mounts = read("proc/self/mountinfo").unwrap_or_default();
        let dax_mounts = mounts_with(&mounts, &["dax", "dax=always"]);
        let limit = |resource| getrlimit(resource).maximum;
        Self {
            fuse: opens(&root.join("dev/fuse")),
            fusermount: fusermount(),
            has_mtab: root.join("etc/mtab").exists(),
            is_root: rustix::process::geteuid().is_root(),
            kernel: version(&read("proc/sys/kernel/osrelease").unwrap_or_default()),
            sees_modules: root.join("sys/module").is_dir(),
            rings: read("sys/module/fuse/parameters/enable_uring").map(|on| on.trim() == "Y"),
            uring_disabled: read("proc/sys/kernel/io_uring_disabled")
                .and_then(|n| n.trim().parse().ok()),
            cpu: features(&read("proc/cpuinfo").unwrap_or_default()),
            namespaces: namespaces(root),
            dax_devices: names(&root.join("sys/bus/dax/devices"), "dax"),
            domains: domains(root),
            unsafe_mounts: mounts_with(&mounts, &["nobarrier", "barrier=0"]),
            disks: disks(root),
            nofile: limit(Resource::Nofile),
            memlock: limit(Resource::Memlock),
            memory: quayfs_limits::usable(),
            target: target.map(|path| look_at(path, &dax_mounts)),
            dax_mounts,
        }
    }
}

fn opens(device: &Path) -> Option<String> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    opened.err().map(|e| e.to_string())
}

fn fusermount() -> Option<(PathBuf, bool)> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join("fusermount3"))
        .find(|file| file.is_file())?;
    let meta = fs::metadata(&found).ok()?;
    let has_rights = meta.uid() == 0 && meta.mode() & 0o4000 != 0;
    Some((found, has_rights))
}

/// The first two numbers of a version.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn features(cpuinfo: &str) -> Vec<String> {
    let flags = cpuinfo.lines().find_map(|line| {
        let (name, words) = line.split_once(':')?;
        matches!(name.trim(), "flags" | "Features").then_some(words)
    });
    let words = flags.unwrap_or_default().split_ascii_whitespace();
    words.map(str::to_string).collect()
}

/// Names in a directory that begin like this, in order.
fn names(dir: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

fn namespaces(root: &Path) -> Vec<Namespace> {
    let dir = root.join("sys/bus/nd/devices");
    let all = names(&dir, "namespace").into_iter().map(|name| {
        let read = |file: &str| fs::read_to_string(dir.join(&name).join(file)).unwrap_or_default();
        Namespace {
            mode: read("mode").trim().into(),
            bytes: read("size").trim().parse().unwrap_or(0),
            name,
        }
    });
    // One of no size is only a place for one.
    all.filter(|n| n.bytes > 0).collect()
}

fn domains(root: &Path) -> Vec<String> {
    let dir = root.join("sys/bus/nd/devices");
    let of = |name: String| {
        let text = fs::read_to_string(dir.join(name).join("persistence_domain")).ok()?;
        Some(text.trim().to_string())
    };
    names(&dir, "region").into_iter().filter_map(of).collect()
}

/// Where file systems are mounted that have one of these options.
fn mounts_with(mountinfo: &str, options: &[&str]) -> Vec<String> {
    let of = |line: &str| {
        let target = line.split(' ').nth(4)?;
        let (_, rest) = line.split_once(" - ")?;
        let superblock = rest.split(' ').nth(2)?;
        let has = superblock.split(',').any(|o| options.contains(&o));
        has.then(|| target.to_string())
    };
    mountinfo.lines().filter_map(of).collect()
}

fn disks(root: &Path) -> Vec<Disk> {
    let dir = root.join("sys/block");
    let all = names(&dir, "").into_iter().filter(|name| {
        let memory = ["loop", "ram", "zram", "pmem", "sr", "fd", "dm-", "md"];
        !memory.iter().any(|prefix| name.starts_with(prefix))
    });
    let disks = all.map(|name| {
        let at = dir.join(&name);
        let read = |file: &str| fs::read_to_string(at.join(file)).ok();
        let sectors: u64 = read("size")
            .and_then(|n| n.trim().parse().ok())
            .unwrap_or(0);
        let cache = read("queue/write_cache");
        Disk {
            bytes: sectors * 512,
            volatile_cache: cache.map(|word| word.trim() == "write back"),
            overridden: scsi_override(&at),
            virtual_disk: name.starts_with("vd") || name.starts_with("xvd"),
            name,
        }
    });
    disks.filter(|d| d.bytes > 0).collect()
}

/// Whether the kernel's setting for a SCSI disk contradicts the disk, which then flushes nothing.
fn scsi_override(disk: &Path) -> bool {
    let dir = disk.join("device/scsi_disk");
    let types = names(&dir, "").into_iter().filter_map(|name| {
        let text = fs::read_to_string(dir.join(name).join("cache_type")).ok()?;
        Some(text.trim().to_string())
    });
    let queue = fs::read_to_string(disk.join("queue/write_cache")).unwrap_or_default();
    types
        .into_iter()
        .any(|kind| kind == "write back" && queue.trim() == "write through")
}

/// Where a volume is mounted that has this path, by the mount table: nothing is looked up.
fn served_by_us(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let entries = table::read().ok()?.into_iter();
    let above = entries.filter(|entry| path.starts_with(&entry.target));
    // The innermost mount, and the topmost one of those.
    let entry = above.max_by_key(|entry| entry.target.components().count())?;
    let is_ours = entry.is_quayfs() || entry.is_fuse() && Server::of(&entry).is_some();
    is_ours.then_some(entry.target)
}

fn look_at(path: &Path, dax_mounts: &[String]) -> Target {
    let target = |what| Target {
        path: path.into(),
        what,
    };
    if let Some(mountpoint) = served_by_us(path) {
        return target(What::Mount(mountpoint));
    }
    if let Ok(volume) = glance(path) {
        return target(What::Volume {
            backend: volume.backend.to_string(),
            bytes: volume.config.geometry.pmem_len,
        });
    }
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) => return target(What::Unusable(e.to_string())),
    };
    if meta.file_type().is_block_device() {
        return target(match (table::of_device(path), why_closed(path)) {
            (Some(mountpoint), _) => {
                let mountpoint = quayfs_shown::path(&mountpoint);
                What::Taken(format!("mounted on {mountpoint}"))
            }
            (None, None) => match device(path, &meta) {
                What::Device { bytes: 0, .. } => What::Unusable("there is nothing in it".into()),
                device => device,
            },
            (None, Some(e)) if e.kind() == io::ErrorKind::ResourceBusy => {
                What::Taken("in use: as swap, or as a part of something".into())
            }
            (None, Some(e)) => What::Unusable(e.to_string()),
        });
    }
    if meta.is_file()
        && fs::File::open(path).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    {
        return target(What::Unusable(
            "only its owner and root may read it, and say what it is".into(),
        ));
    }
    if !meta.is_dir() {
        return target(What::Unusable(
            "neither a volume, a directory nor a block device".into(),
        ));
    }
    let Ok(vfs) = rustix::fs::statvfs(path) else {
        return target(What::Unusable(
            "its file system does not say how large it is".into(),
        ));
    };
    let canonical = path.canonicalize().unwrap_or_default();
    let kind = match rustix::fs::statfs(path).map(|s| s.f_type) {
        Ok(0x0102_1994 | 0x8584_58f6) => "memory",
        _ if dax_mounts
            .iter()
            .any(|m| m != "/" && canonical.starts_with(m)) =>
        {
            "dax"
        }
        _ => "disk",
    };
    target(What::Directory {
        free: vfs.f_bavail.saturating_mul(vfs.f_frsize),
        kind,
    })
}

/// Why a block device does not open for one alone. Opening it for reading changes nothing.
fn why_closed(device: &Path) -> Option<io::Error> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_EXCL).open(device);
    opened.err()
}

fn device(path: &Path, meta: &fs::Metadata) -> What {
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let at = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let sectors = fs::read_to_string(at.join("size")).unwrap_or_default();
    let dax = fs::read_to_string(at.join("queue/dax")).unwrap_or_default();
    What::Device {
        bytes: sectors.trim().parse::<u64>().unwrap_or(0) * 512,
        on_disk: dax.trim() != "1",
        holds: probe_signature(path).ok().flatten(),
    }
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
