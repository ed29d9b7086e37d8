//! The same of a volume that is mounted: its daemon leaves the mount to the next one, which resizes the volume before it
//! serves. What becomes of this command meanwhile changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quayfs_fs::uuid_text;
use quayfs_fs::volume::{Place, config_of, locate};
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::{Geometry, InUse};
use quayfs_options::exact_size;
use quayfs_resize::{ResizeError, Wanted};
use quayfs_restart::{MOST_BLOCKS, Medium, Wish};
use quayfs_shown::progress::{Meter, Unit};
use rustix::io::Errno;
use serde_json::Value;

use crate::cli::args;
use crate::cli::asking::{Heard, hear, irreplaceable, status};
use crate::cli::exit::{FAILED, Failure, say};
use crate::cli::progress::Progress;
use crate::cli::restart::{cannot, expect_successor};
use crate::cli::unserved::Unserved;
use crate::mount::server::{PATIENCE, PROGRESS, Server};
use crate::mount::table::Entry;

use super::{Change, changes, has_all, warn_of_holes};

/// How often to look.
const LOOK: Duration = Duration::from_millis(50);

/// Has a mounted volume resized, and says what has become of it.
pub(super) fn resize(entry: &Entry, args: &args::Resize) -> Result<(), Failure> {
    let pmem = status(entry, PATIENCE, FAILED)?["pmem_bytes"].as_u64();
    for change in changes(args, pmem.unwrap_or(0)) {
        let before = status(entry, PATIENCE, FAILED)?;
        // Before the media are looked at: they may not answer.
        possible(entry, &before).map_err(Failure::with(FAILED))?;
        let media = Media::of(&before);
        say(change_by_successor(
            entry,
            (change, &before),
            &media,
            args.quiet,
        )?);
        if let (Change::Data(_), Some(media)) = (change, &media) {
            warn_of_holes(&media.place);
        }
    }
    Ok(())
}

/// What has become of the volume, in lines.
fn change_by_successor(
    entry: &Entry,
    (change, before): (Change, &Value),
    media: &Option<Media>,
    quiet: bool,
) -> Result<String, Failure> {
    let blocks = |bytes: u64| (bytes / BLOCK as u64).min(MOST_BLOCKS - 1);
    let (medium, blocks) = match change {
        Change::Data(Wanted::All) => (Medium::Data, None),
        Change::Data(Wanted::Bytes(bytes)) => (Medium::Data, Some(blocks(bytes))),
        Change::Pmem(bytes) => (Medium::Pmem, Some(blocks(bytes))),
    };
    let wish = Wish { medium, blocks };
    if let Some(media) = media {
        let shown = quayfs_shown::argument(&entry.target);
        let on = |why| Failure::new(FAILED, format_args!("{why}; {shown} goes on as it was"));
        media.allow(wish).map_err(on)?;
        if let (Change::Data(Wanted::All), Some(said)) =
            (change, has_all(&media.place, &media.geometry))
        {
            return Ok(said);
        }
    }
    let meter = Arc::<Meter>::default();
    meter.begin("waiting for the daemon", 0, Unit::Bytes);
    let shown = Progress::of(&meter, quiet);
    let over = AtomicBool::new(false);
    let after = thread::scope(|scope| {
        scope.spawn(|| watch(before, &over, &meter));
        let after = ask_for(entry, wish).and_then(|()| outcome(entry, before));
        over.store(true, Ordering::Relaxed);
        after
    });
    drop(shown);
    judge(entry, wish, &after?)
}

/// What can be told to be impossible while the mount goes on.
fn possible(entry: &Entry, before: &Value) -> Result<(), String> {
    let shown = quayfs_shown::argument(&entry.target);
    let volume = quayfs_shown::argument(Path::new(before["volume"].as_str().unwrap_or("VOLUME")));
    let otherwise =
        format!("`quayfs umount {shown}`, then `quayfs resize {volume}`, then mount again");
    if let Some(why) = irreplaceable(before, &shown) {
        return Err(why);
    }
    if let Some(why) = before["ends_with_daemon"].as_str() {
        return Err(format!(
            "{shown} cannot be resized while it is mounted, since it would not outlive its daemon ({why}): {otherwise}"
        ));
    }
    if before["read_only"] == true {
        let why = before["read_only_reason"].as_str();
        let why = why.unwrap_or("it was asked for");
        return Err(match why.contains("write-protected") {
            true => format!("{shown} is read-only ({why}): its size cannot be changed"),
            false => format!("{shown} is read-only ({why}): {otherwise}"),
        });
    }
    expect_successor(entry, before)
}

/// The media of the volume, as far as this process can look at them. They are opened by the daemon: it is enough to say
/// early what will not be.
struct Media {
    place: Place,
    geometry: Geometry,
}

impl Media {
    /// Those of the volume whose daemon says this.
    fn of(said: &Value) -> Option<Self> {
        let path = Path::new(said["volume"].as_str()?);
        let config = config_of(path).ok()?;
        let place = locate(path).ok()?;
        (said["uuid"] == uuid_text(config.uuid)).then_some(Self {
            place,
            geometry: config.geometry,
        })
    }

