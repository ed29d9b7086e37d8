//! What needs the operating system, and `unsafe`, apart from the ring.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;

use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::wire::IOC_CLONE;

/// A page.
pub(crate) const PAGE: usize = 4096;

/// What a huge page holds, on every machine that this runs on.
const HUGE: usize = 2 << 20;

/// Page-aligned memory that the kernel reads and writes.
#[derive(Debug)]
pub(crate) struct Buffer {
    map: MmapMut,
    /// Where in the mapping it begins.
    start: usize,
    len: usize,
}

impl Buffer {
    /// Zeroed memory of at least `len` bytes, allocated when it is touched.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(PAGE).max(PAGE);
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        Ok(Self { map, start: 0, len })
    }

    /// As [`Buffer::new`], in one physical piece if the kernel has one: a device then fills it with few and long
    /// transfers instead of one for each page. That piece is allocated whole.
    pub(crate) fn huge(len: usize) -> io::Result<Self> {
        // One to begin at its start, one to end at its end.
        let spare = 2 * HUGE;
        let mut buffer = Self::new(len + spare)?;
        buffer.start = buffer.map.as_ptr().align_offset(HUGE);
        buffer.len -= spare;
        let whole = buffer.len.next_multiple_of(HUGE);
        // Only advice: a kernel that was built without huge pages has pages as well.
        if let Err(err) = (buffer.map).advise_range(Advice::HugePage, buffer.start, whole) {
            tracing::debug!("no huge pages: {err}");
        }
        Ok(buffer)
    }

    /// Allocates all of it now. A process that is killed while the kernel copies a request to memory that is not there yet
    /// does not get it, and the request fails.
    pub(crate) fn allocate(&mut self) {
        // Only advice, and not known before Linux 5.14: then touching it does the same.
        let advised = self
            .map
            .advise_range(Advice::PopulateWrite, self.start, self.len);
        if advised.is_err() {
            self.as_mut().fill(0);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr().wrapping_add(self.start).cast_mut()
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..][..self.len]
    }
}

/// A further descriptor of the same connection, with a queue of its own for requests under way.
pub(crate) fn clone_device(session: &OwnedFd, nonblocking: bool) -> io::Result<OwnedFd> {
    let device: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | if nonblocking { libc::O_NONBLOCK } else { 0 })
        .open("/dev/fuse")?;
    let session = session.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the request reads one 32-bit integer, which lives until the call returns.
    let done = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            libc::c_ulong::from(IOC_CLONE),
            ptr::from_ref(&session),
        )
    };
    if done == 0 {
        Ok(device.into())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Writes `head` and behind it one byte that cannot be read. Taking the whole of it fails with `EFAULT`.
pub(crate) fn write_unreadable(to: &OwnedFd, head: &[u8]) -> io::Result<()> {
    let parts = [
        libc::iovec {
            iov_base: head.as_ptr().cast_mut().cast(),
            iov_len: head.len(),
        },
        libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 1,
        },
    ];
    // SAFETY: the kernel only reads what the parts refer to: `head`, which is borrowed until the call
    // returns, and a page that is never mapped, at which it stops.
    let written = unsafe { libc::writev(to.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
    if written < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The CPUs that this thread may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Binds the calling thread to a CPU. Where that is not allowed nothing changes.
pub(crate) fn pin(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

/// CPUs that the machine can ever have: as many queues a ring has.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_of_list(text.trim())
        .map(|last| last + 1)
        .ok_or_else(|| io::Error::other(format!("/sys/devices/system/cpu/possible: {text:?}")))
}

/// The last number of a list such as `0-3,8-11`.
fn last_of_list(list: &str) -> Option<usize> {
    list.rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(last_of_list("0"), Some(0));
        assert_eq!(last_of_list("0-1"), Some(1));
        assert_eq!(last_of_list("0-3,8-11"), Some(11));
        assert_eq!(last_of_list("0-3,8"), Some(8));
        assert_eq!(last_of_list(""), None);
    }

    #[test]
    fn buffers_are_whole_zeroed_pages() {
        let mut buffer = Buffer::new(PAGE + 1).unwrap();
        assert_eq!(buffer.len(), 2 * PAGE);
        assert_eq!(buffer.as_ptr().addr() % PAGE, 0);
        assert!(buffer.as_mut().iter().all(|b| *b == 0));
    }

    #[test]
    fn huge_pages_hold_a_buffer_from_its_start() {
        for len in [1, HUGE / 2 + PAGE, HUGE, HUGE + 1] {
            let mut buffer = Buffer::huge(len).unwrap();
            assert_eq!(buffer.len(), len.next_multiple_of(PAGE));
            assert_eq!(buffer.as_ptr().addr() % HUGE, 0);
            assert_eq!(buffer.as_mut().as_mut_ptr(), buffer.as_ptr());
            buffer.as_mut().fill(1);
        }
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        let cpus = allowed_cpus();
        assert!(!cpus.is_empty());
        assert!(cpus.iter().all(|cpu| *cpu < possible_cpus().unwrap()));
    }
}
