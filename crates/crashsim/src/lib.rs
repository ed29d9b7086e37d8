//! Crashes on purpose: what a program may find on its media after one, for every moment of a run.
//!
//! A [`Recorder`] hands out a region of persistent memory and a data device, and records everything
//! that is done to either, in one order, with the places in the source. A [`Trace`] of that goes
//! through the run again and makes the [`CrashImage`]s that the persistence model of `quayfs-pmem`
//! allows after each step. A test restarts from each image ([`CrashImage::restart`],
//! [`CrashImage::region`], [`CrashImage::device`]) and checks what it finds against what had been
//! acknowledged by then ([`Recorder::mark`], [`CrashImage::acked`]).
//!
//! ```
//! use quayfs_crashsim::{Budget, Recorder};
//! use quayfs_pmem::Backend;
//!
//! let recorder = Recorder::new(4096, 1, Backend::Dax);
//! let region = recorder.region();
//! region.write(64, b"payload");
//! region.flush(64, 7);
//! region.fence(); // without this line the assertion below fails
//! region.store_u64(0, 1);
//! region.persist(0, 8).unwrap();
//! recorder.mark(1);
//!
//! for image in recorder.trace().explore(&Budget::default()) {
//!     let region = image.region();
//!     let valid = region.load_u64(0) == 1;
//!     assert!(!valid || region.read_vec(64, 7) == b"payload", "{image}");
//!     assert!(valid || image.acked().is_empty(), "{image}");
//! }
//! ```
//!
//! # What is simulated
//!
//! On memory ([`Backend::Dax`](quayfs_pmem::Backend), `Volatile`) each 64-byte line holds what is
//! settled, a prefix of the ordinary stores in flight, cut at the [`atoms`](quayfs_pmem::atoms), and
//! any of the atoms of non-temporal stores in flight. Lines are independent. Behind a
//! death ([`Recorder::revive`]) flushes cover what was stored non-temporally before it. On `Backend::File` any of
//! the atoms since the last drain may be there, in no order. On the data device each 512-byte
//! sector holds any version since the last flush. Discarded blocks hold their old content or garbage.
//!
//! If few things are in flight all images are made, otherwise a selection ([`Budget`]). Within a
//! [`Trace::explore`] no image is made twice for the same acknowledgements.
//!
//! Bit rot is made by hand: [`CrashImage::overwrite_pmem`], [`CrashImage::overwrite_device`]; failing
//! devices by [`FaultDevice`], failing drains by [`Recorder::fail_drains`].

mod budget;
mod cursor;
mod device;
mod event;
mod fault;
mod image;
mod medium;
mod pages;
mod recorder;
mod select;
mod state;
mod trace;
mod watched;

pub use budget::Budget;
pub use device::SimDevice;
pub use event::{InFlight, Medium, Ordering, OrderingKind};
pub use fault::{Fault, FaultDevice, FaultOp, Repeat, Stall};
pub use image::CrashImage;
pub use recorder::{Died, Recorder};
pub use trace::{Explore, Images, Point, Trace};
pub use watched::Watched;
