//! What the daemon tells the process that started it.

use super::super::exit::{Failure, one_line};

/// What to tell the user about a mount that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is mounted where, and when it is durable.
    pub text: String,
    /// What must not be overlooked.
    pub warnings: Vec<String>,
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
