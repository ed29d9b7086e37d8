//! What a command says to people, and how it fails: with an exit code and one line.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

/// Why a command failed: what it exits with, and the one line that it says.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What went wrong and what to do next.
    pub line: String,
}

impl Failure {
    /// A failure with this exit code; line ends in the message become semicolons.
    pub fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            line: one_line(&message.to_string()),
        }
    }

    /// Adapter for `map_err`.
    pub fn with<E: Display>(code: u8) -> impl FnOnce(E) -> Self {
        move |e| Self::new(code, e)
    }

    /// Writes the line to the standard error, behind the name of the program.
    pub fn report(&self, program: &str) {
        // If that fails, there is no one left to tell.
        let _ = writeln!(std::io::stderr(), "{program}: {}", self.line);
    }
}

/// Prints lines for people on the standard output, without anything that a terminal obeys.
pub fn say(lines: impl Display) {
    for line in lines.to_string().split('\n') {
        put(crate::text(&worded(line)));
    }
}

/// Prints a line for programs on the standard output, as it is.
pub fn say_json(line: impl Display) {
    put(line);
}

/// Why something that was to be printed is not: the first failure.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// A reader that has gone away has seen enough, so that is no error (`println!` would panic).
fn put(line: impl Display) {
    if let Err(e) = writeln!(std::io::stdout(), "{line}")
        && e.kind() != ErrorKind::BrokenPipe
    {
        let _ = UNPRINTED.set(e.to_string());
    }
}

/// Why not all that was said has been printed, if that is so: what reads it has only a part.
pub fn unprinted() -> Option<&'static str> {
    UNPRINTED.get().map(String::as_str)
}

/// Prints a warning of one line on the standard error, behind the name of the program.
pub fn warn(program: &str, message: impl Display) {
    let line = one_line(&message.to_string());
    let _ = writeln!(std::io::stderr(), "{program}: warning: {line}");
}

/// Joins lines: what a message gains by structure a script loses by parsing. Nothing is left in it that a terminal
/// obeys.
pub fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    crate::text(&worded(&lines.join("; ")))
}

/// A text without the number of an error of the system behind its words.
fn worded(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if !part.starts_with(')') => out.push_str(rest),
            _ => out.extend([" (os error ", part]),
        }
    }
    out
}

/// What `clap` has to say of a wrong command line, in one line that names the command whose help to read.
pub fn usage_line(text: &str, command: &str) -> String {
    let about: Vec<_> = text
        .lines()
        .take_while(|l| !l.is_empty())
        .map(|l| l.trim().trim_start_matches("error: "))
        .collect();
    let about = about.join(" ");
    format!("{about}: see `{command} --help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line() {
        assert_eq!(one_line("a\n  b\n\nc\n"), "a; b; c");
        assert_eq!(
            Failure::new(3, "x\ny"),
            Failure {
                code: 3,
                line: "x; y".into()
            }
        );
        assert_eq!(Failure::with(4)("z").code, 4);
    }

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        let error = std::io::Error::from_raw_os_error(28).to_string();
        assert!(error.ends_with("(os error 28)"), "{error}");
        let line = one_line(&format!("a: {error}: b: {error}"));
        assert_eq!(
            line,
            "a: No space left on device: b: No space left on device"
        );
        for kept in ["x (os error )", "x (os error 2", "x (os error two)"] {
            assert_eq!(one_line(kept), kept);
        }
    }

    #[test]
    fn wrong_usage_is_one_line_that_names_the_help() {
        let text = "error: the following is missing:\n  <DIR>\n\nUsage: x [DIR]\n";
        let line = "the following is missing: <DIR>: see `x run --help`";
        assert_eq!(usage_line(text, "x run"), line);
    }
}
