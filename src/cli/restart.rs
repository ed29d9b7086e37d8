//! `quayfs restart`: another daemon takes the place of the one that serves a mount, which goes on meanwhile.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::args;
use super::asking;
use super::exit::{FAILED, Failure, say};
use super::succession;
use super::supervisor::{HELLO, NOT_SERVED, REPLACE, SERVED};
use crate::mount::control::{Line, open_program};
use crate::mount::server::{PATIENCE, ask as ask_mount, read_within, wait_for};
use crate::mount::table::Entry;

mod managed;

/// How long a program may take to say what it can.
const ASKING: Duration = Duration::from_secs(10);
/// How often the mount is asked something meanwhile.
const POKE: Duration = Duration::from_millis(50);

/// What is known of a mount before its daemon is replaced.
struct Known {
    /// The process that will start the next daemon.
    supervisor: String,
    supervisor_version: String,
    version: String,
    needs: String,
    options: String,
    program: PathBuf,
}

/// Runs `quayfs restart`.
pub fn run(args: &args::Restart) -> Result<(), Failure> {
    restart(args).map_err(Failure::with(FAILED))
}

fn restart(args: &args::Restart) -> Result<(), String> {
    let shown = quayfs_shown::path(&args.mountpoint);
    let entry = asking::mounted_at(&args.mountpoint)?;
    if !entry.is_fuse() {
        return Err(format!("{shown} is {}, not QuayFS", entry.fstype));
    }
    let line = match Line::to(&entry) {
        Ok(Some(line)) => line,
        Ok(None) => return managed::restart(&entry, args),
        Err(Errno::ACCESS) => {
            return Err(format!(
                "permission denied: only root, and the user who mounted {shown}, may do that"
            ));
        }
        Err(e) => return Err(format!("{shown}: the supervisor cannot be reached: {e}")),
    };
    let hello = line.receive().map_err(|e| e.to_string())?;
    let hello = hello.ok_or_else(|| format!("{shown}: the supervisor does not listen"))?;
    let known = known(&hello.text).ok_or("the supervisor is of another version")?;
    let path = match &args.binary {
        Some(path) => path
            .canonicalize()
            .map_err(|e| format!("{}: {e}", quayfs_shown::path(path)))?,
        None => known.program.clone(),
    };
    let shown_path = quayfs_shown::path(&path);
    let refused = |why: String| {
        format!("{shown_path} cannot take over {shown}, which goes on as before: {why}")
    };
    let file = open_program(&path).map_err(|e| refused(e.to_string()))?;
    let can = ask(&file, &known.options).map_err(refused)?;
    succession::judge(&known.needs, &can).map_err(refused)?;
    let answer = replace(&line, &entry, (&file, &path), args.within)?;
    if let Some(why) = answer.strip_prefix(NOT_SERVED) {
        return Err(format!("{shown_path} does not serve {shown}: {why}"));
    }
    let served = answer.strip_prefix(SERVED).and_then(|s| s.split_once(' '));
    let (pause, version) = served.ok_or("the supervisor has answered nonsense")?;
    let old = &known.version;
    say(format_args!(
        "{shown} is served by quayfs {version} ({shown_path}), before that by {old}; nothing was answered for {pause} ms"
    ));
    if known.supervisor_version != version {
        let (pid, old) = (&known.supervisor, &known.supervisor_version);
        say(format_args!(
            "its supervisor (process {pid}) stays quayfs {old} until it is unmounted"
        ));
    }
    Ok(())
}

/// The version of the daemon of a mount, by the word of its supervisor; `None` if it has none that says so within
/// `patience`.
pub fn version_of(entry: &Entry, patience: Duration) -> Option<String> {
    let line = Line::to(entry).ok()??;
    if !wait_for(line.as_fd(), PollFlags::IN, patience).ok()? {
        return None;
    }
    let hello = line.receive().ok()??;
    Some(known(&hello.text)?.version)
}

fn known(hello: &[u8]) -> Option<Known> {
    let mut parts = hello.splitn(6, |b| *b == b'\n');
    let mut word = |key: &str| {
        let line = std::str::from_utf8(parts.next()?).ok()?;
        Some(line.strip_prefix(key)?.to_string())
    };
    word(HELLO)?;
    let supervisor = word("supervisor ")?;
    let (supervisor, supervisor_version) = supervisor.split_once(' ')?;
    Some(Known {
        supervisor: supervisor.into(),
        supervisor_version: supervisor_version.into(),
        version: word("version ")?,
        needs: word("needs ")?,
        options: word("options ")?,
        program: OsStr::from_bytes(parts.next()?.strip_prefix(b"program ")?).into(),
    })
}

/// What a program says of itself, for a mount with these options.
fn ask(file: &OwnedFd, options: &str) -> Result<String, String> {
    let mut child = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .arg0("quayfs")
        .args(["succession", "-o", options])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("it cannot be started: {e}"))?;
    let said = child.stdout.take().and_then(|out| read_within(out, ASKING));
    let Some(said) = said else {
        let _ = child.kill();
        let _ = child.wait();
        return Err("it does not say what it can".into());
    };
    let _ = child.wait();
    Ok(said)
}

/// Has the daemon replaced, and asks the mount things until the supervisor says how that went: a daemon that nothing asks
/// anything cannot show that it serves.
fn replace(
    line: &Line,
    entry: &Entry,
    (file, path): (&OwnedFd, &Path),
    within: u64,
) -> Result<String, String> {
    let text = format!("{REPLACE}{}\n", within.saturating_mul(1000));
    let text = [text.as_bytes(), path.as_os_str().as_bytes()].concat();
    line.send(&text, Some(file.as_fd()))
        .map_err(|e| format!("the supervisor does not listen: {e}"))?;
    let over = AtomicBool::new(false);
    let answer = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = ask_mount(entry, PATIENCE);
                thread::sleep(POKE);
            }
        });
        let answer = line.receive();
        over.store(true, Ordering::Relaxed);
        answer
    });
    let answer = answer.map_err(|e| e.to_string())?;
    let answer = answer.ok_or("the supervisor has ended, and with it the mount")?;
    Ok(String::from_utf8_lossy(&answer.text).into_owned())
}
