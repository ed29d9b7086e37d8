//! The workloads, one file a family.

mod archive;
mod direct;
mod directories;
mod durable;
mod filebench;
mod files;
mod fxmark;
mod names;
mod pool;
mod readwrite;
mod sequential;
mod sqlite;
mod trees;

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
    fxmark::add(&mut all);
    filebench::add(&mut all);
    pool::add(&mut all);
    trees::add(&mut all);
    archive::add(&mut all);
    sqlite::add(&mut all);
    all
}
