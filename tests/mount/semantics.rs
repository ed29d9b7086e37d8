//! The examples of docs/semantics.md, run as they stand there.
//!
//! An example is a block of code marked `console`, with the mount's options behind it. Each has a volume
//! of its own and a shell whose directory is the mount's root. A line that begins with `$` is a command,
//! lines below it that begin with `>` go on with it, and the rest is all that it prints. Two commands
//! are ours: `crash` kills the daemon and mounts again, `remount` unmounts first; both come with a new
//! shell.
//!
//! Needs `/dev/fuse`, root, and the programs that the examples call.

use crate::program;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use program::{Mounted, Scene, Start as _, can_be_root, eventually};
use rustix::process::{Pid, Signal, kill_process_group};

const TEXT: &str = include_str!("../../docs/semantics.md");

/// One block of code.
#[derive(Debug, Default)]
struct Example {
    /// Line of the document that it begins at.
    line: usize,
    options: String,
    /// Commands and what they print.
    steps: Vec<(String, String)>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut all: Vec<Example> = Vec::new();
    let mut inside = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            inside = !inside && info.split(' ').next() == Some("console");
            if inside {
                let options = info.strip_prefix("console").unwrap_or_default().trim();
                all.push(Example {
                    line: i + 1,
                    options: options.into(),
                    steps: Vec::new(),
                });
            }
        } else if let (true, Some(example)) = (inside, all.last_mut()) {
            if let Some(command) = line.strip_prefix("$ ") {
                example.steps.push((command.into(), String::new()));
                continue;
            }
            let last = example.steps.last_mut();
            let (command, printed) = last.expect("a command comes first");
            match line.strip_prefix("> ") {
                Some(more) if printed.is_empty() => *command += &format!("\n{more}"),
                _ => *printed += &format!("{line}\n"),
            }
        }
    }
    all
}

/// A shell that commands are given to one by one.
struct Shell {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Says that a command has ended.
const END: &str = "--- end of what it prints ---";

impl Shell {
    fn new(scene: &Scene) -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        scene.helper("quayfs");
        let mut child = Command::new("bash")
            .arg("--norc")
            .current_dir(scene.mnt())
            .env("PATH", format!("{}:{path}", scene.dir().display()))
            .env("MNT", scene.mnt())
            .envs([
                ("LC_ALL", "C"),
                ("TZ", "UTC"),
                ("PYTHONDONTWRITEBYTECODE", "1"),
            ])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .start()
            .expect("bash runs");
        let commands = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Self {
            child,
            commands,
            answers,
        };
        assert_eq!(shell.run("exec 2>&1; umask 022"), "");
        shell
    }

    /// Runs a command; what it prints.
    fn run(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}\necho '{END}'").expect("the shell lives");
        let mut printed = String::new();
        loop {
            let before = printed.len();
            let n = self.answers.read_line(&mut printed).expect("text");
            assert!(n > 0, "the shell has ended: {printed}");
            // What does not end its last line is seen as if it did.
            if let Some(rest) = printed[before..].strip_suffix(&format!("{END}\n")) {
                let rest = match rest {
                    "" => String::new(),
                    rest => format!("{rest}\n"),
                };
                printed.truncate(before);
                return printed + &rest;
            }
        }
    }
}

impl Drop for Shell {
    /// Ends it, and what it has left in the background.
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        // The others are no children of ours. Until they have gone their files keep the mount in use.
        eventually("the background of a shell ends", || !lives(group));
    }
}

/// Whether a thread of a group of processes runs: one that has ended and was not waited for does not.
fn lives(group: Pid) -> bool {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let threads =
        entries(Path::new("/proc")).flat_map(|process| entries(&process.path().join("task")));
    threads.into_iter().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // proc_pid_stat(5): the name is in parentheses and may have some of its own; state, parent, group.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next();
        let its: Option<i32> = fields.nth(1).and_then(|field| field.parse().ok());
        its == Some(group.as_raw_nonzero().get()) && !matches!(state, Some("Z" | "X"))
    })
}

/// The daemon dies where it stands.
fn kill(m: &Mounted) {
    let pid = m.info()["pid"].to_string();
    let status = Command::new("kill").args(["-9", &pid]).finish();
    assert!(status.expect("kill runs").success());
    // The process may be gone before its descriptors are closed, and an unmount would ask it how it ended.
    eventually("its connection is dead", || {
        rustix::fs::statvfs(m.mnt()).is_err_and(|e| e == rustix::io::Errno::NOTCONN)
    });
}

/// Runs an example; the first command that prints something else.
fn run(example: &Example) -> Option<String> {
    let mut wrong = None;
    // What a crash leaves is what these are about.
    let options = format!("{},norestart", example.options);
    let m = Mounted::on(Scene::open_to_all(), &options);
    let mut shell = Shell::new(&m.0);
    for (command, expected) in &example.steps {
        let printed = match command.as_str() {
            "crash" => {
                kill(&m);
                drop(shell);
                m.umount();
                m.mount(&options);
                shell = Shell::new(&m.0);
                String::new()
            }
            "remount" => {
                drop(shell);
                m.umount();
                m.mount(&options);
                shell = Shell::new(&m.0);
                String::new()
            }
            command => shell.run(command),
        };
        if printed != *expected {
            let at = format!("docs/semantics.md:{}: $ {command}", example.line);
            wrong = Some(format!("{at}\nprints:\n{printed}and not:\n{expected}"));
            break;
        }
    }
    drop(shell);
    m.umount();
    m.fsck();
    wrong
}

#[test]
fn the_examples_of_the_documentation() {
    let all = examples(TEXT);
    assert!(all.len() >= 15, "only {} examples", all.len());
    if !can_be_root() {
        return;
    }
    for program in ["chattr", "setfacl", "setpriv", "fstrim", "python3"] {
        let found = Command::new("which").arg(program).capture();
        assert!(found.is_ok_and(|o| o.status.success()), "no {program}");
    }
    let wrong: Vec<_> = all.iter().filter_map(run).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn examples_are_found() {
    let text = "a\n```console noatime,ro\n$ ls\na\n\nb\n$ crash\n```\n```\n$ no\n```\n```console\n$ x\n> y\n```\n";
    let all = examples(text);
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].line, all[0].options.as_str()), (2, "noatime,ro"));
    let steps = [("ls", "a\n\nb\n"), ("crash", "")].map(|(a, b)| (a.into(), b.into()));
    assert_eq!(all[0].steps, steps);
    assert_eq!((all[1].line, all[1].options.as_str()), (12, ""));
    assert_eq!(all[1].steps, [("x\ny".into(), String::new())]);
}
