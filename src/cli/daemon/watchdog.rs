//! Reassures a service manager as long as the mount answers.

use std::io;
use std::thread;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use tracing::warn;

use crate::cli::confine;
use crate::cli::handover::{self, Holder};
use crate::mount::probe::ask;
use crate::mount::server::PATIENCE;
use crate::mount::table;

/// The mount is asked so many times while the service manager waits.
const LOOKS: u32 = 3;

/// Starts the thread that asks the mount whether it answers, as any other process would, and says so if it does; until the
/// process ends. To be called by a thread that may start programs. `number`: the device number of the mount.
///
/// # Errors
/// Those of starting a thread.
pub(super) fn start(manager: Option<&Holder>, number: Option<&str>) -> io::Result<()> {
    let Some((manager, wait)) = manager.zip(handover::watchdog()) else {
        return Ok(());
    };
    let (manager, number) = (manager.clone(), number.map(str::to_string));
    let work = move || {
        confine::to(CapabilitySet::empty());
        loop {
            match answers(number.as_deref()) {
                true => manager.reassure(),
                false => warn!("the mount does not answer"),
            }
            thread::sleep(wait / LOOKS);
        }
    };
    thread::Builder::new().name("watchdog".into()).spawn(work)?;
    Ok(())
}

/// Whether the mount answers. One that cannot be asked is believed to.
fn answers(number: Option<&str>) -> bool {
    let mut entries = table::read().unwrap_or_default().into_iter();
    let Some(entry) = entries.find(|entry| Some(&*entry.device) == number) else {
        return true;
    };
    ask(&entry, PATIENCE).err() != Some(Errno::TIMEDOUT)
}
