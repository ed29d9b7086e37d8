//! `quayfs_hostile::parsers::headers` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::headers(data));
