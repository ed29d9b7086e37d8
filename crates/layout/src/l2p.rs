//! On-media format: l2p.
