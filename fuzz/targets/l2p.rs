//! `quayfs_hostile::parsers::nodes::l2p` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::parsers::nodes::l2p(data));
