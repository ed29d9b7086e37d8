//! On-media format: node.
