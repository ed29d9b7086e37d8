//! The volumes that are tampered with: small, made once per process, the same every time.

use std::sync::{Arc, LazyLock};

use quayfs_background::{checkpoint, digest};
use quayfs_crashsim::{Budget, CrashImage, Recorder, SimDevice};
use quayfs_fs::recovery::ppt_geometry;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use quayfs_fs::{Caller, Fs, SetAttr, SetXattr};
use quayfs_fsck::{FsckOptions, FsckReport};
use quayfs_layout::BLOCK;
use quayfs_layout::config::ConfigTable;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_mkfs::Identity;
use quayfs_options::MountOptions;
use quayfs_oracle::Shape;
use quayfs_pmem::{Backend, Region};
use quayfs_ppt::Ppt;
use quayfs_store::error::Result;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// Both halves of a volume.
pub struct Media {
    /// The pmem region.
    pub region: Arc<Region>,
    /// The data device.
    pub device: Arc<SimDevice>,
}

impl Media {
    /// Opens the volume.
    pub fn volume(&self) -> std::result::Result<Volume, VolumeError> {
        let (region, device) = (Arc::clone(&self.region), Arc::clone(&self.device));
        Volume::from_parts(region, device, Access::ReadWrite)
    }

    /// The volume for reading, on a copy of the region as a read-only mount makes it.
    pub fn copy(&self) -> std::result::Result<Volume, VolumeError> {
        let region = Arc::new(self.region.load()?);
        let device = Arc::clone(&self.device);
        Volume::from_parts(region, device, Access::ReadOnly)
    }

    /// What the checker finds, data included.
    pub fn fsck(&self) -> std::result::Result<FsckReport, VolumeError> {
        quayfs_fsck::check_volume(self.volume()?, &FsckOptions { check_data: true })
    }
}

/// A volume to start from.
pub struct Base {
    /// What the region holds.
    pub pmem: Vec<u8>,
    /// For the device; the region is in `pmem`.
    image: CrashImage,
    /// Which volume it is.
    pub config: ConfigTable,
    /// How it was mounted.
    pub options: &'static str,
    /// What its region is.
    pub backend: Backend,
}

impl Base {
    fn new(image: CrashImage, options: &'static str, backend: Backend) -> Self {
        let pmem = image.pmem();
        let config = ConfigTable::decode(&pmem[..BLOCK]).expect("a valid volume");
        Self {
            pmem,
            image,
            config,
            options,
            backend,
        }
    }

    /// A copy of its device.
    pub fn device(&self) -> SimDevice {
        self.image.device()
    }

    /// The volume with `pmem` for its region.
    pub fn media(&self, pmem: &[u8], device: SimDevice) -> Media {
        Media {
            region: Arc::new(Region::from_image(pmem, None, self.backend)),
            device: Arc::new(device),
        }
    }
}

const OP: &str = "noatime,durability=op,ablation=workers:1";
const COMMIT: &str = "noatime,durability=commit,ablation=workers:1";

/// The volumes, by what is special about them.
pub static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    vec![
        made(OP, Backend::Dax, |_| Ok(())),
        made(COMMIT, Backend::File, |_| Ok(())),
        made(OP, Backend::Volatile, |fs| {
            digest::digest_all(&fs.e)?;
            fs.shutdown()
        }),
        caught(&|fs| checkpoint::round(&fs.e).map(drop), &|image| {
            let region = Arc::new(image.region());
            let config = ConfigTable::decode(&region.read_vec(0, B)).expect("a valid volume");
            let geometry = ppt_geometry(&config.geometry, config.salt());
            Ppt::attach(region, geometry).is_ok_and(|(_, report)| report.undone > 0)
        }),
        caught(&|fs| shrink(fs, b"holes"), &|image| {
            let media = Media {
                region: Arc::new(image.region()),
                device: Arc::new(image.device()),
            };
            let options = MountOptions::parse(&[OP, "ro"]).expect("options");
            media.copy().is_ok_and(|v| {
                Fs::mount_quiet(v, &options).is_ok_and(|fs| fs.e.intents.truncates() > 0)
            })
        }),
    ]
});

static EMPTY: LazyLock<Base> = LazyLock::new(|| {
    let recorder = formatted(Backend::Dax);
    Base::new(arrived(&recorder), OP, Backend::Dax)
});

/// An empty volume.
pub fn empty() -> Media {
    EMPTY.media(&EMPTY.pmem, EMPTY.device())
}

