//! What a daemon has from the last one of its mount, and what it keeps for the next one.

use quayfs_fs::Fs;
use quayfs_fs::volume::{Access, Volume};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use tracing::{info, warn};

use super::{Job, open};
use crate::cli::handover::{self, Handover, Holder};

/// What would hold the mount after the death of this process, and what is left of the last daemon, if any.
pub(super) fn found(
    job: &Job,
    given: Vec<OwnedFd>,
    warnings: &mut Vec<String>,
) -> io::Result<(Option<Holder>, Option<Handover>)> {
    if !job.options.restart {
        return Ok((None, None));
    }
    let found = Handover::take(given)?;
    if found.0.is_none() {
        let why = "restart has no effect: nothing would start another daemon; mount in the background, or by a service \
                   manager that holds descriptors";
        warnings.push(why.into());
    }
    Ok(found)
}

/// Logs how the last daemon of the mount died, and what that cost.
pub(super) fn tell_of_the_last_one(fs: &Fs) {
    if let Some(last) = fs.predecessor() {
        let pause = handover::pause().unwrap_or_default();
        let _ = last.pause.set(pause);
        warn!(
            "the last daemon of this mount was {}; no request was answered for {pause:.1?}, none is lost",
            last.cause
        );
    }
}

/// Opens the volume, as the last daemon has left it if there was one, and with what is to be left to the next one.
pub(super) fn take_over(
    job: &Job,
    handover: Option<&Handover>,
) -> Result<(Volume, Option<File>), Box<dyn std::error::Error>> {
    let mut volume = open(job)?;
    let stores = outlive(&volume, job, handover)?;
    if let Some(handover) = handover {
        volume.follow(handover.predecessor()?);
    }
    Ok((volume, stores))
}

/// From here on what is stored to the region outlives this process, where another one is to go on.
fn outlive(
    volume: &Volume,
    job: &Job,
    handover: Option<&Handover>,
) -> Result<Option<File>, Box<dyn std::error::Error>> {
    if !job.options.restart {
        return Ok(None);
    }
    if handover.is_some() && volume.access() == Access::ReadOnly && !job.options.read_only {
        let why = volume.protected().unwrap_or("it is write-protected");
        return Err(format!("what the last daemon has stored cannot be written: {why}").into());
    }
    let stores = match handover {
        Some(handover) => handover.stores()?,
        None => handover::no_stores()?,
    };
    let bytes = volume.region().outlive(stores.try_clone()?)?;
    if bytes > 0 {
        info!("{bytes} bytes that the last daemon had stored are stored again");
    }
    Ok(Some(stores))
}
