//! Starting programs from tests that share a process.
//!
//! A process that has been forked holds a copy of every file that is open here, those of other tests included, until
//! some time in its exec. That time cannot be known out here, since `vfork` returns before it. A test that has
//! closed its files and unmounts would find the file system in use. So a new process closes these copies itself
//! before its exec, and one program starts at a time: what a test has closed before it starts a program is closed
//! everywhere when that program runs.

#![allow(unsafe_code)]

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// Held from before a fork until the files of others are closed in the new process.
static STARTING: Mutex<()> = Mutex::new(());

/// What tests use in place of the methods of [`Command`] itself.
pub trait Start {
    /// As [`Command::spawn`].
    ///
    /// # Errors
    /// As there.
    fn start(&mut self) -> io::Result<Child>;

    /// As [`Command::status`].
    ///
    /// # Errors
    /// As there.
    fn finish(&mut self) -> io::Result<ExitStatus> {
        self.start()?.wait()
    }

    /// As [`Command::output`], whatever was said of the standard streams before.
    ///
    /// # Errors
    /// As there.
    fn capture(&mut self) -> io::Result<Output>;
}

impl Start for Command {
    fn start(&mut self) -> io::Result<Child> {
        // It guards no data: one that a failed test has left poisoned does as well.
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the function makes system calls and nothing else: it takes no memory and no lock, as is right
        // between a fork and an exec.
        unsafe {
            self.pre_exec(heed_signals);
            self.pre_exec(close_copies);
        };
        self.spawn()
    }

    fn capture(&mut self) -> io::Result<Output> {
        self.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.start()?.wait_with_output()
    }
}

/// Where the tests are run by nohup(1), or in the background of a script, programs would ignore what tests send them.
fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: a system call on a signal that there is, and no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

/// Closes what is open in this process, without the standard streams and pipes: by one of these the library
/// tells whether the exec succeeds.
fn close_copies() -> io::Result<()> {
    let list = openat(
        CWD,
        c"/proc/self/fd",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&list, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Some(Ok(fd)) = name.to_str().ok().map(str::parse::<RawFd>) else {
            continue;
        };
        // Not by `fstat`, which would ask daemons that may not answer.
        let mut target = [MaybeUninit::uninit(); 64];
        let (target, _) = readlinkat_raw(&list, name, &mut target)?;
        if fd > 2 && fd != list.as_raw_fd() && !target.starts_with(b"pipe:") {
            // What it returns does not matter: the file may be of a mount whose daemon is dead.
            // SAFETY: its owner is in the process that forked; here nothing uses it before the exec.
            let _ = unsafe { libc::close(fd) };
        }
    }
    Ok(())
}
