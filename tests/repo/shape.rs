//! How long files and functions of the product may be: a file 500 lines, a function 100, and one of more than 70 is
//! listed here with the reason why it is better in one piece. An inline module of tests does not count as lines of its
//! file.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

const FILE_MAX: usize = 500;
const FUNCTION_MAX: usize = 100;
/// What a function may have without a reason.
const SCREEN: usize = 70;

/// Crates that are for tests and measurements only.
const NOT_PRODUCT: [&str; 5] = ["bench", "crashsim", "hostile", "model", "oracle"];

/// Functions of more than a screen, and why.
const WHOLE: &[(&str, &str, &str)] = &[
    (
        "crates/fsck/src/tests/random.rs",
        "apply",
        "an arm for each operation, of a few lines",
    ),
    (
        "crates/server/src/service.rs",
        "carry_out",
        "an arm for each request, of a line",
    ),
];

#[test]
fn files_and_functions_are_short() {
    let files = sources();
    assert!(files.len() > 200, "only {} files", files.len());
    let long: Vec<Long> = files.iter().flat_map(|file| long_parts(file)).collect();
    let mut wrong: Vec<String> = long
        .iter()
        .filter(|long| !long.is_whole())
        .map(|long| format!("{long}: split it, or say here why not"))
        .collect();
    for &(path, name, _) in WHOLE {
        if !long.iter().any(|l| l.is(path, Some(name)) && l.is_whole()) {
            wrong.push(format!("{path}: {name} needs no reason: take it off WHOLE"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that is too long, or a function that has more than a screen.
struct Long {
    path: String,
    function: Option<String>,
    lines: usize,
}

impl Long {
    fn is(&self, path: &str, function: Option<&str>) -> bool {
        self.path == path && self.function.as_deref() == function
    }

    fn is_whole(&self) -> bool {
        let listed = |(path, name, _): &(&str, &str, &str)| self.is(path, Some(name));
        self.lines <= FUNCTION_MAX && WHOLE.iter().any(listed)
    }
}

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(name) => write!(f, "{}: {name} has {} lines", self.path, self.lines),
            None => write!(f, "{} has {} lines", self.path, self.lines),
        }
    }
}

fn long_parts(file: &Path) -> Vec<Long> {
    let path = file.strip_prefix(root()).unwrap().display().to_string();
    let code = code_of(&fs::read_to_string(file).unwrap());
    let long = |function, lines| Long {
        path: path.clone(),
        function,
        lines,
    };
    let mut all = Vec::new();
    let lines = lines_without_tests(&code);
    if lines > FILE_MAX {
        all.push(long(None, lines));
    }
    for (name, lines) in functions(&code).filter(|(_, lines)| *lines > SCREEN) {
        all.push(long(Some(name), lines));
    }
    all
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All source files of the product, those with tests among them.
fn sources() -> Vec<PathBuf> {
    let is_product = |krate: &PathBuf| {
        let name = krate.file_name().unwrap();
        NOT_PRODUCT.iter().all(|other| name != *other)
    };
    let mut folders = entries(&root().join("crates"));
    folders.retain(is_product);
    folders.iter_mut().for_each(|krate| krate.push("src"));
    folders.push(root().join("src"));
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|ext| ext == "rs") {
                files.push(entry);
            }
        }
    }
    files
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The text with spaces in the place of comments and of what stands in quotes, so that braces are those of the code.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        match no_code(rest, word) {
            0 => {
                code.push(first);
                rest = &rest[first.len_utf8()..];
            }
            len => {
                let blank = |c| if c == '\n' { '\n' } else { ' ' };
                code.extend(rest[..len].chars().map(blank));
                rest = &rest[len..];
            }
        }
    }
    code
}

/// Bytes of the comment, string or character that a text begins with. `word`: the text goes on with a word.
fn no_code(text: &str, word: bool) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if let Some(after) = text.strip_prefix('"') {
        return 1 + quoted(after, '"');
    }
    let raw = text.strip_prefix('b').unwrap_or(text);
    if let Some(raw) = raw.strip_prefix('r').filter(|_| !word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", &raw[..hashes]);
            let start = text.len() - raw.len() + hashes + 1;
            return start + text[start..].find(&end).unwrap() + end.len();
        }
    }
    // Neither a lifetime nor a label.
    match text.strip_prefix('\'') {
        Some(after) if after.starts_with('\\') => 1 + quoted(after, '\''),
        Some(after) => {
            let c = after.chars().next().map_or(0, char::len_utf8);
            if after[c..].starts_with('\'') {
                c + 2
            } else {
                0
            }
        }
        None => 0,
    }
}

/// Bytes up to the end of what is quoted, with the quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return at + 1;
        }
        if c == '\\' {
            chars.next();
        }
    }
    text.len()
}

/// Bytes of a comment, which may have others in it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += rest.chars().next().map_or(0, char::len_utf8);
        }
        if depth == 0 || at == text.len() {
            return at;
        }
    }
}

/// The first block behind a place: from its opening brace to the other one, or `None` if a semicolon comes first.
fn block(code: &str, from: usize) -> Option<Range<usize>> {
    let (mut round, mut start, mut depth) = (0, None, 0);
    for (at, c) in code[from..].char_indices().map(|(i, c)| (from + i, c)) {
        match (c, start) {
            ('(' | '[', None) => round += 1,
            (')' | ']', None) => round -= 1,
            (';', None) if round == 0 => return None,
            ('{', None) if round == 0 => (start, depth) = (Some(at), 1),
            ('{', Some(_)) => depth += 1,
            ('}', Some(start)) => {
                depth -= 1;
                if depth == 0 {
                    return Some(start..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The functions that have a body, and their lines from the one with the name to the last brace.
fn functions(code: &str) -> impl Iterator<Item = (String, usize)> {
    code.match_indices("fn ").filter_map(|(at, _)| {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
        let name: String = code[at + 3..].chars().take_while(is_name).collect();
        let body = block(code, at).filter(|_| !name.is_empty())?;
        Some((name, code[at..body.end].lines().count()))
    })
}

/// Lines of a file but for those of its inline tests.
fn lines_without_tests(code: &str) -> usize {
    let tests = code.match_indices("\nmod tests {").find_map(|(at, _)| {
        let is_for_tests = code[..at].lines().last()?.starts_with("#[cfg(");
        block(code, at).filter(|_| is_for_tests)
    });
    code.lines().count() - tests.map_or(0, |tests| code[tests].lines().count())
}

#[test]
fn braces_in_comments_and_quotes_are_no_braces() {
    let text = r##"
fn outer<'a>(x: [u8; 2]) -> &'a str {
    // }
    let _ = ("}\"}", '}', '\'', r#"}"}"#, b"}", b'}'); /* } /* } */ } */
    fn inner() {
    }
    "é"
}
trait T { fn none(&self); }
#[cfg(test)]
mod tests {
    fn t() {}
}
"##;
    let code = code_of(text);
    assert_eq!(code.lines().count(), text.lines().count());
    let found: Vec<_> = functions(&code).collect();
    let expected = [("outer", 7), ("inner", 2), ("t", 1)];
    assert_eq!(found, expected.map(|(name, lines)| (name.into(), lines)));
    assert_eq!(lines_without_tests(&code), text.lines().count() - 3);
}
