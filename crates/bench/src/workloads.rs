//! The workloads, one file a family.

mod direct;
mod directories;
mod durable;
mod files;
mod names;
mod readwrite;
mod sequential;

use crate::workload::Workload;

/// All of them, in the order in which they are listed.
pub fn all() -> Vec<Box<dyn Workload>> {
    let mut all = Vec::new();
    names::add(&mut all);
    files::add(&mut all);
    directories::add(&mut all);
    readwrite::add(&mut all);
    durable::add(&mut all);
    direct::add(&mut all);
    sequential::add(&mut all);
    all
}
