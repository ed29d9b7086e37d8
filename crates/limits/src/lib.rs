//! What this process may have of the machine: all of it, or what the control groups say that it is in, of both
//! versions. Linux: `Documentation/admin-guide/cgroup-v2.rst`, `cgroup-v1/memory.rst` and `cgroup-v1/blkio-controller.rst`.
//!
//! A limit that cannot be read is taken for none: this is asked for defaults and for reports.

mod disks;
mod groups;
mod memory;

pub use disks::of_disks;
pub use groups::mount_table;
pub use memory::{of_machine, usable};
