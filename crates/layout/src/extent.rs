//! On-media format: extent.
