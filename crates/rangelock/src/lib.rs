//! rangelock
