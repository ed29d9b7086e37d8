//! `quayfs_hostile::parsers::objects` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::objects(data));
