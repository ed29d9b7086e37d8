//! Each workload does what it says: the system calls that it counts, the files that it leaves. No
//! test looks at a time.

mod archive;
mod calls;
mod filebench;
mod fxmark;
mod pool;
mod registry;
mod sqlite;
mod support;
mod trees;
