//! `quayfs restart`: another daemon takes the place of the one that serves a mount, which goes on meanwhile.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::Value;

use super::args;
use super::asking::{self, Heard};
use super::exit::{FAILED, Failure, say};
use super::inherited;
use super::media;
use super::succession;
use super::supervisor::{HELLO, NOT_SERVED, REPLACE, REPLACE_WITH, SERVED, STILL_WITH};
use super::unserved::Unserved;
use crate::mount::control::{Line, Message, Unreached, open_program};
use crate::mount::probe::{
    PROGRAM_OPTIONS, ask as ask_mount, ask_program, open_as_user, read_within,
};
use crate::mount::server::PATIENCE;
use crate::mount::table::Entry;

mod managed;

/// How long a program may take to say what it can.
const ASKING: Duration = Duration::from_secs(10);
/// How long the supervisor may take for its first word: it does little else.
const FIRST_WORD: Duration = Duration::from_secs(2);
/// How long its daemon may take to say whether another one could take its place. One that is busy is replaced all the same.
const HEARING: Duration = Duration::from_secs(1);
/// What it may take besides what daemons take: the old one to end, the next one to serve, and one of the old program after that.
const MARGIN: Duration = Duration::from_secs(10);
/// How often it is looked whether it is stopped.
const LOOK: Duration = Duration::from_secs(1);
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
    let shown = quayfs_shown::argument(&args.mountpoint);
    let entry = asking::mounted_at(&args.mountpoint)?;
    if !entry.is_fuse() {
        return Err(format!("{shown} is {}, not QuayFS", entry.fstype));
    }
    asking::expect_visible(&entry)?;
    let Some((line, known)) = supervisor_of(&entry, &shown)? else {
        return managed::restart(&entry, args);
    };
    may_be_replaced(&entry, &shown)?;
    let path = match &args.binary {
        Some(path) => path
            .canonicalize()
            .map_err(|e| format!("{}: {e}", quayfs_shown::argument(path)))?,
        None => known.program.clone(),
    };
    let shown_path = quayfs_shown::argument(&path);
    let refused = |why: String| {
        format!("{shown_path} cannot take over {shown}, which goes on as before: {why}")
    };
    // One that another user chose is opened, and asked, as that user.
    let is_own = args.binary.is_some() || entry.user_id() == Some(geteuid().as_raw());
    let file = match is_own {
        true => open_program(&path),
        false => open_as_user(&entry, &path, ASKING),
    };
    let file = file.map_err(|e| refused(e.to_string()))?;
    let can = match is_own {
        true => ask(&file, &known.options),
        false => ask_program(&entry, &path, &known.options, ASKING)
            .map_err(|e| format!("it cannot be started: {e}"))
            .and_then(|said| said.ok_or_else(|| "it does not say what it can".into())),
    };
    succession::judge(&known.needs, &can.map_err(refused)?).map_err(refused)?;
    let text = format!("{REPLACE}{}\n", args.within.saturating_mul(1000));
    let text = [text.as_bytes(), path.as_os_str().as_bytes()].concat();
    let within = Duration::from_secs(args.within);
    let served = replace(&line, &entry, (&text, file.as_fd()), within)?
        .map_err(|why| format!("{shown_path} does not serve {shown}: {why}"))?;
    let (pause, version) = (served.pause, &served.version);
    let old = &known.version;
    say(format_args!(
        "{shown} is served by quayfs {version} ({shown_path}), before that by {old}; nothing was answered for {pause} ms"
    ));
    if known.supervisor_version != *version {
        let (pid, old) = (&known.supervisor, &known.supervisor_version);
        say(format_args!(
            "its supervisor (process {pid}) stays quayfs {old} until it is unmounted"
        ));
    }
    Ok(())
}

