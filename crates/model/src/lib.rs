//! An executable model of the crash-consistency protocol of QuayFS, checked exhaustively within
//! bounds.
//!
//! The protocol is split over twelve models, each a small transition system: `volume` (slots,
//! records, digest, rounds, zeroing passes, direct data, commits, recovery, for one operation at a
//! time), `lane` (numbers, bounds, cuts), `image` (operations that share objects), `ppt` (L2P
//! transactions), `reader`, `credits`, `intent`, `batch` (commits on an ordinary disk), `redo` (the batch
//! log below them), `restart` (requests of a daemon that has died), `behind` (its large writes), and `shadow` (its stores to a
//! region on a disk). Every rule of the protocol that a model knows has a name, see [`ordering::Ordering`]; [`suite`]
//! runs every model with all rules, where no state may violate a property, and every model without one rule, where a
//! counterexample must be found or the reason why there is none is stated. `docs/internals/model.md` holds the results.
//!
//! This crate shares no code with the file system and makes no I/O. What it settles is the order
//! of stores, not their bytes.

mod batch;
mod behind;
pub mod checker;
mod credits;
mod fingerprint;
mod image;
mod intent;
mod lane;
mod medium;
pub mod ordering;
mod ppt;
mod reader;
mod redo;
mod restart;
mod shadow;
pub mod suite;
mod volume;
