//! Crashes while a damaged volume is repaired. Whatever a crash leaves, the next repair comes to the
//! end that the one before was about to come to. Until a repair has come to its end, the volume cannot
//! be mounted, so that nothing makes matters worse.

use std::sync::{Arc, LazyLock};

use quayfs_background::{checkpoint, digest};
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Budget, CrashImage, Recorder, Trace};
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, FallocMode, Fs};
use quayfs_fsck::repair::{Outcome, RepairReport, belongs, repair_volume};
use quayfs_fsck::{Area, Finding, FsckOptions, check_volume};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_mkfs::Identity;
use quayfs_options::MountOptions;
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

use crate::Media;
use crate::crash::{Depth, Run};
use crate::damage::harm::Corruption;
use crate::damage::map::Map;
use crate::damage::shown::{self, Item, Tree, tree};
use crate::damage::{Image, Left};

/// Mark of a repair that has returned.
const DONE: u64 = 1;

/// Mark of a repair that follows one that died.
const BEGINS: u64 = 2;

/// A volume before it is damaged.
struct Sample {
    left: Left,
    image: Image,
    map: Map,
    tree: Tree,
}

impl Sample {
    fn new(left: Left) -> Self {
        let identity = Identity {
            uuid: *b"repaired volume ",
            data_uuid: *b"its data device ",
            hash_key: [3, 5],
        };
        let image = Image::sample_as(left, &identity);
        Self {
            left,
            map: Map::of(&image),
            tree: tree(&image.media()),
            image,
        }
    }

    fn of(left: Left) -> &'static Self {
        static ALL: LazyLock<Vec<Sample>> = LazyLock::new(|| {
            let all = [Left::Op, Left::Commit, Left::Round, Left::Clean];
            all.map(Sample::new).into()
        });
        let found = ALL.iter().find(|s| s.left == left);
        found.expect("all of them are there")
    }
}

/// A repair that was recorded.
pub struct Repair {
    name: String,
    recorder: Recorder,
    options: MountOptions,
    /// What the volume shows after it.
    end: Tree,
    hash: u64,
    /// What of that was so before the damage.
    kept: Tree,
    /// Whether content was lost that a check of the data goes on to find.
    left: bool,
    /// What the repair says that it has done.
    pub report: RepairReport,
    /// The damaged volume ([`CrashImage::fingerprint`]).
    damaged: Option<u64>,
}

impl Repair {
    /// Damages a volume in these ways and repairs it. If it `dies` after so many events, another one
    /// follows on the same machine, and only crashes of that one are of interest.
    pub fn run(
        name: String,
        left: Left,
        ills: &[Corruption],
        dies: Option<usize>,
        (backend, options): (Backend, &MountOptions),
    ) -> Self {
        let sample = Sample::of(left);
        let mut damaged = sample.image.clone();
        for ill in ills {
            ill.do_to(&mut damaged, &sample.map);
        }
        let recorder = Recorder::new(damaged.pmem.len() as u64, damaged.device_blocks, backend);
        recorder.region().write(0, &damaged.pmem);
        for (block, bytes) in &damaged.blocks {
            recorder.device().write(*block, bytes).expect("write");
        }
        recorder.start_here();
        let before = recorder.trace().explore(&Budget::default()).next();
        let media = Media {
            region: recorder.region(),
            device: recorder.device(),
        };
        if let Some(events) = dies {
            recorder.die_after(events);
            // A thread of its own: its fences settle nothing for threads that come after it.
            let first = || repair(&media).map(drop);
            let first = std::thread::scope(|s| s.spawn(first).join());
            if let Err(panic) = first
                && !recorder.has_died()
            {
                std::panic::resume_unwind(panic);
            }
            recorder.revive();
            recorder.crash_from_here();
            recorder.mark(BEGINS);
        }
        let report = repair(&media).unwrap_or_else(|e| panic!("{name}: {e}"));
        recorder.mark(DONE);
        let end = tree(&Image::of(&media, options).media());
        let same = |(path, item): &(&String, &Item)| sample.tree.get(*path) == Some(*item);
        let kept = end.iter().filter(same);
        let kept: Tree = kept.map(|(p, i)| (p.clone(), i.clone())).collect();
        let left = report.outcome == Outcome::Left;
        // What a first repair has done is not known any more, and content that is lost is a finding.
        let excused = |path: &String| {
            let unread = end.get(path).is_some_and(|i| i.content.is_none());
            dies.is_some() || left && unread || is_told(&report, path)
        };
        for path in sample.tree.keys().filter(|p| !kept.contains_key(*p)) {
            assert!(
                excused(path),
                "{name}: {path} has changed, and nothing says so: {report}"
            );
        }
        Self {
            hash: hash(&end),
            end,
            kept,
            left,
            report,
            damaged: before.map(|image| image.fingerprint()),
            options: options.clone(),
            recorder,
            name,
        }
    }

