//! What a holder holds.

use std::fmt;
use std::ops::Range;

use crate::RangeLock;
use crate::table::{Id, Span};

/// One entry of a lock's table, removed on drop.
pub(crate) struct Hold<L: AsRef<RangeLock>> {
    lock: L,
    id: Id,
    span: Span,
    waited: bool,
}

impl<L: AsRef<RangeLock>> Hold<L> {
    pub(crate) fn new(lock: L, id: Id, span: Span, waited: bool) -> Self {
        Self {
            lock,
            id,
            span,
            waited,
        }
    }
}

impl<L: AsRef<RangeLock>> Drop for Hold<L> {
    fn drop(&mut self) {
        self.lock.as_ref().release(self.id);
    }
}

macro_rules! guard {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Dropping it, on any thread, releases the range and lets others go on.
        #[must_use = "the range is unlocked again as soon as the guard is dropped"]
        pub struct $name<L: AsRef<RangeLock>>(Hold<L>);

        impl<L: AsRef<RangeLock>> $name<L> {
            pub(crate) fn new(hold: Hold<L>) -> Self {
                Self(hold)
            }

            /// The range that is locked.
            pub fn range(&self) -> Range<u64> {
                self.0.span.start..self.0.span.end
            }

            /// Whether the request had to wait for others.
            pub fn waited(&self) -> bool {
                self.0.waited
            }
        }

        impl<L: AsRef<RangeLock>> fmt::Debug for $name<L> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name))
                    .field(&self.range())
                    .finish()
            }
        }
    };
}

guard!(
    ReadGuard,
    "A range locked shared: nobody else writes in it."
);
guard!(
    WriteGuard,
    "A range locked exclusively: nobody else reads or writes in it."
);
