//! On-media format: item.