    /// Repairs once more and compares. Returns what was recorded of it.
    fn mend(&self, recorder: Recorder, done: bool) -> Result<Recorder, String> {
        let media = Media {
            region: recorder.region(),
            device: recorder.device(),
        };
        let report = repair(&media)?;
        let stores = recorder.trace().stores();
        if done && (stores > 0 || report.outcome == Outcome::Repaired) {
            return Err(format!(
                "a repair had ended, and another one stores {stores} times: {report}"
            ));
        }
        if report.outcome == Outcome::Left && !self.left {
            return Err(format!("the next repair leaves damage: {report}"));
        }
        let now = tree(&media);
        if let Some(what) = difference(&now, &self.end) {
            return Err(format!("the next repair ends elsewhere: {what}; {report}"));
        }
        Ok(recorder)
    }

    /// A mount of what a crash has left is refused, or finds the volume whole or as it was damaged. In
    /// either case everything that was not damaged is there, and the mount cannot harm it. (Copies of the
    /// configuration table, the header of the device and content on it are written one by one: each
    /// stands for itself.)
    fn mounted(&self, image: &CrashImage, used: bool) -> Result<(), String> {
        let media = media_of(image);
        let Some(fs) = mount(&media, &self.options) else {
            return Ok(());
        };
        if self.damaged != Some(image.fingerprint()) {
            let report = check_volume(shown::open(&media), &FsckOptions::default());
            let report = report.map_err(|e| e.to_string())?;
            let alone = |f: &Finding| matches!(f.area, Area::Config | Area::Device | Area::Content);
            if !report.findings.iter().all(alone) {
                return Err(format!("mounted in the middle of a repair: {report}"));
            }
        }
        for (path, item) in &self.kept {
            shows(&fs, path, item)?;
        }
        if !used {
            return Ok(());
        }
        // It may well fail: nothing says that the volume is whole.
        let _ = make_use(&fs);
        fs.abandon();
        drop(fs);
        let report = repair(&media)?;
        let now = tree(&media);
        for (path, item) in &self.kept {
            if now.get(path) != Some(item) {
                return Err(format!(
                    "mounted and used after a crash, {path} has changed: {report}"
                ));
            }
        }
        Ok(())
    }
}

impl Run for Repair {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        self.mounted(image, n.is_multiple_of(depth.used))?;
        let recorder = self.mend(image.restart(), is_done(image))?;
        if n.is_multiple_of(depth.fsck) {
            recorder.start_here();
            let media = Media {
                region: recorder.region(),
                device: recorder.device(),
            };
            let report = repair(&media)?;
            let stores = recorder.trace().stores();
            if stores > 0 || report.outcome == Outcome::Repaired {
                return Err(format!("a repaired volume is repaired again: {report}"));
            }
        }
        if n.is_multiple_of(depth.again) {
            let budget = Budget {
                exhaustive: 6,
                picks: 2,
                random: 2,
                seed: 1,
            };
            let again = repaired(image)?;
            for second in again.trace().explore(&budget) {
                self.mounted(&second, false)
                    .and_then(|()| self.mend(second.restart(), is_done(&second)))
                    .map_err(|e| format!("{e}\nin the second repair, {second}"))?;
            }
        }
        Ok(self.hash)
    }
}

fn is_done(image: &CrashImage) -> bool {
    image.acked().contains(&DONE)
}

