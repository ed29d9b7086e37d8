//! `quayfs_hostile::mount::mount` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quayfs_hostile::mount::mount(data));
