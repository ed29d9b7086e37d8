//! What the end of a mount has left, in words for the user who unmounts.

use quayfs_fs::Fs;
use quayfs_options::{DataMode, Durability, format_size};
use quayfs_shown::count;
use quayfs_store::error::Result;

use crate::mount::server::Ending;
use quayfs_layout::BLOCK;
use tracing::{error, info};

/// How a mount has ended. `closed` is whether what was staged has been left in the region, or why the volume is not closed.
pub fn of(fs: &Fs, closed: Result<bool>) -> Ending {
    if fs.alive().is_err() {
        return Ending::ShutDown;
    }
    let failure = fs.e.failure().map(str::to_string);
    let left_staged = closed.as_ref().is_ok_and(|left| *left);
    let gone = fs.unlinked();
    match failure.or_else(|| closed.err().map(|e| e.to_string())) {
        _ if !gone.is_empty() => Ending::Damaged(format!(
            "{}: removed while it was mounted, and what was in there is lost",
            gone.join(" and ")
        )),
        Some(cause) => Ending::Left(format!(
            "{cause}; {}, {}; {}",
            waiting(fs),
            loss(fs),
            way_out(fs)
        )),
        None if fs.e.device.missing() > 0 => Ending::Damaged(format!(
            "the data device was cut short: its last {} are not there any more, and what lay there is lost",
            format_size(fs.e.device.missing())
        )),
        None if left_staged && !fs.e.staged.is_empty() => {
            Ending::Staged(fs.e.staged.len() as u64 * BLOCK as u64)
        }
        None => Ending::Closed,
    }
}

/// Has the log say so.
pub fn log(ending: &Ending) {
    match ending {
        Ending::Closed => info!("unmounted, the volume is clean"),
        Ending::Staged(bytes) => info!(
            "unmounted, the volume is clean, with {} staged in the region",
            format_size(*bytes)
        ),
        Ending::Damaged(why) => error!("unmounted, the volume is closed, but {why}"),
        Ending::ShutDown => {}
        Ending::Left(why) => error!("unmounted, but the volume is not closed: {why}"),
    }
}

fn way_out(fs: &Fs) -> String {
    let volume = quayfs_shown::argument(fs.volume_path());
    match fs.e.watch().found() {
        1.. => format!("`quayfs fsck --repair {volume}` before it is mounted again"),
        0 => "remove the cause and mount again, which recovers the volume".into(),
    }
}

fn waiting(fs: &Fs) -> String {
    match fs.e.staged.len() as u64 {
        0 if fs.e.behind.has_failed() => {
            "of what was written last not all is on the data device".into()
        }
        0 => "all data is on the data device".into(),
        n => format!(
            "{} ({}) still in the pmem region, not on the data device",
            count(n, "block"),
            format_size(n * BLOCK as u64)
        ),
    }
}

fn loss(fs: &Fs) -> &'static str {
    let journal = &fs.e.journal;
    let committed = journal.commit_ts() >= journal.last_seq();
    match (fs.e.durability, fs.e.options.data) {
        _ if fs.e.device.missing() > 0 => "what lay behind the end of the data device is lost",
        _ if fs.e.watch().found() > 0 => "what is damaged is lost, unless a repair finds it",
        (Durability::Commit, _) if !committed => "what was done after the last commit is lost",
        (_, DataMode::Writeback) => "what was written and not synced may be lost",
        _ => "nothing is lost",
    }
}
