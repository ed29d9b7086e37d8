//! On-media format: inode.
