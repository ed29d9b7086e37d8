//! What the daemon tells the process that started it.

use std::time::Duration;

use quayfs_fs::Fs;
use quayfs_layout::inode::ROOT;
use quayfs_options::DataMode;
use tracing::{info, warn};

use super::Job;
use crate::cli::VOLATILE_WARNING;
use crate::cli::exit::{Failure, one_line};

/// What to tell the user about a mount that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is mounted where, and when it is durable.
    pub text: String,
    /// What must not be overlooked.
    pub warnings: Vec<String>,
}

impl Report {
    /// Of a mount that was ready after so long.
    pub(super) fn of(job: &Job, fs: &Fs, took: Duration, mut warnings: Vec<String>) -> Self {
        let (volume, target) = (
            quayfs_shown::path(&job.volume),
            quayfs_shown::path(&job.target),
        );
        let status = serde_json::to_value(fs.status()).unwrap_or_default();
        let fact = |name: &str| status[name].as_str().unwrap_or("?").to_string();
        let (backend, durability) = (fact("backend"), fact("durability"));
        let durable = match durability.as_str() {
            "op" => "when an operation returns".to_string(),
            _ => format!("at fsync and every {} s", job.options.commit_seconds),
        };
        let by_fsync = job.options.writeback_cache || job.options.data == DataMode::Writeback;
        let how = match (fs.e.is_read_only(), by_fsync) {
            (true, _) => "read-only".to_string(),
            (false, true) => format!("durable {durable}, written data at fsync"),
            (false, false) => format!("durable {durable}"),
        };
        let text = format!("mounted {volume} on {target}: backend `{backend}`, {how}");
        info!("{text} (ready after {took:?})");
        if let Some(why) = fs.protected() {
            warnings.push(format!("{why}: mounted read-only"));
        }
        if let (true, Err(why)) = (fs.e.is_read_only(), fs.getattr(ROOT)) {
            let why = format!(
                "nothing can be reached: the root directory: {why}: `quayfs umount {target}`, then `quayfs fsck --repair {volume}`"
            );
            warnings.push(why);
        }
        if backend == "volatile" {
            warnings.push(VOLATILE_WARNING.into());
        }
        warnings.iter().for_each(|w| warn!("{w}"));
        Self { text, warnings }
    }
}

/// What the daemon tells the process that started it, as one line on its standard output.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The mount answers.
    Ready(Report),
    /// There is no mount.
    Failed(Failure),
}

impl Answer {
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Ready(r) => {
                // No part has a tab any more; the last one shows that nothing is missing.
                let parts = [&r.text].into_iter().chain(&r.warnings);
                let parts: String = parts.map(|part| one_line(part) + "\t").collect();
                format!("ready {parts}\n")
            }
            Self::Failed(f) => format!("failed {} {}\n", f.code, f.line),
        }
    }

    /// The reverse of what the daemon writes; `None` if it is cut short.
    pub fn decode(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "ready" => {
                let mut parts = rest.strip_suffix('\t')?.split('\t').map(str::to_string);
                Some(Self::Ready(Report {
                    text: parts.next()?,
                    warnings: parts.collect(),
                }))
            }
            "failed" => {
                let (code, line) = rest.split_once(' ')?;
                Some(Self::Failed(Failure {
                    code: code.parse().ok()?,
                    line: line.into(),
                }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cross_the_pipe() {
        for answer in [
            Answer::Ready(Report {
                text: "mounted /a b on /c".into(),
                warnings: Vec::new(),
            }),
            Answer::Ready(Report {
                text: "x".into(),
                warnings: vec!["look out".into(), "and there".into()],
            }),
            Answer::Failed(Failure::new(32, "no\nway")),
        ] {
            let line = answer.encode();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Answer::decode(line.trim_end_matches('\n')), Some(answer));
        }
        for cut in [
            "",
            "ready",
            "ready x",
            "failed",
            "failed 32",
            "failed x y",
            "thread panicked",
        ] {
            assert_eq!(Answer::decode(cut), None, "{cut}");
        }
    }
}
