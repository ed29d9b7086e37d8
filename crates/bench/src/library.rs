//! A file system that is called directly instead of through the kernel.
//!
//! What a workload does goes through a [`Handle`](crate::handle::Handle), which is either a file
//! descriptor or a node of a [`Library`]. What the kernel keeps for a process (the position of an open
//! file, the flags it was opened with) is kept in the handle, so a library knows nodes only.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::path::PathBuf;

/// What a library calls a file or directory.
pub type Node = u64;

/// A file system without a kernel. Paths are relative to a directory and have no `.` or `..` in them; whether there is
/// a cache of names in front of a library is its own affair.
///
/// # Errors
/// Every method returns the errno that the system call would have.
pub trait Library: Send + Sync {
    /// Opens the root directory.
    fn root(&self) -> Result<Node, Errno>;

    /// Opens a file or directory, with the flags of `openat`; `mode` is that of a file that is made.
    fn open(&self, dir: Node, path: &CStr, flags: OFlags, mode: Mode) -> Result<Node, Errno>;

    /// Closes what was opened, once for each time it was.
    fn close(&self, node: Node);

    /// Reads into `buffer`, fewer bytes at the end of the file, and says how many.
    fn read(&self, node: Node, buffer: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes all of `data` and says how much that was. `flags`: those of the open file.
    fn write(&self, node: Node, data: &[u8], offset: u64, flags: OFlags) -> Result<usize, Errno>;

    /// The size of an open file in bytes.
    fn size(&self, node: Node) -> Result<u64, Errno>;

    /// Makes a file or directory durable.
    fn fsync(&self, node: Node) -> Result<(), Errno>;

    /// Makes everything durable.
    fn syncfs(&self) -> Result<(), Errno>;

    /// Looks up a path and its attributes.
    fn stat(&self, dir: Node, path: &CStr) -> Result<(), Errno>;

    /// Removes a file.
    fn unlink(&self, dir: Node, path: &CStr) -> Result<(), Errno>;

    /// Renames; what has the new name goes.
    fn rename(&self, dir: Node, from: &CStr, to: &CStr) -> Result<(), Errno>;

    /// Makes a directory.
    fn mkdir(&self, dir: Node, path: &CStr, mode: Mode) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: Node, path: &CStr) -> Result<(), Errno>;

    /// Appends the names behind `cookie` (0: from the first on) to `room`, each with a NUL behind it, as
    /// many as fit into its capacity, and moves the cookie behind the last. `.` and `..` are left out.
    fn list(&self, node: Node, cookie: &mut u64, room: &mut Vec<u8>) -> Result<(), Errno>;

    /// Sets the mode of an open file.
    fn chmod(&self, node: Node, mode: Mode) -> Result<(), Errno>;

    /// Sets the time of the last modification, in seconds.
    fn set_mtime(&self, node: Node, seconds: i64) -> Result<(), Errno>;

    /// What messages call a node.
    fn describe(&self, node: Node) -> PathBuf;
}
