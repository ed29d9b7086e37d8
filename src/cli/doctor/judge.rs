//! What the facts mean for one who wants to use QuayFS.

use super::facts::{Disk, Facts, Target, What};
use super::{Finding, Grade};
use quayfs_mkfs::region_len;
use quayfs_options::format_size;

/// Below this a machine is short of memory for a daemon.
const LEAST_MEMORY: u64 = 512 << 20;
/// Open files that a daemon asks for.
const OPEN_FILES: u64 = 65_536;

/// Everything that there is to say, in the order in which it matters.
pub fn all(f: &Facts) -> Vec<Finding> {
    let mut out = Vec::new();
    mounting(f, &mut out);
    kernel(f, &mut out);
    rings(f, &mut out);
    memory_that_stays(f, &mut out);
    processor(f, &mut out);
    disks(f, &mut out);
    limits(f, &mut out);
    if let Some(target) = &f.target {
        place(target, &mut out);
    }
    out.extend(durability(f));
    out
}

fn ok(what: impl Into<String>) -> Finding {
    Finding {
        grade: Grade::Ok,
        what: what.into(),
        todo: None,
    }
}

fn note(what: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding {
        grade: Grade::Note,
        what: what.into(),
        todo: Some(todo.into()),
    }
}

fn problem(what: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding {
        grade: Grade::Problem,
        ..note(what, todo)
    }
}

fn mounting(f: &Facts, out: &mut Vec<Finding>) {
    out.push(match &f.fuse {
        None => ok("/dev/fuse opens"),
        Some(why) => problem(
            format!("/dev/fuse does not open: {why}"),
            "load the module (`modprobe fuse`), or give the device to this container",
        ),
    });
    out.push(match (&f.fusermount, f.is_root) {
        (Some((path, true)), _) => ok(format!("{} lets users mount", path.display())),
        (_, true) => ok("root mounts without fusermount3; other users would need it"),
        (Some((path, false)), false) => problem(
            format!("{} does not have the rights of root", path.display()),
            "`chown root` and `chmod u+s` it, or install the package fuse3 anew",
        ),
        (None, false) => problem(
            "fusermount3 is not in PATH: only root can mount",
            "install the package fuse3",
        ),
    });
    if f.fusermount.is_some() && !f.has_mtab {
        out.push(note(
            "there is no /etc/mtab: fusermount3 unmounts nothing for users other than root",
            "`ln -s ../proc/self/mounts /etc/mtab` as root",
        ));
    }
}

fn kernel(f: &Facts, out: &mut Vec<Finding>) {
    let (major, minor) = f.kernel;
    let least = |of: (u32, u32)| f.kernel >= of;
    let features = [
        ((6, 6), "-o atomic_writes"),
        ((6, 9), "-o restart (requests are sent again)"),
        ((6, 12), "-o idmap"),
        ((6, 14), "FUSE over io_uring"),
    ];
    let lacking: Vec<String> = features
        .iter()
        .filter(|(of, _)| !least(*of))
        .map(|((a, b), what)| format!("{what} (Linux {a}.{b})"))
        .collect();
    out.push(match (least((5, 6)), lacking.is_empty()) {
        (false, _) => problem(
            format!("Linux {major}.{minor} lacks calls that every mount needs"),
            "use Linux 5.6 or later",
        ),
        (true, false) => note(
            format!("Linux {major}.{minor} lacks: {}", lacking.join(", ")),
            "use a newer kernel for these; all else works",
        ),
        (true, true) => ok(format!("Linux {major}.{minor} has all that QuayFS can use")),
    });
    if least((6, 9)) {
        out.push(ok(
            "FUSE passthrough is there and not used: data has to go through the daemon",
        ));
    }
}

fn rings(f: &Facts, out: &mut Vec<Finding>) {
    if f.uring_disabled == Some(2) || (f.uring_disabled == Some(1) && !f.is_root) {
        out.push(note(
            "io_uring is switched off: disks are read and written with one request at a time by a thread",
            "`sysctl kernel.io_uring_disabled=0`",
        ));
    }
    out.push(match f.rings {
        Some(true) => ok("FUSE over io_uring is switched on; mounts that end with their daemon use it (`-o norestart`)"),
        Some(false) => note(
            "FUSE over io_uring is switched off: requests cost more; with it a mount ends when its daemon dies",
            "`echo Y > /sys/module/fuse/parameters/enable_uring` as root; then mount with `-o norestart`",
        ),
        None if !f.sees_modules => ok(
            "whether FUSE over io_uring is switched on cannot be told: there is no /sys/module to be read here",
        ),
        None if f.kernel >= (6, 14) => note(
            "FUSE over io_uring was not built into this kernel, or the module fuse is not loaded",
            "nothing, unless requests are to cost less: a kernel with CONFIG_FUSE_IO_URING",
        ),
        None => return,
    });
}

