//! The layers below the program, without a kernel: operations against a model, crashes, faults, damage and its repair,
//! threads, space.
//!
//! No test here starts a program: a process that is being started has copies of all open files, and with them the locks
//! of volumes that other tests open.

mod batches;
mod crash;
mod crash_one;
mod directories;
mod fault_table;
mod faults;
mod flips;
mod fsync;
mod memory;
mod migrate;
mod model;
mod owners;
mod repair;
mod resize;
mod scrub;
mod space;
mod table;
mod tangle;
mod threads;
mod times;
