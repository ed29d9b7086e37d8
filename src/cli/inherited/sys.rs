//! Descriptors and signals of the whole process: what no library has a safe call for.

#![allow(unsafe_code)]

use std::io::Error;

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, FdFlags, Result, fcntl_setfd};

/// The first descriptor that is no standard stream.
const FIRST: libc::c_uint = 3;

/// The process group, as a number: it is 0 where that is one of another PID namespace, which rustix has no value for.
pub(super) fn process_group() -> libc::pid_t {
    // SAFETY: it only reads.
    unsafe { libc::getpgrp() }
}

/// Closes all descriptors but the standard streams and the first `kept` after them.
pub(super) fn close_inherited(kept: usize) -> Result<()> {
    let first = FIRST + kept as libc::c_uint;
    // SAFETY: the command line has been read and nothing has been opened yet that is still owned by something: what
    // is open belongs to the process that started this one. There are no other threads.
    let closed = unsafe { libc::close_range(first, libc::c_uint::MAX, 0) };
    done(closed)
}

/// The first descriptors after the standard streams, which close at an exec from now on.
pub(super) fn passed_on(count: usize) -> Result<Vec<OwnedFd>> {
    let numbers = (FIRST..).take(count).map(libc::c_uint::cast_signed);
    // All of them are looked at before the first is owned.
    for number in numbers.clone() {
        // SAFETY: borrowed for this call only, which fails if nothing is open under this number.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    // SAFETY: they are open, and nothing in this process owns them: the process that started it has said so, and
    // `close_inherited` has left them open. This is called once.
    Ok(numbers
        .map(|number| unsafe { OwnedFd::from_raw_fd(number) })
        .collect())
}

/// Lets all signals through.
pub(super) fn unblock_signals() -> Result<()> {
    // SAFETY: a set of signals is plain data for which all zeros are valid; `sigemptyset` writes to it, and
    // `pthread_sigmask` reads it. Neither keeps the pointer.
    let failed = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    match failed {
        0 => Ok(()),
        e => Err(Errno::from_raw_os_error(e)),
    }
}

/// Signals that are ignored get their default effect again: a process that ignores the end of its children cannot
/// wait for one. The exception is the signal for pipes without readers, which the Rust runtime ignores.
pub(super) fn reset_dispositions() {
    for signal in (1..=libc::SIGRTMAX()).filter(|s| *s != libc::SIGPIPE) {
        // SAFETY: an action is plain data for which all zeros are valid; `sigaction` writes the present one to it.
        let is_ignored = unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0
                && now.sa_sigaction == libc::SIG_IGN
        };
        if is_ignored {
            set(signal, libc::SIG_DFL);
        }
    }
}

/// Ignores a signal.
pub(super) fn ignore(signal: i32) {
    set(signal, libc::SIG_IGN);
}

/// `to`: the default effect, or none; no handler.
fn set(signal: i32, to: libc::sighandler_t) {
    debug_assert!(to == libc::SIG_DFL || to == libc::SIG_IGN);
    // SAFETY: no code is named that would run in a handler. A signal that cannot be set is left as it is.
    unsafe { libc::signal(signal, to) };
}

fn done(result: libc::c_int) -> Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO))
}
