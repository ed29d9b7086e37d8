//! `quayfs_hostile::parsers::logs` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::logs(data));
