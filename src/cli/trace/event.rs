//! A request, and how it is printed.

use super::names::By;
use serde_json::{Value, json};
use std::time::{Duration, UNIX_EPOCH};

use crate::cli::top::time;

/// A request that was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it was begun, in microseconds since 1970.
    pub time: u64,
    pub took: Duration,
    pub op: String,
    /// The task that asked; 0 if that cannot be seen from where the mount was made, or the kernel itself.
    pub task: u32,
    pub ino: u64,
    /// The inode that the answer names, or 0.
    pub child: u64,
    pub offset: Option<u64>,
    pub length: Option<u64>,
    /// A negative errno, or how many bytes.
    pub result: i64,
    pub name: Option<String>,
    /// Not all of the name is there.
    pub is_cut: bool,
}

impl Event {
    /// As the daemon says it.
    pub fn of(list: &Value) -> Option<Self> {
        let number = |at: usize| list[at].as_u64();
        Some(Self {
            time: number(0)?,
            took: Duration::from_nanos(number(1)?),
            op: list[2].as_str()?.into(),
            task: u32::try_from(number(3)?).ok()?,
            ino: number(4)?,
            child: number(5)?,
            offset: number(6),
            length: number(7),
            result: list[8].as_i64()?,
            name: list[9].as_str().map(str::to_string),
            is_cut: list[10].as_bool().unwrap_or_default(),
        })
    }

    fn errno(&self) -> Option<i32> {
        let errno = i32::try_from(self.result.unsigned_abs()).ok()?;
        (self.result < 0).then_some(errno)
    }

    fn date(&self) -> String {
        let then = UNIX_EPOCH + Duration::from_micros(self.time);
        humantime::format_rfc3339_micros(then).to_string()
    }

    /// A line for people.
    pub fn text(&self, path: Option<&str>, by: &By) -> String {
        let date = self.date();
        let clock = date.split(['T', 'Z']).nth(1).unwrap_or_default();
        let result = match self.errno() {
            Some(errno) => {
                let text = std::io::Error::from_raw_os_error(errno).to_string();
                let text = text.split(" (os error").next().unwrap_or_default();
                format!("{} ({errno})", text.to_lowercase())
            }
            None => self.result.to_string(),
        };
        let mut line = format!(
            "{clock} {:>7} {:<15} {:>8} {:<11} {} inode {}",
            by.pid.unwrap_or(self.task),
            quayfs_shown::text(by.name.as_deref().unwrap_or("-")),
            time(self.took),
            self.op,
            path.map_or("-".into(), quayfs_shown::text),
            self.ino,
        );
        match (self.offset, self.length) {
            (Some(offset), Some(length)) => line += &format!(" {offset}+{length}"),
            (Some(offset), None) => line += &format!(" {offset}"),
            _ => {}
        }
        format!("{line} = {result}")
    }

    /// The same for programs.
    pub fn json(&self, path: Option<&str>, by: &By) -> Value {
        json!({
            "time": self.date(),
            "op": self.op,
            "pid": by.pid,
            "task": self.task,
            "process": by.name,
            "inode": self.ino,
            "path": path,
            "name": self.name,
            "offset": self.offset,
            "length": self.length,
            "bytes": self.errno().is_none().then_some(self.result),
            "errno": self.errno(),
            "latency_us": self.took.as_nanos() as f64 / 1e3,
        })
    }
}
