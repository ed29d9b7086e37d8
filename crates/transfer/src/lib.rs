//! Contiguous reads and writes of a file or device: each goes on until all of it is done, and several
//! are in flight at once where io_uring is to be had.
//!
//! A finished write is no more durable than one of write(2): that takes a flush which begins after it.

mod claim;
mod lock;
mod medium;
mod reservation;
mod ring;
mod sys;
mod transfer;
mod unlinked;

pub use claim::claim;
pub use lock::{LockKind, lock_within};
pub use medium::open_medium;
pub use reservation::{Reservation, is_local, lock_unless_reserved};
pub use ring::RingPool;
pub use sys::InPlace;
pub use transfer::Transfer;
pub use unlinked::{is_unlinked, known_len};

use std::io;
use std::os::fd::BorrowedFd;

/// Completes all transfers: through a ring if there are rings and more than one transfer, since a
/// single one gains nothing from that; else one after the other. Nothing is in flight on return.
///
/// # Errors
/// The first one met; then some of the transfers may not have been made.
pub fn run_all(
    rings: Option<&RingPool>,
    fd: BorrowedFd<'_>,
    transfers: &mut [Transfer<'_>],
) -> io::Result<()> {
    if let (Some(rings), true) = (rings, transfers.len() > 1)
        && let Some(result) = rings.run(fd, transfers)
    {
        return result;
    }
    transfers
        .iter_mut()
        .try_for_each(|transfer| transfer.run(fd))
}
