//! What a place in the source is called: by its function, which stays when lines move.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use quayfs_crashsim::{Ordering, OrderingKind};

/// Where the sources are.
const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A place that flushes, fences or drains, in the order of the sources. A function may have several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    file: String,
    line: u32,
    kind: OrderingKind,
    function: String,
}

impl Place {
    /// Where it is: a function can have several. Lines move with the code, so no page has them.
    pub fn at(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// The place of one ordering.
    ///
    /// # Panics
    /// If the sources are not where this was built.
    pub fn of(ordering: Ordering) -> Self {
        let file = ordering.site.file();
        let file = file.find("crates/").map_or(file, |at| &file[at..]);
        let line = ordering.site.line();
        let text = source(file);
        let function = function(&text, line);
        let function = function.unwrap_or_else(|| panic!("{file}: line {line} is in no function"));
        Self {
            file: file.into(),
            line,
            kind: ordering.kind,
            function: function.into(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.file, self.function)
    }
}

/// A source file, read once.
fn source(file: &str) -> Arc<str> {
    static READ: Mutex<Option<HashMap<String, Arc<str>>>> = Mutex::new(None);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let read = read.get_or_insert_default();
    let text = read.entry(file.into()).or_insert_with(|| {
        let path = Path::new(TOP).join(file);
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .into()
    });
    Arc::clone(text)
}

/// The function that a line is in, by the indentation that rustfmt gives it.
fn function(text: &str, line: u32) -> Option<&str> {
    let indentation = |l: &str| l.len() - l.trim_start().len();
    let above: Vec<&str> = text.lines().take(line as usize).collect();
    let mut around = indentation(above.last()?) + 1;
    let lines = above.into_iter().rev().filter(|l| !l.trim().is_empty());
    for l in lines {
        if indentation(l) < around {
            // The end of a list of parameters: what it belongs to is as deep.
            around = indentation(l) + usize::from(l.trim_start().starts_with(')'));
            if let Some(name) = declared(l) {
                return Some(name);
            }
        }
    }
    None
}

/// The name of the function that a line begins to declare.
fn declared(line: &str) -> Option<&str> {
    let (before, rest) = line.trim_start().split_once("fn ")?;
    let words = ["pub", "const", "async", "unsafe", "extern"];
    let is_word = |w: &str| w.starts_with("pub(") || words.contains(&w) || w.ends_with(')');
    let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    before
        .split_whitespace()
        .all(is_word)
        .then(|| &rest[..name])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
impl A {
    /// Not an fn at all.
    pub(super) fn one(&self) {
        fn inner() {
            0
        }

        let each = |x| {
            drain(x)
        };
    }
}

pub const fn two<T>(
    a: T,
) -> T {
    match a {
        _ => flush(a),
    }
}
";

    #[test]
    fn a_line_is_in_the_function_around_it() {
        let of = |what: &str| {
            let at = TEXT.lines().position(|l| l.contains(what)).unwrap();
            function(TEXT, at as u32 + 1)
        };
        assert_eq!(of("            0"), Some("inner"));
        assert_eq!(of("drain"), Some("one"));
        assert_eq!(of("flush"), Some("two"));
        assert_eq!(of("pub const fn"), Some("two"));
        assert_eq!(of("impl A"), None);
    }
}
