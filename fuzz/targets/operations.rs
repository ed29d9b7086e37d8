//! `quayfs_hostile::operations::operations` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::operations::operations(data));