/// Refuses what would end the mount, or wait for a daemon that does not listen. Of one that does not say how it is nothing is
/// known: another one may take its place.
fn may_be_replaced(entry: &Entry, shown: &str) -> Result<(), String> {
    match asking::hear(entry, HEARING, FAILED) {
        Ok(Heard::Nothing(Unserved::Stopped)) => Err(Unserved::Stopped.line(entry)),
        Ok(Heard::Status(status)) => {
            if let Some(why) = asking::irreplaceable(&status, shown) {
                return Err(why);
            }
            match status["ends_with_daemon"].as_str() {
                Some(why) => Err(cannot(shown, why)),
                None => expect_successor(entry, &status),
            }
        }
        Ok(Heard::Nothing(_)) | Err(_) => Ok(()),
    }
}

/// Refuses what would leave a mount without a daemon, since nothing would start the next one, or that one could not open the
/// volume. `status`: what the daemon says of itself.
///
/// # Errors
/// It is so, or what would tell does not answer.
pub fn expect_successor(entry: &Entry, status: &Value) -> Result<(), String> {
    let shown = quayfs_shown::argument(&entry.target);
    let refused = |why: String| {
        format!("no other daemon could go on with {shown}, which goes on as before: {why}")
    };
    match Line::to(entry) {
        Ok(Some(line)) => drop(line.first_word(FIRST_WORD).map_err(refused)?),
        Err(why @ Unreached::Deaf(_)) => return Err(refused(why.to_string())),
        Ok(None) | Err(_) => {}
    }
    if status["scrub"]["metadata"].as_u64() > Some(0) {
        let why = "a scrub has found damaged metadata, which the next one may refuse: copy what is on the mount, then \
                   `quayfs umount` and `quayfs fsck --repair --data`";
        return Err(refused(why.into()));
    }
    let pid = status["pid"].as_i64().and_then(|pid| pid.try_into().ok());
    let volume = Path::new(status["volume"].as_str().unwrap_or_default());
    match media::ahead(entry, pid, volume) {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(refused(why)),
        Err(media::Silent) => Err(refused(media::silence(media::PATIENCE))),
    }
}

/// The version of the daemon of a mount, by the word of its supervisor; `None` if it has none that says so within
/// `patience`.
pub fn version_of(entry: &Entry, patience: Duration) -> Option<String> {
    let line = Line::to(entry).ok()??;
    let hello = line.first_word(patience).ok()?;
    Some(known(&hello.text)?.version)
}

/// That a mount which would end with its daemon is not left by it.
pub fn cannot(shown: &str, why: &str) -> String {
    format!(
        "{shown} cannot be served by another daemon, since {why}: unmount it and mount it again"
    )
}

/// What starts the daemons of a mount, and what it says of them; `None` if that is no supervisor.
fn supervisor_of(entry: &Entry, shown: &str) -> Result<Option<(Line, Known)>, String> {
    let line = match Line::to(entry) {
        Ok(Some(line)) => line,
        Ok(None) => return Ok(None),
        Err(Unreached::Denied) => {
            return Err(format!(
                "permission denied: only root, and the user who mounted {shown}, may do that"
            ));
        }
        Err(why @ Unreached::Deaf(_)) => return Err(format!("{shown} goes on as before: {why}")),
        Err(why @ Unreached::System(_)) => return Err(format!("{shown}: {why}")),
    };
    let hello = line.first_word(FIRST_WORD);
    let hello = hello.map_err(|why| format!("{shown} goes on as before: {why}"))?;
    let known = known(&hello.text).ok_or("the supervisor is of another version")?;
    Ok(Some((line, known)))
}

/// Something that the daemons of a mount are to do from the next one on.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// What that is.
    pub name: &'a str,
    /// What comes along.
    pub file: BorrowedFd<'a>,
    /// Only if all daemons have had it since it came along first.
    pub still: bool,
}

