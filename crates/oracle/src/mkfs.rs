//! Crashes while a volume is made: there is none yet, or all of it; over another volume perhaps that
//! one, as it was.

use std::sync::Arc;

use quayfs_crashsim::{CrashImage, Recorder, Trace};
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_mkfs::format;
use quayfs_options::MountOptions;
use quayfs_pmem::Backend;

use crate::crash::{Depth, Run};
use crate::dump;
use crate::{Media, Shape};

/// Mark of a volume that has been made.
const MADE: u64 = 1;

/// Name of a file on the volume that was there before.
const OLD: &[u8] = b"old";

/// A volume being made.
pub struct Mkfs {
    name: String,
    recorder: Recorder,
    geometry: Geometry,
    over: bool,
}

impl Mkfs {
    /// Makes a volume `over` another one, or over zeros.
    pub fn run(name: String, shape: &Shape, backend: Backend, over: bool) -> Self {
        let geometry = shape.geometry();
        let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
        if over {
            let media = Media::format(recorder.region(), recorder.device(), geometry);
            let fs = media.mount_quiet(&MountOptions::default());
            fs.mknod(Caller::default(), ROOT, OLD, S_IFREG | 0o644, 0)
                .expect("mknod");
            fs.shutdown().expect("shutdown");
            recorder.start_here();
        }
        format(&recorder.region(), &*recorder.device(), geometry, "new").expect("mkfs");
        recorder.mark(MADE);
        Self {
            name,
            recorder,
            geometry,
            over,
        }
    }

    /// What is there: 0 for no volume, 1 for the new one, 2 for the old one.
    fn found(&self, media: &Media, made: bool) -> Result<u64, String> {
        let volume = Volume::from_parts(
            Arc::clone(&media.region),
            Arc::clone(&media.device),
            Access::ReadWrite,
        );
        let Ok(volume) = volume else {
            return Ok(0);
        };
        // Before its end one copy of the configuration table may be there and the other not.
        if made {
            media.fsck()?;
        }
        let fs = Fs::mount_quiet(volume, &MountOptions::default()).map_err(|e| e.to_string())?;
        let tree = dump::dump(&fs, ROOT).map_err(|e| e.to_string())?;
        match tree.len() {
            1 => Ok(1),
            2 if self.over && fs.lookup(ROOT, OLD).is_ok() => Ok(2),
            names => Err(format!("a volume of {names} names")),
        }
    }
}

impl Run for Mkfs {
    fn name(&self) -> &str {
        &self.name
    }

    fn trace(&self) -> Trace {
        self.recorder.trace()
    }

    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String> {
        let media = Media {
            region: Arc::new(image.region()),
            device: Arc::new(image.device()),
        };
        let made = image.acked().contains(&MADE);
        let found = self.found(&media, made)?;
        if found != 1 && made {
            return Err("mkfs had ended, and there is no new volume".into());
        }
        if n.is_multiple_of(depth.used) {
            // Whatever was left, mkfs can be run again.
            let again = Media::format(
                Arc::clone(&media.region),
                Arc::clone(&media.device),
                self.geometry,
            );
            if self.found(&again, true)? != 1 {
                return Err("mkfs over what was left makes no new volume".into());
            }
        }
        Ok(found)
    }
}
