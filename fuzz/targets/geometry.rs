//! `quayfs_hostile::parsers::volume::geometry` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::volume::geometry(data));
