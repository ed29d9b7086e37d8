//! Names and messages as they are shown to people: in one line, without anything that a terminal obeys.
//!
//! Names of files, paths and labels are chosen by others, and any byte but `/` and zero may be in them. Shown as
//! they are, a newline begins what looks like another message, and an escape sequence moves the cursor, colours,
//! or renames the window. What is for programs (`--json`) is not changed.

pub mod command;
pub mod progress;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bytes as text: control characters become `\n`, `\t`, `\x1b` and the like, bytes that are no UTF-8 `\xff`.
/// What has been through this is left as it is by doing it again.
pub fn bytes(raw: &[u8]) -> String {
    let mut out = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push(&mut out, c));
        for byte in chunk.invalid() {
            // A `String` takes everything.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// As [`bytes`], of a text.
pub fn text(raw: &str) -> String {
    bytes(raw.as_bytes())
}

/// How many of something: `1 block`, `3 blocks`, `2 entries`. `one` is the word for one of them.
pub fn count(n: impl Into<u64>, one: &str) -> String {
    match (n.into(), one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (n, Some(stem)) => format!("{n} {stem}ies"),
        (n, None) => format!("{n} {one}s"),
    }
}

/// As [`bytes`], of a path.
pub fn path(raw: &Path) -> String {
    bytes(raw.as_os_str().as_bytes())
}

/// As [`path`], as an argument of a command that is to be typed: quoted if a shell would read it otherwise, and
/// with its directory in front if the command would take it for an option.
pub fn argument(raw: &Path) -> String {
    let mut shown = path(raw);
    if shown.starts_with('-') {
        shown.insert_str(0, "./");
    }
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match !shown.is_empty() && shown.chars().all(is_plain) {
        true => shown,
        false => format!("'{}'", shown.replace('\'', r"'\''")),
    }
}

fn push(out: &mut String, c: char) {
    let done = match c {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        c if c.is_ascii_control() => write!(out, "\\x{:02x}", c as u32),
        c if c.is_control() || turns(c) => write!(out, "\\u{{{:x}}}", c as u32),
        c => return out.push(c),
    };
    let _ = done;
}

/// Whether a character ends a line, or turns the direction of those that follow, without being a control character.
fn turns(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What is the same of lines that differ in numbers only: each number is an N.
pub fn without_numbers(line: &str) -> String {
    let mut words = String::with_capacity(line.len());
    for c in line.chars() {
        match c.is_ascii_digit() {
            false => words.push(c),
            true if words.ends_with('N') => {}
            true => words.push('N'),
        }
    }
    words
}

/// Lines, of which those that may be summed up (`true`) and differ in numbers only are there `each` times at most; at the end it
/// says how many more there are.
pub fn summed_up(lines: impl Iterator<Item = (String, bool)>, each: usize) -> Vec<String> {
    let (mut out, mut order) = (Vec::new(), Vec::new());
    let mut kinds: HashMap<String, usize> = HashMap::new();
    for (line, may) in lines {
        if !may {
            out.push(line);
            continue;
        }
        let kind = without_numbers(&line);
        let n = kinds.entry(kind.clone()).or_default();
        *n += 1;
        match *n {
            n if n <= each => out.push(line),
            n if n == each + 1 => order.push(kind),
            _ => {}
        }
    }
    for kind in order {
        let more = kinds[&kind] - each;
        out.push(format!("{kind}: {more} more of these"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_obeys_is_spelt_out() {
        for (raw, shown) in [
            (&b"plain \\ name"[..], "plain \\ name"),
            ("größe".as_bytes(), "größe"),
            (b"a\nERROR b\r\t", "a\\nERROR b\\r\\t"),
            (b"\x1b]0;title\x07\x7f", "\\x1b]0;title\\x07\\x7f"),
            (
                "\u{9b}31m\u{202e}\u{2028}".as_bytes(),
                "\\u{9b}31m\\u{202e}\\u{2028}",
            ),
            (b"\xff\xc3", "\\xff\\xc3"),
        ] {
            assert_eq!(bytes(raw), shown);
        }
        assert_eq!(path(Path::new("/v\n")), "/v\\n");
    }

    #[test]
    fn lines_that_differ_in_numbers_are_summed_up() {
        let damaged = |n: usize| (format!("no file: block {n} is damaged"), true);
        let lines = (8..8704).map(damaged).chain([("/a".into(), false)]);
        let shown = summed_up(lines.chain([("/a".into(), false)]), 2);
        let want = [
            "no file: block 8 is damaged",
            "no file: block 9 is damaged",
            "/a",
            "/a",
            "no file: block N is damaged: 8694 more of these",
        ];
        assert_eq!(shown, want);
    }

    #[test]
    fn an_argument_is_what_a_shell_reads_as_one_word() {
        for (raw, typed) in [
            ("/srv/größe-1.img", "/srv/größe-1.img"),
            ("sp ace", "'sp ace'"),
            ("a\nreboot", "'a\\nreboot'"),
            ("-w", "./-w"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(argument(Path::new(raw)), typed);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_left_to_obey(raw in prop::collection::vec(any::<u8>(), 0..60)) {
            let shown = bytes(&raw);
            prop_assert!(!shown.chars().any(|c| c.is_control() || turns(c)));
            prop_assert_eq!(text(&shown), shown);
        }
    }
}
