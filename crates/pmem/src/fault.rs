//! What becomes of the process when the system cannot provide a page of a mapped region.
//!
//! The kernel has no error to return for a load or a store: it raises `SIGBUS`, which by default ends the process
//! without a word. A handler cannot take the access back either, but it can say which file it was and why, and
//! end the process with the exit code of a failure. What was durable stays so: it is the same as any other death.
//!
//! Everything the handler needs is prepared when a region is mapped. It makes system calls and nothing else.
#![allow(unsafe_code)]

mod stamp;

use parking_lot::Mutex;
use rustix::fs::{SeekFrom, fstat, seek};
use signal_hook_registry::{SigId, register_sigaction, unregister};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process says and returns when it ends by a page that cannot be had.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// Exit code.
    pub code: u8,
    /// Where the line goes, a descriptor that stays open; the standard error if there is none. No path: a thread that
    /// is confined could open none.
    pub log: Option<RawFd>,
    /// Whether the line begins as those of a log do: with the time, and that it is an error.
    pub dated: bool,
    /// What comes before the line on the standard output, if that is to have it as well.
    pub answer: Option<&'static str>,
}

#[derive(Default)]
struct State {
    guarded: Vec<Arc<Guarded>>,
    ending: Option<Ending>,
    action: Option<SigId>,
}

static STATE: Mutex<State> = Mutex::new(State {
    guarded: Vec::new(),
    ending: None,
    action: None,
});

/// A thread has something to say.
static SPOKEN: AtomicBool = AtomicBool::new(false);

/// A mapping, with a line for each reason why it cannot be used any more.
struct Guarded {
    start: usize,
    len: usize,
    file: Arc<File>,
    cut: Box<[u8]>,
    full: Box<[u8]>,
    broken: Box<[u8]>,
}

/// A mapping that the handler knows, until this is dropped.
pub(crate) struct Guard(Arc<Guarded>);

impl Guard {
    /// Makes a mapping of `file` known, `len` bytes at `start`.
    pub(crate) fn new(start: usize, len: usize, file: Arc<File>, path: &Path) -> Self {
        let line = |what: &str| {
            let text = format!("{}: {what}", path.display());
            let plain: String = text
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect();
            plain.into_bytes().into_boxed_slice()
        };
        let guarded = Arc::new(Guarded {
            start,
            len,
            file,
            cut: line(&format!(
                "the pmem region was cut short while it was in use; what was behind its new end is lost: restore \
                 it, or `truncate -s {len}` it and see what `quayfs fsck --data` says"
            )),
            full: line(
                "no room in the file system below for a page of the pmem region that is not allocated; make room \
                 there, then try again: what was durable is safe",
            ),
            broken: line(
                "a page of the pmem region cannot be read or written, the medium fails; the kernel's log says more, \
                 and `quayfs fsck` says what is lost",
            ),
        });
        let mut state = STATE.lock();
        state.guarded.push(Arc::clone(&guarded));
        // Without it the process ends by the signal, as it would have anyway.
        let _ = state.renew();
        Self(guarded)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        state.guarded.retain(|g| !Arc::ptr_eq(g, &self.0));
        let _ = state.renew();
    }
}

/// From here on a page that cannot be provided ends the process with one line, as `ending` says. For programs: a
/// library does not decide how a process ends.
///
/// # Errors
/// Those of sigaction(2).
pub fn exit_on_fault(ending: Ending) -> io::Result<()> {
    let mut state = STATE.lock();
    state.ending = Some(ending);
    state.renew()
}

impl State {
    /// Makes the handler look at the list as it is now.
    fn renew(&mut self) -> io::Result<()> {
        let Some(ending) = self.ending.clone() else {
            return Ok(());
        };
        if self.action.is_none() {
            // The handler of the standard library looks for overflown stacks, which raise SIGSEGV on Linux. Called
            // first it would make a second thread's fault end the process before the first one has spoken.
            // SAFETY: the default action is no code of this process.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
        let guarded = self.guarded.clone();
        // SAFETY: the action loads, compares and makes system calls: it takes no lock and no memory, and does not
        // panic. The registry keeps what it owns until no handler is running it.
        let action = unsafe {
            register_sigaction(libc::SIGBUS, move |info| handle(&guarded, &ending, info))
        }?;
        // The new one is there first: no moment without.
        if let Some(old) = self.action.replace(action) {
            unregister(old);
        }
        Ok(())
    }
}

/// Ends the process if a mapping was meant, by the default action if none was.
fn handle(guarded: &[Arc<Guarded>], ending: &Ending, info: &libc::siginfo_t) {
    // SAFETY: the kernel fills in an address for this signal; of one that a process sends the field is something
    // else, and any number will do.
    let address = unsafe { info.si_addr() }.addr();
    let found = guarded
        .iter()
        .find(|g| address.wrapping_sub(g.start) < g.len);
    let Some(mapping) = found else {
        // SAFETY: as above. The thread that accessed the address does so again when this returns.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        return;
    };
    while SPOKEN.swap(true, Ordering::AcqRel) {
        // Another thread is ending the process.
        // SAFETY: as above.
        unsafe { libc::pause() };
    }
    let line = mapping.why(address - mapping.start);
    let stamp;
    let begin: &[u8] = match ending.dated {
        true => {
            stamp = stamp::now();
            &stamp
        }
        false => b"quayfs: ",
    };
    say(ending.log.unwrap_or(2), [begin, line, b"\n"]);
    if let Some(prefix) = ending.answer {
        say(1, [prefix.as_bytes(), line, b"\n"]);
    }
    // SAFETY: ends the process at once; nothing of it runs any more.
    unsafe { libc::_exit(ending.code.into()) }
}

/// Writes a line with one call, so that it stays one.
fn say(fd: libc::c_int, parts: [&[u8]; 3]) {
    let parts = parts.map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: the system reads what is borrowed. A closed descriptor is an error, and there is nowhere to report it.
    let _ = unsafe { libc::writev(fd, parts.as_ptr(), parts.len() as libc::c_int) };
}

impl Guarded {
    /// Why the page at this offset could not be had.
    fn why(&self, off: usize) -> &[u8] {
        let off = off as u64;
        match fstat(&*self.file) {
            Ok(stat) if stat.st_size > 0 && stat.st_size as u64 <= off => return &self.cut,
            // A device has no size.
            Ok(stat) if stat.st_size == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG => {
                return &self.cut;
            }
            _ => {}
        }
        match seek(&*self.file, SeekFrom::Data(off)) {
            Ok(data) if data == off => &self.broken,
            Ok(_) | Err(rustix::io::Errno::NXIO) => &self.full,
            Err(_) => &self.broken,
        }
    }
}
