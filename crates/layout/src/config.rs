//! On-media format: config.
