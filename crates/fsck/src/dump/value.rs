//! What a dump is made of: as JSON, but that names keep their order.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Names and values, in the order in which they are told.
pub(super) type Fields = Vec<(&'static str, Shown)>;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// There is none.
    Null,
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// Several of a kind.
    List(Vec<Shown>),
    /// What has names.
    Fields(Fields),
}

impl Shown {
    /// Whether it is made of others.
    pub(super) fn has_parts(&self) -> bool {
        matches!(self, Self::List(_) | Self::Fields(_))
    }

    /// What it has names for.
    pub(super) fn fields(&self) -> Option<&Fields> {
        match self {
            Self::Fields(fields) => Some(fields),
            _ => None,
        }
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_none(),
            Self::Flag(b) => to.serialize_bool(*b),
            Self::Number(n) => to.serialize_u64(*n),
            Self::Text(text) => to.serialize_str(text),
            Self::List(all) => to.collect_seq(all),
            Self::Fields(fields) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl FromIterator<Shown> for Shown {
    fn from_iter<I: IntoIterator<Item = Shown>>(all: I) -> Self {
        Self::List(all.into_iter().collect())
    }
}

impl<T: Into<Shown>> From<Option<T>> for Shown {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Shown>> From<Vec<T>> for Shown {
    fn from(all: Vec<T>) -> Self {
        all.into_iter().map(Into::into).collect()
    }
}

impl From<bool> for Shown {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

impl From<String> for Shown {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Shown {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<Cow<'_, str>> for Shown {
    fn from(value: Cow<'_, str>) -> Self {
        Self::Text(value.into_owned())
    }
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Shown {
            fn from(value: $kind) -> Self {
                Self::Number(value as u64)
            }
        })*
    };
}
numbers!(u8, u16, u32, u64, usize);
