//! The volume gets another size between two daemons of its mount: the one that ends has left a wish, and the one that begins
//! fulfils it before it serves. Whatever fails, or ends this process, the mount goes on, with the old size or the new one.

use std::sync::Arc;

use quayfs_fs::closing::close_between;
use quayfs_fs::{Fs, Resized};
use quayfs_fuse::Negotiation;
use quayfs_layout::BLOCK;
use quayfs_resize::{How, Wanted, resize_closed, resize_closed_region};
use quayfs_restart::{Medium, Wish};
use quayfs_shown::progress::Meter;
use tracing::{info, warn};

use super::{Event, Job, closing, moving, survival};
use crate::cli::confine;
use crate::cli::handover::{Handover, Holder};
use crate::cli::resize::told;
use std::sync::mpsc::Sender;

/// What the last daemon was asked for is done, if it was, and what has become of it.
pub(super) fn fulfil(job: &Job, holder: &Holder, handover: &Handover) -> Option<Resized> {
    let requests = handover.memory().requests;
    // Taken before anything is tried: a daemon that dies of it is followed by one that does not try it.
    let wish = requests.take_wish()?;
    let wanted = wish.to_string();
    let refused = |why: &str| {
        warn!("not resized: {why}");
        Resized {
            wanted: wanted.clone(),
            done: None,
            refused: Some(why.into()),
        }
    };
    if job.options.read_only || requests.is_shut_down() {
        return Some(refused("nothing may be changed"));
    }
    if moving::is_under_way(handover) {
        // What a resize writes to the data device is noted by nothing.
        return Some(refused(
            "a part of the volume is being moved (`quayfs migrate`; if that has been killed, `quayfs restart` ends it)",
        ));
    }
    info!("the volume is closed to get another size ({wanted})");
    let meter = Arc::<Meter>::default();
    let work = || carry_out(job, (holder, handover), wish, &meter);
    let config = quayfs_fs::volume::config_of(&job.volume).ok();
    let uuid = config.map(|config| quayfs_fs::uuid_text(config.uuid));
    let done = closing::telling(&meter, (&job.volume, uuid.as_deref(), holder), work);
    Some(match done {
        Ok(done) => {
            done.lines().for_each(|line| info!("resized: {line}"));
            Resized {
                wanted: wanted.clone(),
                done: Some(done),
                refused: None,
            }
        }
        Err(why) => refused(&why),
    })
}

/// What the volume is then, in lines, or why it is as it was.
fn carry_out(
    job: &Job,
    (holder, handover): (&Holder, &Handover),
    wish: Wish,
    meter: &Meter,
) -> Result<String, String> {
    let before = (Some(holder), Some(handover));
    let (volume, memory) = survival::take_over(job, before).map_err(|e| e.to_string())?;
    memory?;
    confine::run(|| close_between(volume, &job.options, meter))
        .map_err(|e| e.to_string())?
        .map_err(|e| e.to_string())?;
    // All of it is on the media, which are another's from here on: to the next daemon this one leaves nothing but them.
    let stores = handover.memory().stores;
    stores.set_len(0).map_err(|e| e.to_string())?;
    let [a, b, c, d, e, ..] = handover.memory().requests.connection();
    let request = Negotiation::from_words([a, b, c, d, e]).payload as u64;
    let bytes = wish.blocks.map(|n| n.saturating_mul(BLOCK as u64));
    let how = How {
        meter,
        request,
        confined: &|work| confine::run(work),
    };
    let resized = match (wish.medium, bytes) {
        (Medium::Data, Some(bytes)) => resize_closed(&job.volume, Wanted::Bytes(bytes), how),
        (Medium::Data, None) => resize_closed(&job.volume, Wanted::All, how),
        (Medium::Pmem, Some(bytes)) => resize_closed_region(&job.volume, bytes, how),
        (Medium::Pmem, None) => return Err("the size of the region is to be said".into()),
    };
    resized.map(|r| told(&r)).map_err(|e| e.to_string())
}

/// A size that is wished for calls the next daemon.
pub(super) fn listen(fs: &Fs, events: Sender<Event>) {
    // The receiver only goes away when the process ends.
    fs.on_successor_wanted(move || drop(events.send(Event::HandOver)));
}
