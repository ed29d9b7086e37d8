//! Atomic writes in the ABI of F2FS, as SQLite uses them (`SQLITE_ENABLE_BATCH_ATOMIC_WRITE`): between
//! `F2FS_IOC_START_ATOMIC_WRITE` and `F2FS_IOC_COMMIT_ATOMIC_WRITE` what a process writes to a file is kept here, and
//! becomes one record. Option `atomic_writes`.
//!
//! Until then reads and sizes show it, for the kernel has it in its page cache anyway. A process that closes
//! the file for good, or dies, says so by `FUSE_FLUSH`, before the kernel lets go of its locks: what it has not committed
//! is forgotten, also by the kernel, before anybody else can take it for the file's content.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quayfs_fuse::wire::{F2FS_FEATURE_ATOMIC_WRITE, InHeader, IoctlOut};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::Ino;

use crate::data::together::blocks;
use crate::edge::files::{Files, process_of};
use crate::edge::service::Edge;

/// Writes of one file that are kept at most; SQLite makes one for each page.
const PIECES_MAX: usize = 4096;

/// What a process has written to a file and not committed.
struct Session {
    owner: u32,
    /// The thread that was the owner's when it was looked at last.
    thread: u32,
    pieces: Vec<(u64, Arc<[u8]>)>,
    touched: BTreeSet<u64>,
    end: u64,
    kill: bool,
}