fn formatted(backend: Backend) -> Recorder {
    let geometry = Shape::TINY.geometry();
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
    let identity = Identity {
        uuid: *b"quayfs, hostile!",
        data_uuid: *b"its data device.",
        hash_key: [1, 2],
    };
    let (region, device) = (recorder.region(), recorder.device());
    quayfs_mkfs::format_as(&region, &*device, geometry, "hostile", &identity).expect("mkfs");
    recorder
}

fn mounted(recorder: &Recorder, options: &str) -> Arc<Fs> {
    let media = Media {
        region: recorder.region(),
        device: recorder.device(),
    };
    let options = MountOptions::parse(&[options]).expect("options");
    Fs::mount_quiet(media.volume().expect("volume"), &options).expect("mount")
}

/// What is on the media, all of it.
fn arrived(recorder: &Recorder) -> CrashImage {
    recorder.start_here();
    recorder.mark(0);
    let trace = recorder.trace();
    let mut images = trace.explore(&Budget::default());
    images.next().expect("an image of the present")
}

/// A volume with something of everything, after `last`.
fn made(options: &'static str, backend: Backend, last: impl FnOnce(&Fs) -> Result<()>) -> Base {
    let recorder = formatted(backend);
    let fs = mounted(&recorder, options);
    fill(&fs)
        .and_then(|()| last(&fs))
        .expect("a volume to start from");
    Base::new(arrived(&recorder), options, backend)
}

/// A volume that a crash has caught in the middle of `doing`, so that `wanted` is true.
fn caught(doing: &dyn Fn(&Fs) -> Result<()>, wanted: &dyn Fn(&CrashImage) -> bool) -> Base {
    let recorder = formatted(Backend::Dax);
    let fs = mounted(&recorder, OP);
    fill(&fs).expect("a volume to start from");
    recorder.start_here();
    doing(&fs).expect("something that can be interrupted");
    let trace = recorder.trace();
    let points: Vec<_> = trace.points().collect();
    let one = Budget {
        exhaustive: 0,
        picks: 1,
        random: 0,
        seed: 1,
    };
    // From the end: the later, the more is under way.
    let image = points
        .iter()
        .rev()
        .find_map(|p| trace.images(*p, &one).find(wanted));
    Base::new(image.expect("a crash in the middle"), OP, Backend::Dax)
}

/// Something of everything: digested and on the data device, digested and staged, neither; and an
/// orphan.
fn fill(fs: &Fs) -> Result<()> {
    let file = |dir, name: &[u8]| fs.mknod(ME, dir, name, S_IFREG | 0o644, 0).map(|a| a.ino);
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755)?.ino;
    let sub = fs.mkdir(ME, dir, b"sub", 0o700)?.ino;
    let plain = file(ROOT, b"plain")?;
    fs.write(plain, 0, &[1; 10_000], false)?;
    let holes = file(dir, b"holes")?;
    for n in 0..70 {
        fs.write(holes, n * 3 * B, &[n as u8 + 1; 100], false)?;
        if n % 16 == 0 {
            digest::digest_all(&fs.e)?;
            checkpoint::round(&fs.e)?;
        }
    }
    fs.symlink(ME, sub, b"short", b"../holes")?;
    fs.symlink(ME, sub, b"long", &[b'x'; 3000])?;
    fs.setxattr(plain, b"user.a", b"value", SetXattr::Any)?;
    fs.setxattr(dir, b"user.b", &[7; 6000], SetXattr::Any)?;
    let many = fs.mkdir(ME, ROOT, b"many", 0o755)?.ino;
    for n in 0..150 {
        fs.link(
            plain,
            many,
            format!("link {n}, and some more of a name").as_bytes(),
        )?;
        if n % 50 == 0 {
            digest::digest_all(&fs.e)?;
        }
    }
    let gone = file(ROOT, b"gone")?;
    fs.write(gone, 0, &[9; 5000], false)?;
    fs.unlink(ROOT, b"gone")?;
    fs.sync_all()?;
    digest::digest_all(&fs.e)?;
    checkpoint::round(&fs.e)?;
    for n in 0..9 {
        fs.write(plain, n * B, &[n as u8; 4096], false)?;
    }
    fs.sync_all()?;
    digest::digest_all(&fs.e)?;
    let late = file(sub, b"late")?;
    fs.write(late, 100, &[5; 9000], false)?;
    fs.rename((ROOT, b"plain"), (dir, b"plain"), Default::default())?;
    fs.mknod(ME, sub, b"fifo", 0o010_600, 0)?;
    fs.sync_all()?;
    fs.write(late, 0, &[6; 100], false)
}

fn shrink(fs: &Fs, name: &[u8]) -> Result<()> {
    let dir = fs.lookup(ROOT, b"dir")?.ino;
    let ino = fs.lookup(dir, name)?.ino;
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set, false).map(drop)
}
