//! On-media format: slot.