/// Repairs what a crash has left, recorded.
fn repaired(image: &CrashImage) -> Result<Recorder, String> {
    let recorder = image.restart();
    let media = Media {
        region: recorder.region(),
        device: recorder.device(),
    };
    repair(&media)?;
    recorder.mark(DONE);
    Ok(recorder)
}

fn media_of(image: &CrashImage) -> Media {
    Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    }
}

fn repair(media: &Media) -> Result<RepairReport, String> {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    let volume = Volume::from_parts_vouched(region, device, Access::ReadWrite, belongs);
    let mut volume = volume.map_err(|e| e.to_string())?;
    let options = FsckOptions { check_data: true };
    repair_volume(&mut volume, &options, &Default::default()).map_err(|e| e.to_string())
}

/// A mount, unless it is refused.
fn mount(media: &Media, options: &MountOptions) -> Option<Arc<Fs>> {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    let volume = Volume::from_parts(region, device, Access::ReadWrite).ok()?;
    Fs::mount_quiet(volume, options).ok()
}

/// Whether a report names a path, or something above it; or lost records, since nothing tells which
/// paths these were about.
fn is_told(report: &RepairReport, path: &str) -> bool {
    let named = |p: &str| {
        p == path || p == "/lost+found" && path == "/" || path.starts_with(&format!("{p}/"))
    };
    let mut done = report.done.iter();
    done.any(|d| match d.path.as_deref() {
        Some(p) => p == "/" || named(p) || p.starts_with("inode ") || p.starts_with("/lost+found"),
        None => {
            d.what.contains("are lost") || d.what.contains("is lost") || d.what.contains("given up")
        }
    })
}

/// A path shows this, or cannot be read.
fn shows(fs: &Fs, path: &str, item: &Item) -> Result<(), String> {
    let mut ino = ROOT;
    for name in path.split('/').filter(|n| !n.is_empty()) {
        ino = match fs.lookup(ino, name.as_bytes()) {
            Ok(attr) => attr.ino,
            Err(FsError::NoEntry) => return Err(format!("mounted after a crash, {path} is gone")),
            Err(_) => return Ok(()),
        };
    }
    let Ok(now) = shown::item(fs, ino, |_, _| ()) else {
        return Ok(());
    };
    let unread = now.content.is_none();
    let content = item.content.clone().filter(|_| !unread);
    match now
        == (Item {
            content,
            ..item.clone()
        }) {
        true => Ok(()),
        false => Err(format!(
            "mounted after a crash, {path} shows something else"
        )),
    }
}

/// Takes blocks, nodes and inodes, and lets go of some.
fn make_use(fs: &Fs) -> Result<(), FsError> {
    let me = Caller::default();
    let file = fs.mknod(me, ROOT, b"after", S_IFREG, 0)?.ino;
    let content = crate::rng::bytes(99, 5 * BLOCK);
    let grow = FallocMode::Allocate { keep_size: false };
    for n in 0..10 {
        let at = 16 * n * BLOCK as u64;
        fs.write(file, at, &content, false)?;
        fs.fallocate(file, grow, at + 8 * BLOCK as u64, 4 * BLOCK as u64)?;
    }
    for n in 0..20 {
        fs.mknod(me, ROOT, format!("after-{n}").as_bytes(), S_IFREG, 0)?;
    }
    fs.sync_all()?;
    digest::digest_all(&fs.e)?;
    checkpoint::round(&fs.e)?;
    checkpoint::zero_freed(&fs.e)?;
    fs.unlink(ROOT, b"after")?;
    fs.forget(file, 1);
    fs.sync_all()?;
    digest::digest_all(&fs.e)?;
    checkpoint::round(&fs.e)?;
    checkpoint::zero_freed(&fs.e)?;
    Ok(())
}

fn difference(now: &Tree, then: &Tree) -> Option<String> {
    let paths = now.keys().chain(then.keys());
    let other = paths.filter(|p| now.get(*p) != then.get(*p)).take(3);
    let other: Vec<&String> = other.collect();
    (!other.is_empty()).then(|| format!("{other:?}"))
}

fn hash(tree: &Tree) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut h = std::hash::DefaultHasher::new();
    tree.hash(&mut h);
    h.finish()
}