fn memory_that_stays(f: &Facts, out: &mut Vec<Finding>) {
    for n in &f.namespaces {
        let what = format!(
            "{}: {} of persistent memory, mode {}",
            n.name,
            format_size(n.bytes),
            n.mode
        );
        out.push(match n.mode.as_str() {
            "fsdax" | "memory" | "devdax" => ok(what),
            _ => note(
                format!("{what}: it cannot be mapped"),
                format!(
                    "`ndctl create-namespace -f -e {} -m fsdax`, which loses what is on it",
                    n.name
                ),
            ),
        });
    }
    for device in &f.dax_devices {
        out.push(ok(format!(
            "/dev/{device}: persistent memory, or other memory, as a device"
        )));
    }
    for mount in &f.dax_mounts {
        out.push(ok(format!("{mount} is mounted with DAX: the place for --pmem (the kernel decides on MAP_SYNC at mkfs)")));
    }
    let fsdax = f
        .namespaces
        .iter()
        .any(|n| matches!(n.mode.as_str(), "fsdax" | "memory"));
    if fsdax && f.dax_mounts.is_empty() {
        out.push(note(
            "no file system is mounted with DAX",
            "`mkfs.xfs /dev/pmem0`, `mount -o dax=always /dev/pmem0 /mnt/pmem0`, then `quayfs mkfs --pmem /mnt/pmem0/q`",
        ));
    }
    for domain in &f.domains {
        out.push(match domain.as_str() {
            "cpu_cache" => ok("a power failure spares the processor's caches (eADR)"),
            "memory_controller" => {
                ok("a power failure spares what was flushed from the processor's caches (ADR)")
            }
            other => problem(
                format!("persistent memory without a guarantee (persistence_domain {other})"),
                "do not trust it with --pmem: ask the vendor for ADR",
            ),
        });
    }
    if f.namespaces.is_empty() && f.dax_devices.is_empty() && f.dax_mounts.is_empty() {
        out.push(ok("no persistent memory: the region goes to a disk"));
    }
}

fn processor(f: &Facts, out: &mut Vec<Finding>) {
    let has = |word: &str| f.cpu.iter().any(|w| w == word);
    let matters = !f.namespaces.is_empty() || !f.dax_devices.is_empty();
    out.push(if has("clwb") {
        ok("the processor writes lines back without losing them (clwb)")
    } else if has("clflushopt") {
        ok("the processor flushes lines in any order (clflushopt), and loses them from its cache: clwb is missing")
    } else if has("dcpop") {
        ok("the processor cleans lines to the point of persistence (dc cvap)")
    } else if matters {
        note(
            "the processor flushes lines one after the other (neither clwb nor clflushopt)",
            "nothing helps but another processor: operations on persistent memory are slower",
        )
    } else {
        ok("the processor has neither clwb nor clflushopt, which only persistent memory would use")
    });
}

fn disks(f: &Facts, out: &mut Vec<Finding>) {
    out.extend(f.disks.iter().map(disk));
    for mount in &f.unsafe_mounts {
        out.push(problem(
            format!("{mount} is mounted without barriers: flushes do not reach its disk"),
            "mount it with barriers before a volume lies there: fsync is not durable otherwise",
        ));
    }
}

fn disk(d: &Disk) -> Finding {
    let what = format!("{} ({})", d.name, format_size(d.bytes));
    if d.overridden {
        return problem(
            format!(
                "{what}: the disk has a write cache, and the kernel was told that it has none: flushes do not reach it"
            ),
            format!(
                "`echo 'write back' > /sys/block/{}/queue/write_cache`, unless the cache is protected",
                d.name
            ),
        );
    }
    match d.volatile_cache {
        Some(true) if d.virtual_disk => note(
            format!("{what}: a virtual disk with a write cache; flushes reach the host"),
            "make sure that the host passes them on (not cache=unsafe)",
        ),
        Some(true) => ok(format!("{what}: a write cache, which flushes reach")),
        Some(false) => ok(format!(
            "{what}: no write cache, or a protected one: flushes cost nothing"
        )),
        None => note(
            format!("{what}: the kernel does not say whether it has a write cache"),
            "ask its vendor",
        ),
    }
}