impl Session {
    /// Whether `pid`, a thread, is one of the owner's.
    fn is_of(&mut self, pid: u32) -> bool {
        if self.thread != pid && process_of(pid).is_ok_and(|p| p == self.owner) {
            self.thread = pid;
        }
        self.thread == pid
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Sessions {
    by_inode: Mutex<HashMap<Ino, Session>>,
    /// How many there are: mostly none.
    count: AtomicUsize,
}

impl Sessions {
    fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Session>> {
        self.by_inode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, ino: Ino, pid: u32) -> Result<(), Errno> {
        let owner = process_of(pid)?;
        let mut all = self.lock();
        if let Some(session) = all.get_mut(&ino) {
            // Begun already: as with F2FS, no error.
            return if session.is_of(pid) {
                Ok(())
            } else {
                Err(Errno::new(libc::EBUSY))
            };
        }
        let session = Session {
            owner,
            thread: pid,
            pieces: Vec::new(),
            touched: BTreeSet::new(),
            end: 0,
            kill: false,
        };
        all.insert(ino, session);
        self.count.store(all.len(), Ordering::Release);
        Ok(())
    }

    /// Ends a session; whether there was one of this thread's process.
    fn end(&self, ino: Ino, pid: u32) -> bool {
        let mut all = self.lock();
        let ours = all.get_mut(&ino).is_some_and(|s| s.is_of(pid));
        if ours {
            all.remove(&ino);
            self.count.store(all.len(), Ordering::Release);
        }
        ours
    }

    /// Whether there is a session of this thread's process.
    pub(super) fn is_open(&self, ino: Ino, pid: u32) -> bool {
        self.any() && (self.lock().get_mut(&ino)).is_some_and(|s| s.is_of(pid))
    }

    /// Nobody has one.
    ///
    /// # Errors
    /// `EBUSY`.
    pub(super) fn none(&self, ino: Ino) -> Result<(), Errno> {
        if self.any() && self.lock().contains_key(&ino) {
            return Err(Errno::new(libc::EBUSY));
        }
        Ok(())
    }

    /// Keeps a write of a thread whose process has a session; whether it has. At most `most` blocks.
    pub(super) fn keep(
        &self,
        (ino, pid): (Ino, u32),
        (offset, data): (u64, &[u8]),
        (kill, most): (bool, usize),
    ) -> Result<bool, Errno> {
        if !self.any() {
            return Ok(false);
        }
        let mut all = self.lock();
        let Some(session) = all.get_mut(&ino) else {
            return Ok(false);
        };
        if !session.is_of(pid) {
            return Ok(false);
        }
        let end = offset.checked_add(data.len() as u64);
        let end = end.ok_or(Errno::new(libc::EFBIG))?;
        let fresh = blocks(offset, data.len()).filter(|b| !session.touched.contains(b));
        if session.touched.len() + fresh.count() > most || session.pieces.len() >= PIECES_MAX {
            // SQLite then does it as on any other file system.
            return Err(Errno::new(libc::EFBIG));
        }
        session.touched.extend(blocks(offset, data.len()));
        session.pieces.push((offset, data.into()));
        session.end = session.end.max(end);
        session.kill |= kill;
        Ok(true)
    }

    /// The size that a file of `size` bytes shows.
    pub(super) fn size(&self, ino: Ino, size: u64) -> u64 {
        if !self.any() {
            return size;
        }
        self.lock().get(&ino).map_or(size, |s| size.max(s.end))
    }

    /// Puts what was kept over what was read: `n` bytes from `offset` on are in `room`. How many are afterwards.
    pub(super) fn show(&self, ino: Ino, offset: u64, room: &mut [u8], n: usize) -> usize {
        if !self.any() {
            return n;
        }
        let all = self.lock();
        let Some(session) = all.get(&ino) else {
            return n;
        };
        let there = session.end.saturating_sub(offset).min(room.len() as u64) as usize;
        let n = if there > n {
            room[n..there].fill(0);
            there
        } else {
            n
        };
        for (at, data) in &session.pieces {
            let from = offset.max(*at);
            let to = (offset + n as u64).min(at + data.len() as u64);
            if from < to {
                room[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
            }
        }
        n
    }
}

impl Edge {
    fn offers_atomic_writes(&self) -> Result<(), Errno> {
        if self.fs.e.options.atomic_writes {
            Ok(())
        } else {
            Err(Errno::new(libc::ENOTTY))
        }
    }

    /// `F2FS_IOC_GET_FEATURES`.
    pub(super) fn features(&self, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        out.put(&IoctlOut::default())?;
        out.put(&F2FS_FEATURE_ATOMIC_WRITE)
    }

    /// `F2FS_IOC_START_ATOMIC_WRITE`.
    pub(super) fn start_atomic(&self, header: &InHeader, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        if !self.fs.getattr(header.nodeid)?.inode.is_file() {
            return Err(Errno::new(libc::EINVAL));
        }
        self.fs.e.writable()?;
        self.atomic.begin(header.nodeid, header.pid)?;
        out.put(&IoctlOut::default())
    }

    /// `F2FS_IOC_COMMIT_ATOMIC_WRITE`: durable when it returns, in mode `commit` too. After an error what was
    /// written is still kept, until `F2FS_IOC_ABORT_ATOMIC_WRITE`.
    pub(super) fn commit_atomic(&self, header: &InHeader, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        let ino = header.nodeid;
        let (pieces, kill) = {
            let mut all = self.atomic.lock();
            let session = all.get_mut(&ino).ok_or(Errno::new(libc::EINVAL))?;
            if !session.is_of(header.pid) {
                return Err(Errno::new(libc::EINVAL));
            }
            (session.pieces.clone(), session.kill)
        };
        let views: Vec<(u64, &[u8])> = pieces.iter().map(|(at, d)| (*at, &d[..])).collect();
        self.fs.write_together(ino, &views, kill)?;
        self.atomic.end(ino, header.pid);
        // It knows of the writes, but not of the time that is theirs now, nor of privileges that are gone.
        self.kernel.attributes_changed(ino);
        self.fs.fsync(ino)?;
        out.put(&IoctlOut::default())
    }

    /// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
    pub(super) fn abort_atomic(&self, header: &InHeader, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        self.forget_atomic(header);
        out.put(&IoctlOut::default())
    }

    /// A process has closed a descriptor of a file, or has ended.
    pub(super) fn flush(&self, header: &InHeader) -> Answer {
        // It may have another one, through which it writes: what is being closed is not among them any more.
        let goes_on = || {
            let files = Files::of(header.pid, self.device.as_deref()?).ok()?;
            files.has_writer(header.nodeid).ok()
        };
        if self.atomic.any() && goes_on() != Some(true) {
            self.forget_atomic(header);
        }
        Ok(())
    }

    fn forget_atomic(&self, header: &InHeader) {
        if self.atomic.any() && self.atomic.end(header.nodeid, header.pid) {
            self.kernel.content_changed(header.nodeid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_shown_and_nothing_else() {
        let me = std::process::id();
        let all = Sessions::default();
        assert_eq!(all.keep((5, me), (0, b"x"), (false, 9)), Ok(false));
        all.begin(5, me).unwrap();
        all.begin(5, me).unwrap();
        assert_eq!(all.keep((6, me), (0, b"x"), (false, 9)), Ok(false));
        // The kernel's own writes belong to nobody, and init is not us.
        assert_eq!(all.keep((5, 0), (0, b"x"), (false, 9)), Ok(false));
        assert_eq!(all.keep((5, 1), (0, b"x"), (false, 9)), Ok(false));
        assert_eq!(all.keep((5, me), (2, b"abc"), (false, 9)), Ok(true));
        assert_eq!(all.keep((5, me), (4, b"de"), (false, 9)), Ok(true));
        let mut room = *b"01234567";
        assert_eq!(all.show(5, 0, &mut room, 3), 6);
        assert_eq!(&room, b"01abde67");
        let mut room = *b"012";
        assert_eq!(all.show(5, 3, &mut room, 2), 3);
        assert_eq!(&room, b"bde");
        assert_eq!(
            (all.size(5, 3), all.size(5, 100), all.size(6, 3)),
            (6, 100, 3)
        );
        assert!(all.none(5).is_err() && all.none(6).is_ok());
        assert!(!all.end(5, 1) && all.end(5, me) && !all.end(5, me));
        assert_eq!(all.size(5, 3), 3);
        assert!(all.none(5).is_ok());
    }

    #[test]
    fn no_more_than_one_record_can_say() {
        let me = std::process::id();
        let all = Sessions::default();
        all.begin(5, me).unwrap();
        assert_eq!(all.keep((5, me), (0, &[0; 8192]), (false, 3)), Ok(true));
        assert_eq!(all.keep((5, me), (4096, &[0; 4096]), (false, 3)), Ok(true));
        let more = all.keep((5, me), (8192, &[0; 4097]), (false, 3));
        assert_eq!(more.map_err(Errno::number), Err(libc::EFBIG));
        assert_eq!(all.keep((5, me), (8192, &[0; 4096]), (false, 3)), Ok(true));
    }
}
