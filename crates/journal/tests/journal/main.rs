//! The journal on simulated media: crashes, damage, threads, random lives.

mod basic;
mod common;
mod crash;
mod crash_threads;
mod damage;
mod model;
mod proposals;
mod queue;
mod stress;