    /// Refuses what they do not allow, whatever the volume holds.
    fn allow(&self, wish: Wish) -> Result<(), String> {
        let Some(blocks) = wish.blocks else {
            return Ok(());
        };
        let g = &self.geometry;
        // As if nothing were in use: what is more is known when the volume is closed.
        let empty = InUse {
            inode_ids: g.inode_base,
            ..InUse::default()
        };
        let bytes = blocks * BLOCK as u64;
        let allowed = match wish.medium {
            Medium::Data => {
                quayfs_resize::ways(g, blocks, &empty).and_then(|_| self.has_room(blocks))
            }
            Medium::Pmem if bytes == g.pmem_len => Ok(()),
            Medium::Pmem => quayfs_resize::replaceable(&self.place)
                .and_then(|()| quayfs_resize::with_region(g, bytes, &empty).map(drop)),
        };
        allowed.map_err(|why| match why {
            // Where blocks are in use is not known yet.
            ResizeError::TooSmall { least, .. } => format!(
                "too little for data: it takes at least {}, and more where files have more",
                exact_size(least)
            ),
            why => why.to_string(),
        })
    }

    /// Refuses what is behind the end of a device.
    fn has_room(&self, blocks: u64) -> Result<(), ResizeError> {
        match quayfs_resize::room(&self.place) {
            Ok(room) if !room.is_file && room.blocks < blocks => Err(ResizeError::Short {
                have: room.blocks * BLOCK as u64,
                want: blocks * BLOCK as u64,
            }),
            // The daemon may be able to look where this process is not.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn ask_for(entry: &Entry, wish: Wish) -> Result<(), Failure> {
    let shown = quayfs_shown::argument(&entry.target);
    crate::mount::resize(&entry.target, wish).map_err(|e| {
        let why = match e {
            Errno::NOTCONN => format!("the daemon of {shown} is gone: `quayfs umount {shown}`, then mount again"),
            Errno::BUSY => format!("{shown} is being resized already"),
            Errno::ROFS => format!("{shown} is mounted read-only, or a failure has made it so, as `quayfs status {shown}` says"),
            Errno::PERM | Errno::ACCESS => format!(
                "only root (CAP_SYS_ADMIN) and the user who mounted can resize {shown}; if that is an ordinary user, only \
                 that user"
            ),
            Errno::OPNOTSUPP | Errno::NODATA | Errno::INVAL => format!(
                "the daemon of {shown} cannot be replaced, or is of another version: unmount the volume, resize it, and \
                 mount it again"
            ),
            e => format!("{shown}: {e}"),
        };
        Failure::new(FAILED, why)
    })
}

/// Waits until another daemon than `before` serves, which nothing that it may do beforehand hurries; what it says of itself.
fn outcome(entry: &Entry, before: &Value) -> Result<Value, Failure> {
    loop {
        match hear(entry, PATIENCE, FAILED)? {
            Heard::Nothing(Unserved::Stopped | Unserved::Silent) => {}
            Heard::Nothing(why @ (Unserved::Dead | Unserved::Broken)) => {
                return Err(Failure::new(FAILED, why.line(entry)));
            }
            // It stays if it cannot leave.
            Heard::Status(now)
                if now["pid"] != before["pid"]
                    || now["read_only"] == true
                    || now["ends_with_daemon"].is_string() =>
            {
                return Ok(now);
            }
            Heard::Status(_) => {}
        }
        thread::sleep(LOOK);
    }
}

/// What the next daemon has made of the wish.
fn judge(entry: &Entry, wish: Wish, now: &Value) -> Result<String, Failure> {
    let shown = quayfs_shown::argument(&entry.target);
    let resize = &now["last_resize"];
    if resize["wanted"] == wish.to_string() {
        if let Some(done) = resize["done"].as_str() {
            return Ok(done.into());
        }
        if let Some(why) = resize["refused"].as_str() {
            return Err(Failure::new(
                FAILED,
                format_args!("{why}; {shown} goes on as it was"),
            ));
        }
    }
    let reason = |key: &str| now[key].as_str();
    let why = match (reason("read_only_reason"), reason("ends_with_daemon")) {
        (Some(why), _) => format!("{shown} has failed meanwhile ({why})"),
        (None, Some(why)) => cannot(&shown, why),
        (None, None) => format!(
            "a daemon of {shown} has ended meanwhile, and the next one goes on with the old size or the new one: `quayfs \
             info {shown}` says which"
        ),
    };
    Err(Failure::new(FAILED, why))
}

/// Shows what the daemon between the two says of its work, as long as that is to be seen from here.
fn watch(before: &Value, over: &AtomicBool, meter: &Meter) {
    let uuid = before["uuid"].as_str().unwrap_or_default();
    let volume = Path::new(before["volume"].as_str().unwrap_or_default());
    let owner = std::fs::metadata(volume).map_or(0, |meta| meta.uid());
    while !over.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        let Some(server) = Server::resizing(uuid, owner).filter(|s| s.ask_for(PROGRESS)) else {
            continue;
        };
        let mut all = 0;
        meter.begin("resizing", 0, Unit::Bytes);
        while !over.load(Ordering::Relaxed) && server.ends_within(LOOK) == Ok(false) {
            if let Some(left) = server.left() {
                all = all.max(left.bytes);
                meter.set(all - left.bytes, all);
            }
        }
    }
}
