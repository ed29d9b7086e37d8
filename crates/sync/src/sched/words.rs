//! Atomic words: a point before each access.

use std::sync::atomic::Ordering;

use super::core::point;

macro_rules! word {
    ($name:ident, $of:ty, $($method:ident: $arg:ty),*) => {
        /// As the standard library's.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        impl $name {
            /// One with this value.
            pub const fn new(value: $of) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            /// Its value.
            pub fn load(&self, order: Ordering) -> $of {
                point();
                self.0.load(order)
            }

            /// Another value.
            pub fn store(&self, value: $of, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            /// Another value; what it was before.
            pub fn swap(&self, value: $of, order: Ordering) -> $of {
                point();
                self.0.swap(value, order)
            }

            /// Another value if it is this one.
            #[expect(clippy::missing_errors_doc, reason = "as the standard library's")]
            pub fn compare_exchange(
                &self,
                is: $of,
                new: $of,
                then: Ordering,
                otherwise: Ordering,
            ) -> Result<$of, $of> {
                point();
                self.0.compare_exchange(is, new, then, otherwise)
            }

            /// [`Self::compare_exchange`]; never fails without a reason, though it might.
            #[expect(clippy::missing_errors_doc, reason = "as the standard library's")]
            pub fn compare_exchange_weak(
                &self,
                is: $of,
                new: $of,
                then: Ordering,
                otherwise: Ordering,
            ) -> Result<$of, $of> {
                self.compare_exchange(is, new, then, otherwise)
            }

            /// What `f` makes of its value, unless that is nothing.
            #[expect(clippy::missing_errors_doc, reason = "as the standard library's")]
            pub fn fetch_update(
                &self,
                then: Ordering,
                otherwise: Ordering,
                f: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                point();
                self.0.fetch_update(then, otherwise, f)
            }

            $(
                /// What it was before.
                pub fn $method(&self, value: $arg, order: Ordering) -> $of {
                    point();
                    self.0.$method(value, order)
                }
            )*
        }
    };
}

word!(AtomicBool, bool, fetch_or: bool, fetch_and: bool);
word!(AtomicU32, u32, fetch_add: u32, fetch_sub: u32, fetch_or: u32, fetch_and: u32);
word!(
    AtomicU64, u64,
    fetch_add: u64, fetch_sub: u64, fetch_or: u64, fetch_and: u64, fetch_max: u64, fetch_min: u64
);
word!(AtomicI64, i64, fetch_add: i64, fetch_sub: i64);
word!(AtomicUsize, usize, fetch_add: usize, fetch_sub: usize);
