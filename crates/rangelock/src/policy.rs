//! How much of the file a request really locks.

use std::ops::Range;

use crate::table::Span;

/// How much of the file a request locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The range that was asked for.
    #[default]
    Range,
    /// The whole file, whatever was asked for: the per-file reader-writer lock that range locks
    /// are measured against. Everything else is the same code.
    File,
}

impl Policy {
    /// The span that a request for `range` occupies.
    pub(crate) fn span(self, range: Range<u64>) -> Span {
        match self {
            Policy::Range => Span {
                start: range.start,
                end: range.end,
            },
            Policy::File => Span {
                start: 0,
                end: u64::MAX,
            },
        }
    }
}
