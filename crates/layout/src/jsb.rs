//! On-media format: jsb.