/// Has the daemon of a mount replaced by one of the same program that has something to do. The next one has `within` to
/// serve.
///
/// # Errors
/// Nothing would start another daemon; this user may not. In the result: the next daemon does not serve, and the last one
/// goes on, or one that is like it.
pub fn replace_with(
    entry: &Entry,
    job: Job<'_>,
    within: Duration,
) -> Result<Result<Served, String>, String> {
    let shown = quayfs_shown::argument(&entry.target);
    if !job.still
        && let Ok(status) = managed::status(entry)
    {
        expect_successor(entry, &status)?;
    }
    let (line, _) = supervisor_of(entry, &shown)?.ok_or_else(|| {
        let status = managed::status(entry).unwrap_or_default();
        match status["ends_with_daemon"].as_str() {
            Some(why) => cannot(&shown, why),
            None => format!("{shown}: what starts its daemons is no supervisor: unmount it first"),
        }
    })?;
    let ask = match job.still {
        true => STILL_WITH,
        false => REPLACE_WITH,
    };
    let text = format!("{ask}{}\n{}", within.as_millis(), job.name);
    replace(&line, entry, (text.as_bytes(), job.file), within)
}

/// The next daemon serves.
pub struct Served {
    /// So many milliseconds nothing was answered.
    pub pause: u64,
    version: String,
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

/// The other end of [`ask_program`]: becomes that program, which has nothing of this process but its standard streams.
pub fn answer(program: &Path) -> u8 {
    let options = std::env::var_os(PROGRAM_OPTIONS).unwrap_or_default();
    if inherited::close_all().is_ok() {
        let _ = Command::new(program)
            .arg0("quayfs")
            .args(["succession", "-o"])
            .arg(options)
            .env_clear()
            .exec();
    }
    FAILED
}

/// Has the daemon replaced, and asks the mount things until the supervisor says how that went: a daemon that nothing asks
/// anything cannot show that it serves. In the result: why the next one does not serve.
fn replace(
    line: &Line,
    entry: &Entry,
    (text, along): (&[u8], BorrowedFd<'_>),
    within: Duration,
) -> Result<Result<Served, String>, String> {
    line.send(text, Some(along))
        .map_err(|e| format!("the supervisor does not listen: {e}"))?;
    let over = AtomicBool::new(false);
    let answer = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = ask_mount(entry, PATIENCE);
                thread::sleep(POKE);
            }
        });
        let patience = within.saturating_mul(3).saturating_add(MARGIN);
        let answer = outcome(line, &entry.target, patience);
        over.store(true, Ordering::Relaxed);
        answer
    })?;
    let answer = String::from_utf8_lossy(&answer.text);
    if let Some(why) = answer.strip_prefix(NOT_SERVED) {
        return Ok(Err(why.into()));
    }
    let served = answer.strip_prefix(SERVED).and_then(|s| s.split_once(' '));
    let served = served.and_then(|(pause, version)| Some((pause.parse().ok()?, version.into())));
    let (pause, version) = served.ok_or("the supervisor has answered nonsense")?;
    Ok(Ok(Served { pause, version }))
}

/// What the supervisor of a mount says in the end, no later than after `patience`.
fn outcome(line: &Line, target: &Path, patience: Duration) -> Result<Message, String> {
    let shown = quayfs_shown::argument(target);
    let asked = Instant::now();
    loop {
        let left = patience.saturating_sub(asked.elapsed());
        if line
            .speaks_within(LOOK.min(left))
            .map_err(|e| e.to_string())?
        {
            let answer = line.receive().map_err(|e| e.to_string())?;
            return answer.ok_or_else(|| {
                format!("the supervisor has ended: `quayfs status {shown}` says whether the mount has, too")
            });
        }
        if left.is_zero() || line.is_stopped() {
            let why = line.silence();
            return Err(format!(
                "how that went is not known, since {why}: `quayfs status {shown}` says what serves now"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_supervisor_that_says_nothing_is_not_waited_for_without_end() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = || socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let outcome = |line| outcome(&line, Path::new("/mnt"), Duration::ZERO);
        let (ours, theirs) = pair();
        let why = outcome(Line::from(ours)).unwrap_err();
        assert!(
            why.contains("does not answer: `quayfs status /mnt`"),
            "{why}"
        );
        drop(theirs);
        let (ours, theirs) = pair();
        Line::from(theirs).send(b"served", None).unwrap();
        assert_eq!(outcome(Line::from(ours)).unwrap().text, b"served");
        let (ours, theirs) = pair();
        drop(theirs);
        let why = outcome(Line::from(ours)).unwrap_err();
        assert!(why.contains("has ended"), "{why}");
    }
}
