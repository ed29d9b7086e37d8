//! On-media format: dirent.
