//! Each workload does what it says: the system calls that it counts, the files that it leaves. No
//! test looks at a time.

mod calls;
mod support;
