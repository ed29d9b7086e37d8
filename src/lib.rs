//! QuayFS: a FUSE file system for a little persistent memory in front of a large SSD.
//!
//! The modules in the order in which data passes them: the edge takes a request from the kernel,
//! the operation layer turns it into a transaction, the transaction becomes one record, digest
//! turns records into home pages, rounds move staged blocks to the data device, and recovery
//! brings all of it back. `ARCHITECTURE.md` tells the whole story.

pub mod cli;
pub mod edge;
pub mod mount;
