//! On-media format: record.
