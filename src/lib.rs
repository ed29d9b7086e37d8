//! QuayFS: a FUSE file system for an SSD, or for a little persistent memory in front of a large one.
//!
//! Here is the program: its commands, the daemon, and what brings a connection to the kernel into the tree. What is
//! below are crates, in the order in which data passes them: the server takes a request from the kernel, the operation
//! layer turns it into a transaction, the transaction becomes one record, digest turns records into home pages, rounds
//! move staged blocks to the data device, and recovery brings all of it back. `ARCHITECTURE.md` tells the whole story.

pub mod cli;
pub mod mount;