fn limits(f: &Facts, out: &mut Vec<Finding>) {
    out.push(match f.nofile {
        Some(most) if most < OPEN_FILES && !f.is_root => note(
            format!("a daemon of this user may open {most} files, less than the {OPEN_FILES} that it asks for"),
            "raise the hard limit `nofile` in limits.conf(5)",
        ),
        _ => ok("a daemon may open as many files as it asks for"),
    });
    if let Some(most) = f.memlock.filter(|most| *most < 8 << 20)
        && f.kernel < (5, 12)
    {
        let most = format_size(most);
        out.push(note(
            format!("only {most} may be locked into memory, which io_uring of this kernel counts"),
            "raise `memlock` in limits.conf(5) to 8 MiB",
        ));
    }
    let memory = format_size(f.memory);
    let quarter = format_size(f.memory / 4);
    out.push(match f.memory < LEAST_MEMORY {
        true => note(
            format!("{memory} of memory: a daemon takes a quarter, {quarter}"),
            "mount with memory=32M or more, and few files at a time",
        ),
        false => ok(format!(
            "{memory} of memory, of which a daemon takes at most a quarter, {quarter} (memory=)"
        )),
    });
}

fn place(target: &Target, out: &mut Vec<Finding>) {
    let path = quayfs_shown::argument(&target.path);
    out.push(match &target.what {
        What::Mount(mountpoint) => {
            let mnt = quayfs_shown::argument(mountpoint);
            ok(format!("{path}: a volume is mounted on {mnt}; `quayfs status {mnt}` says how it is"))
        }
        What::Volume { backend, bytes } => {
            let region = format_size(*bytes);
            ok(format!("{path}: a volume, backend {backend}, region of {region}"))
        }
        What::Device { bytes, on_disk, holds } => {
            let (size, region) = (format_size(*bytes), format_size(region_len(*bytes)));
            match (on_disk, holds) {
                (_, Some(what)) => note(
                    format!("{path}: {size}, with {what} data on it"),
                    "what is there would be lost: only `quayfs mkfs --force` overwrites it",
                ),
                (true, None) => ok(format!("{path}: {size}; `quayfs mkfs {path}` makes a region of {region} on it")),
                (false, None) => ok(format!("{path}: {size} of memory that can be mapped; use a file on it, or it, as --pmem")),
            }
        }
        What::Directory { free, kind: "memory" } => note(
            format!("{path}: {} free, in memory: a volume there is lost with the machine", format_size(*free)),
            "only for tests",
        ),
        What::Directory { free, kind } => {
            let (size, region) = (format_size(*free), format_size(region_len(*free)));
            let medium = if *kind == "dax" { "persistent memory" } else { "a disk" };
            ok(format!("{path}: {size} free on {medium}; a file of all of it gets a region of {region}"))
        }
        What::Taken(how) => problem(format!("{path}: {how}"), "name one that is free"),
        What::Unusable(why) => problem(format!("{path}: {why}"), "name a block device, a directory, or a volume"),
    });
}

/// What a user would get: at the place that was named, if a volume can be there, or else on this machine.
fn durability(f: &Facts) -> Option<Finding> {
    const LOST: &str = "with the machine the volume is lost; it survives the death of the daemon";
    const ON_DISK: &str = "at fsync, and every 5 s, on a disk (backend file)";
    const MAPPED: &str = "each call when it returns, if the kernel grants MAP_SYNC (backend dax)";
    let trusted = |d: &String| matches!(d.as_str(), "cpu_cache" | "memory_controller");
    let guaranteed = f.domains.iter().all(trusted);
    let mapped = !f.dax_mounts.is_empty() || !f.dax_devices.is_empty();
    let at = match f.target.as_ref().map(|target| &target.what) {
        Some(What::Volume { backend, .. }) => Some(backend.as_str()),
        Some(What::Directory { kind, .. }) => Some(*kind),
        Some(What::Device { on_disk: true, .. }) => Some("disk"),
        Some(What::Device { on_disk: false, .. }) => Some("dax"),
        Some(What::Unusable(_)) => return None,
        Some(What::Mount(_) | What::Taken(_)) | None => None,
    };
    let said = match (at, guaranteed) {
        (Some("volatile" | "memory"), _) => LOST,
        (Some("file" | "disk"), _) => ON_DISK,
        (Some("dax"), true) => MAPPED,
        (None, true) if mapped => {
            "with --pmem on DAX each call when it returns; otherwise at fsync, and every 5 s"
        }
        (Some(_), false) => "at fsync, and every 5 s; this persistent memory is not to be trusted",
        (None, false) if mapped => {
            "at fsync, and every 5 s; persistent memory is not to be trusted here"
        }
        _ => ON_DISK,
    };
    Some(ok(format!("durability: {said}")))
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
