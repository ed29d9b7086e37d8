//! `quayfs_hostile::parsers::journal::record` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::journal::record(data));
