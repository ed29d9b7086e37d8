//! Exit codes, and errors of one line.

use std::fmt::Display;
use std::io::Write;

/// Success of every command.
pub const OK: u8 = 0;
/// `mkfs`, `info`, `scrub`, `bench`: failed.
pub const FAILED: u8 = 1;
/// `mkfs`, `info`, `scrub`, `bench`: wrong usage.
pub const USAGE: u8 = 2;
/// `scrub`: damage was found.
pub const SCRUB_DAMAGE: u8 = 4;
/// `mount`, `umount`: wrong usage, as of mount(8).
pub const MOUNT_USAGE: u8 = 1;
/// `mount`, `umount`: failed, as of mount(8).
pub const MOUNT_FAILED: u8 = 32;
/// `fsck --repair`: damage was found and repaired, as of fsck(8).
pub const FSCK_REPAIRED: u8 = 1;
/// `fsck`: damage was found and is still there, as of fsck(8).
pub const FSCK_DAMAGE: u8 = 4;
/// `fsck`: could not check, as of fsck(8).
pub const FSCK_FAILED: u8 = 8;
/// `fsck`: wrong usage, as of fsck(8).
pub const FSCK_USAGE: u8 = 16;

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

    /// Writes the line to the standard error.
    pub fn report(&self) {
        // If that fails, there is no one left to tell.
        let _ = writeln!(std::io::stderr(), "quayfs: {}", self.line);
    }
}

/// Prints lines for people on the standard output, without anything that a terminal obeys.
pub fn say(lines: impl Display) {
    for line in lines.to_string().split('\n') {
        put(quayfs_shown::text(line));
    }
}

/// Prints a line for programs on the standard output, as it is.
pub fn say_json(line: impl Display) {
    put(line);
}

/// A reader that has gone away has seen enough, so that is no error (`println!` would panic).
fn put(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a warning of one line on the standard error.
pub fn warn(message: impl Display) {
    let line = one_line(&message.to_string());
    let _ = writeln!(std::io::stderr(), "quayfs: warning: {line}");
}

/// Joins lines: what a message gains by structure a script loses by parsing. Nothing is left in it that a terminal
/// obeys.
pub fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    quayfs_shown::text(&lines.join("; "))
}

/// What clap has to say, in one line that names the help to read.
pub fn usage_line(error: &clap::Error, command: Option<&str>) -> String {
    let text = error.to_string();
    let about: Vec<_> = text
        .lines()
        .take_while(|l| !l.is_empty())
        .map(|l| l.trim().trim_start_matches("error: "))
        .collect();
    let about = about.join(" ");
    match command {
        Some(command) => format!("{about}: see `quayfs {command} --help`"),
        None => format!("{about}: see `quayfs --help`"),
    }
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
}
