//! What is said between a daemon and the processes that wait for its end: lines.
//!
//! A process that says nothing hears one line, how the daemon has ended. It can ask for more before that, and for
//! something to be done otherwise. A wish counts as long as the process that has it is there.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::mount::table::unescape;

/// Most of a line.
pub const LINE_MAX: usize = 4096;
/// Asks for lines about how far the daemon is with closing the volume.
pub const PROGRESS: &str = "progress";
/// Asks it to leave staged what is staged, where that is durable.
pub const NO_DRAIN: &str = "no-drain";
/// Asks which volume it is that the daemon closes.
pub const VOLUME: &str = "volume";

/// How a daemon ended, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The volume is closed: nothing is left to do.
    Closed,
    /// The same, and so many bytes are staged in the region, as a process has asked for. No process hears this that has
    /// not.
    Staged(u64),
    /// It is closed, and what it held is not whole any more: why, in one line.
    Damaged(String),
    /// The mount had been shut down on purpose: the next one recovers.
    ShutDown,
    /// The volume could not be closed: why, what that means and what to do, in one line.
    Left(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Staged(bytes) => write!(f, "staged {bytes}"),
            Self::Damaged(why) => write!(f, "damaged {why}"),
            Self::ShutDown => f.write_str("shut down"),
            Self::Left(why) => write!(f, "left {why}"),
        }
    }
}

impl Ending {
    /// The reverse of `Display`.
    fn parse(line: &str) -> Option<Self> {
        match line {
            "closed" => Some(Self::Closed),
            "shut down" => Some(Self::ShutDown),
            line => match line.split_once(' ')? {
                ("staged", bytes) => Some(Self::Staged(bytes.parse().ok()?)),
                ("damaged", why) => Some(Self::Damaged(why.into())),
                ("left", why) => Some(Self::Left(why.into())),
                _ => None,
            },
        }
    }

    /// The line that says so.
    pub(super) fn line(&self) -> String {
        let mut text = self.to_string().replace('\n', " ");
        while text.len() >= LINE_MAX {
            text.pop();
        }
        text.push('\n');
        text
    }
}

/// What a daemon still has to write to the data device before the volume is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// So many bytes.
    pub bytes: u64,
    /// What it has written in a second so far; 0 before the first.
    pub rate: u64,
}

impl Left {
    /// How long that takes at this rate.
    pub fn seconds(self) -> Option<u64> {
        match (self.bytes, self.rate) {
            (0, _) => Some(0),
            (_, 0) => None,
            (bytes, rate) => Some(bytes.div_ceil(rate)),
        }
    }

    pub(super) fn line(self) -> String {
        format!("draining {} {}\n", self.bytes, self.rate)
    }

    fn parse(line: &str) -> Option<Self> {
        let (bytes, rate) = line.strip_prefix("draining ")?.split_once(' ')?;
        Some(Self {
            bytes: bytes.parse().ok()?,
            rate: rate.parse().ok()?,
        })
    }
}

/// The line that names a volume: as in the mount table, bytes that could end it or are no text are octal digits.
pub(super) fn volume_line(volume: &Path) -> String {
    let mut line = String::from("volume ");
    for byte in volume.as_os_str().as_bytes() {
        match byte {
            b'!'..=b'~' if *byte != b'\\' => line.push(char::from(*byte)),
            _ => line.push_str(&format!("\\{byte:03o}")),
        }
    }
    line + "\n"
}

fn parse_volume(line: &str) -> Option<PathBuf> {
    let path = unescape(line.strip_prefix("volume ")?.as_bytes());
    Some(path.into())
}

/// Lines, out of the pieces that they come in.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Calls `each` for every line that a piece completes. What is too long, or no text, is none.
    pub(super) fn take(&mut self, piece: &[u8], mut each: impl FnMut(&str)) {
        for byte in piece {
            if *byte == b'\n' {
                let whole = std::mem::take(&mut self.0);
                if let (true, Ok(line)) = (whole.len() < LINE_MAX, std::str::from_utf8(&whole)) {
                    each(line);
                }
            } else if self.0.len() < LINE_MAX {
                self.0.push(*byte);
            }
        }
    }
}

/// What a daemon has said.
#[derive(Debug, Default)]
pub(super) struct Heard {
    lines: Lines,
    pub(super) left: Option<Left>,
    pub(super) volume: Option<PathBuf>,
    pub(super) ending: Option<Ending>,
}

impl Heard {
    pub(super) fn take(&mut self, piece: &[u8]) {
        let (left, ending) = (&mut self.left, &mut self.ending);
        let volume = &mut self.volume;
        self.lines.take(piece, |line| {
            if let Some(now) = Left::parse(line) {
                *left = Some(now);
            } else if let Some(path) = parse_volume(line) {
                *volume = Some(path);
            } else if let Some(end) = Ending::parse(line) {
                *ending = Some(end);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn what_is_said_arrives_in_whatever_pieces() {
        let left = Left {
            bytes: 9 << 30,
            rate: 7,
        };
        let endings = [
            Ending::Closed,
            Ending::Staged(8192),
            Ending::ShutDown,
            Ending::Left("no room: make some".into()),
        ];
        for ending in endings {
            let text = format!("draining 5 0\nwhat else\n{}{}", left.line(), ending.line());
            for size in [1, 3, text.len()] {
                let mut heard = Heard::default();
                text.as_bytes().chunks(size).for_each(|c| heard.take(c));
                assert_eq!(
                    (heard.left, heard.ending),
                    (Some(left), Some(ending.clone()))
                );
            }
        }
    }

    #[test]
    fn half_a_line_is_none() {
        for cut in ["", "closed", "left", "left \n no", "open\n", "staged x\n"] {
            let mut heard = Heard::default();
            heard.take(cut.as_bytes());
            let was_left = cut.starts_with("left \n");
            assert_eq!(
                heard.ending,
                was_left.then(|| Ending::Left(String::new())),
                "{cut}"
            );
        }
        let mut heard = Heard::default();
        heard.take(&vec![b'x'; 3 * LINE_MAX]);
        heard.take(b"\nclosed\n");
        assert_eq!(heard.ending, Some(Ending::Closed));
    }

    #[test]
    fn volumes_of_any_name_are_told() {
        let odd: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
        for name in [b"/srv/vol".as_slice(), &odd] {
            let path = Path::new(OsStr::from_bytes(name));
            let line = volume_line(path);
            assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
            let mut heard = Heard::default();
            heard.take(line.as_bytes());
            assert_eq!(heard.volume.as_deref(), Some(path));
            assert_eq!((heard.left, heard.ending), (None, None));
        }
    }

    #[test]
    fn the_time_left_is_as_the_rate_was() {
        for (bytes, rate, seconds) in [(0, 0, Some(0)), (10, 0, None), (11, 5, Some(3))] {
            assert_eq!(Left { bytes, rate }.seconds(), seconds);
        }
    }
}
