//! What a file system should never be fed: harnesses for fuzzers.
//!
//! Each target takes any bytes and must return: no panic, no overflow, no loop without an end, no
//! memory without a bound. `fuzz/` has one program for each, for `cargo-fuzz`; the test `corpus`
//! replays, with any toolchain, the inputs that are kept in `fuzz/corpus` and `fuzz/regressions`.
//!
//! | module | hostile is |
//! |---|---|
//! | [`parsers`] | one structure of the media, chosen among those of a family |
//! | [`mount`] | a volume, valid but for some patches |
//! | [`operations`] | the caller of the operation layer |
//!
//! Checksums would keep a fuzzer out: none of its mutations survives one. So harnesses mostly make
//! them right again, as a forger of volumes would.

mod fixup;
mod forge;
pub mod input;
pub mod mount;
pub mod operations;
pub mod parsers;
pub mod script;
pub mod volumes;

/// A harness.
pub type Target = fn(&[u8]);

/// All targets by name, in the order in which `make fuzz` runs them.
pub const TARGETS: [(&str, Target); 5] = [
    ("operations", operations::operations),
    ("mount", mount::mount),
    ("headers", parsers::headers),
    ("logs", parsers::logs),
    ("objects", parsers::objects),
];

/// The targets that take an input for one of several structures.
pub const FAMILIES: [(&str, parsers::Family); 3] = [
    ("headers", parsers::HEADERS),
    ("logs", parsers::LOGS),
    ("objects", parsers::OBJECTS),
];
