//! The page table on simulated media: crashes, damage, every combination at attach.

mod attach_table;
mod common;
mod crash;
mod damage;
mod model;
