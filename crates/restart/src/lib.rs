//! What the daemon of a mount leaves to the one that follows it, in memory that outlives both.
//!
//! When a daemon dies, the kernel keeps the requests that it had read and not answered, and sends them again to the next
//! daemon. Some of them had been carried out: a file cannot be created twice. So each request that changes something
//! notes, before the record of its operation is written, under which sequence number that will be ([`record`]), and
//! what its answer needs. The next daemon knows from the log which of these records are there, and decides before it
//! changes anything which requests have been carried out ([`Requests::judge`]). Those are answered when they come
//! again, and all others are carried out.
//!
//! What a request has brought may still be on its way to the data device when it is answered. It lies in such memory too,
//! and the next daemon writes it again ([`Postings`]).
//!
//! Which open files had something in the memory of the daemon that nothing brings back is noted as well
//! ([`Requests::note_session`]).
//!
//! A daemon can be asked for something that only the next one can do, before it goes on: to give the volume another size
//! ([`Requests::wish`]).
//!
//! While a part of the volume is copied to another place, such memory has what has been written since ([`Moves`]).
//!
//! The memory is in unnamed files that a third process holds. Nothing of it is needed after a power failure: then the
//! processes that had asked are gone as well, and what was not durable may be.

mod memory;
mod moves;
mod postings;
mod requests;
mod sessions;
mod wish;

pub use moves::{Moves, Outcome as MoveOutcome};
pub use postings::{Buffer, MOST_RUNS, Postings, ROOM};
pub use requests::{
    Connection, Ends, Outcome, Requests, UnderWay, WHOLE, come_so_far, inode, preparing, progress,
    record, without_record,
};
pub use sessions::MOST_SESSIONS;
pub use wish::{MOST_BLOCKS, Medium, Wish};
