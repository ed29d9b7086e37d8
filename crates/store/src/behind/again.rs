//! What a dead daemon had on its way to the data device.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_layout::BLOCK;
use quayfs_restart::Postings;

use super::{Bytes, Posting};

/// Writes it again, before anything reads these blocks, and returns how many requests it was. Whether or not there is a
/// record of it, no other content of these blocks is newer: what the device had was retired before anything that waits for it
/// went on. Nothing of it is durable before a flush, which has to come before anything else is. `first`: where the blocks
/// of files begin. May be interrupted and called again.
///
/// # Errors
/// What is left makes no sense; those of the device, and of the system.
pub fn write_again(
    shared: &Arc<Postings>,
    device: &dyn BlockDevice,
    first: u64,
) -> io::Result<usize> {
    let left = shared.left_over()?;
    if left.is_empty() {
        return Ok(0);
    }
    let mut postings = Vec::with_capacity(left.len());
    for (runs, bytes) in left {
        let bytes = Bytes::Shared(bytes);
        postings.push(Posting { runs, bytes });
    }
    if !postings.iter().all(|p| is_sound(p, first..device.blocks())) {
        return Err(io::Error::other("it would go where no file has blocks"));
    }
    for posting in &postings {
        posting.write(device)?;
    }
    let count = postings.len();
    for posting in postings {
        if let Bytes::Shared(mut bytes) = posting.bytes {
            bytes.retire();
        }
    }
    // What the dead daemon has handed to the device may still be read from where it is.
    shared.renew()?;
    Ok(count)
}

/// Whether the bytes fill the runs, and these lie where blocks of files are.
fn is_sound(posting: &Posting, files: Range<u64>) -> bool {
    let within =
        |run: &Range<u64>| files.start <= run.start && run.start < run.end && run.end <= files.end;
    let mut blocks = 0;
    for run in &posting.runs {
        if !within(run) {
            return false;
        }
        blocks += run.end - run.start;
    }
    blocks.checked_mul(BLOCK as u64) == Some(posting.bytes.len() as u64)
}
