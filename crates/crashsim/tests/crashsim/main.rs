//! The crash simulator: what it records, the images that it makes, and what it finds out.

mod forgotten;
mod legal;
mod programs;
mod recorder;
