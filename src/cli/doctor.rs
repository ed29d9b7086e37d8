//! `quayfs doctor`: whether this machine can mount, what durability it gives, and what to do about what is missing.

mod facts;
mod judge;

use super::args;
use super::exit::{DOCTOR_NOTE, DOCTOR_PROBLEM, Failure, OK, say};
use facts::Facts;
use std::path::Path;

/// How bad something is; what comes later is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It works; it could be better, or is to be known.
    Note,
    /// Something will not work, or not be durable.
    Problem,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    grade: Grade,
    what: String,
    /// What to do about it.
    todo: Option<String>,
}

/// Looks at the machine and says what it finds; the exit code is that of the worst.
pub fn run(args: &args::Doctor) -> Result<u8, Failure> {
    let facts = Facts::of_this_machine(Path::new("/"), args.target.as_deref());
    let findings = judge::all(&facts);
    say(text(&findings).trim_end());
    let worst = findings.iter().map(|f| f.grade).max();
    Ok(match worst.unwrap_or(Grade::Ok) {
        Grade::Ok => OK,
        Grade::Note => DOCTOR_NOTE,
        Grade::Problem => DOCTOR_PROBLEM,
    })
}

/// A line each, and another one with what to do.
fn text(findings: &[Finding]) -> String {
    let line = |f: &Finding| {
        let mut said = format!("{:<8} {}\n", f.grade.word(), f.what);
        if let Some(todo) = &f.todo {
            said += &format!("         -> {todo}\n");
        }
        said
    };
    findings.iter().map(line).collect()
}
