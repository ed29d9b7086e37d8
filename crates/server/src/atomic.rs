//! Atomic writes in the ABI of F2FS, as SQLite uses them (`SQLITE_ENABLE_BATCH_ATOMIC_WRITE`): what is written
//! through an open file between `F2FS_IOC_START_ATOMIC_WRITE` and `F2FS_IOC_COMMIT_ATOMIC_WRITE` is kept here, and
//! becomes one record. Option `atomic_writes`.
//!
//! Until then no other process sees it. The kernel does not keep it either: with the option every file that is open
//! for writing bypasses the page cache ([`Server::opened`]). So there is nothing to take back when it is given up, and
//! nothing that could be executed before the file has lost its privileges.
//!
//! Where the mount goes on when this process dies, what is kept is lost all the same. So it is noted which open files have
//! a session ([`Requests::note_session`]), and to the next daemon these are sessions that can only be given up.

mod accounts;
mod kept;
mod lost;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use quayfs_fs::data::write::SIZE_MAX;
use quayfs_fs::{Asker, Writes};
use quayfs_fuse::wire::{F2FS_FEATURE_ATOMIC_WRITE, InHeader, IoctlOut, UNIQUE_RESEND};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::Ino;
use quayfs_restart::Requests;

use crate::errno::ToErrno;
use crate::service::Server;

use accounts::Accounts;
use kept::{BLOCK_COST, Kept};
use lost::Lost;

/// Pieces of one session with nothing between them that are kept at most; SQLite makes one for each page. What they
/// take in memory does not depend on their number, but the time of the commit does.
const PIECES_MAX: usize = 4096;
/// Memory that a session takes without anything in it.
const SESSION_COST: usize = 256;

/// What is kept of one open file.
type Session = Arc<Mutex<Kept>>;

/// What the kernel still remembers of an inode, as it was: its size then, and bytes that were written since.
#[derive(Debug)]
struct Stale {
    ino: Ino,
    size: u64,
    ranges: Vec<Range<u64>>,
}

/// All sessions of a mount, by the number of their open file.
#[derive(Debug)]
pub(super) struct Sessions {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Session>>,
    /// How many there are: mostly none.
    count: AtomicUsize,
    /// What they take in memory.
    accounts: Accounts,
    /// What the kernel is to forget as soon as a thread may wait for that.
    stale: Mutex<Vec<Stale>>,
    /// Those of daemons that have died.
    lost: Lost,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(1),
            open: RwLock::default(),
            count: AtomicUsize::new(0),
            accounts: Accounts::default(),
            stale: Mutex::default(),
            lost: Lost::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// Those of a mount that goes on when this process dies, and perhaps has done so: `requests` knows.
    pub(super) fn outlived(requests: Arc<Requests>) -> Self {
        Self {
            lost: Lost::of(requests),
            ..Self::default()
        }
    }

    /// A number for an open file that can be written to. Others have number 0.
    pub(super) fn number(&self) -> u64 {
        (self.lost.number()).unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn of(&self, fh: u64) -> Option<Session> {
        if fh == 0 || self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&fh).cloned()
    }

    /// Begins one on this user's account, because this request asks for it.
    fn begin(&self, fh: u64, user: u32, request: u64) -> Result<(), Errno> {
        self.lost.begins(fh, request)?;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // Begun already: as with F2FS, no error.
        if open.contains_key(&fh) {
            return Ok(());
        }
        if !self.accounts.take(user, SESSION_COST) {
            return Err(Errno::new(libc::ENOMEM));
        }
        if !self.lost.note(fh, request) {
            self.accounts.give_back(user, SESSION_COST);
            return Err(Errno::new(libc::ENOMEM));
        }
        open.insert(fh, Arc::new(Mutex::new(Kept::of(user))));
        self.count.store(open.len(), Ordering::Release);
        Ok(())
    }

    /// Ends a session whose lock the caller holds. A thread that has found it before sees that it is over.
    fn end(&self, fh: u64, kept: &mut Kept) {
        let cost = SESSION_COST + kept.len() * BLOCK_COST;
        self.accounts.give_back(kept.user, cost);
        kept.end();
        self.lost.forget(fh);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&fh);
        self.count.store(open.len(), Ordering::Release);
    }

    /// Gives a session up. `None`: there is none; else where its last write ended, or beyond.
    fn give_up(&self, fh: u64) -> Option<u64> {
        if self.lost.forget(fh) {
            return Some(u64::MAX);
        }
        let session = self.of(fh)?;
        let mut kept = lock(&session);
        let end = (!kept.over).then_some(kept.upto)?;
        self.end(fh, &mut kept);
        Some(end)
    }

    /// Keeps a write through an open file that has a session; whether it has. `size`: of the file, where the
    /// write is to go to the end of it. At most `most` blocks.
    pub(super) fn buffer_write(
        &self,
        fh: u64,
        (offset, data): (u64, &[u8]),
        size: impl FnOnce() -> Result<Option<u64>, Errno>,
        (kill, most): (bool, usize),
    ) -> Result<bool, Errno> {
        self.lost.check(fh)?;
        let Some(session) = self.of(fh) else {
            return Ok(false);
        };
        let mut kept = lock(&session);
        if kept.over {
            return Ok(false);
        }
        let too_big = Errno::new(libc::EFBIG);
        let offset = size()?.map_or(offset, |size| size.max(kept.upto));
        let end = offset.checked_add(data.len() as u64).ok_or(too_big)?;
        if end > i64::MAX.cast_unsigned() {
            return Err(too_big);
        }
        let (fresh, write) = (kept.fresh(offset, data.len()), (offset, data));
        // SQLite then does it as on any other file system.
        if kept.len() + fresh > most || kept.pieces_with(write) > PIECES_MAX {
            return Err(too_big);
        }
        if !self.accounts.take(kept.user, fresh * BLOCK_COST) {
            return Err(too_big);
        }
        if !data.is_empty() {
            kept.put(write);
        }
        kept.kill |= kill;
        Ok(true)
    }
}

impl Server {
    /// Whether the calls of F2FS, and those of XFS, are there at all.
    ///
    /// # Errors
    /// `ENOTTY` if not.
    pub(super) fn offers_atomic_writes(&self) -> Result<(), Errno> {
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
    pub(super) fn start_atomic(&self, header: &InHeader, fh: u64, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        if !self.fs.getattr(header.nodeid).errno()?.inode.is_file() {
            return Err(Errno::new(libc::EINVAL));
        }
        if fh == 0 {
            return Err(Errno::new(libc::EBADF));
        }
        self.fs.e.writable().errno()?;
        self.fs.may_open(header.nodeid, Writes::Anywhere).errno()?;
        let request = header.unique & !UNIQUE_RESEND;
        self.atomic
            .begin(fh, self.asker(header).ids().uid, request)?;
        out.put(&IoctlOut::default())
    }

    /// `F2FS_IOC_COMMIT_ATOMIC_WRITE`: durable when it returns, in mode `commit` too. After an error what was
    /// written is still kept, until `F2FS_IOC_ABORT_ATOMIC_WRITE`. `patient`: whether it may wait for the kernel.
    pub(super) fn commit_atomic(
        &self,
        header: &InHeader,
        (fh, patient): (u64, bool),
        out: &mut Out<'_>,
    ) -> Answer {
        self.offers_atomic_writes()?;
        let (ino, none) = (header.nodeid, Errno::new(libc::EINVAL));
        self.atomic.lost.check(fh)?;
        let session = self.atomic.of(fh).ok_or(none)?;
        if patient {
            // Else pages that were changed through a mapping would come over it afterwards, with what
            // was around the change.
            let ranges = lock(&session).ranges();
            for range in ranges {
                self.kernel.content_changed(ino, range);
            }
        }
        let stale = {
            // Nothing here waits for the kernel: writes through the same file wait meanwhile.
            let mut kept = lock(&session);
            if kept.over {
                return Err(none);
            }
            let stale = Stale {
                ino,
                size: self.fs.getattr(ino).errno()?.inode.size,
                ranges: kept.ranges(),
            };
            self.fs
                .write_together(ino, &kept.pieces(), kept.kill)
                .errno()?;
            if kept.len() == 0 {
                // It had nothing to write, and the next daemon would find no session and no record.
                quayfs_restart::without_record();
            }
            self.atomic.end(fh, &mut kept);
            stale
        };
        // The mode first: privileges may be gone.
        self.kernel.attributes_changed(ino);
        if patient {
            self.forget(&stale);
        } else {
            lock(&self.atomic.stale).push(stale);
        }
        self.fs.fsync(ino).errno()?;
        out.put(&IoctlOut::default())
    }

    /// As [`Server::commit_atomic`], where an earlier daemon has done it and not said so. What the kernel had to forget is
    /// not known any more: all of the file.
    pub(super) fn committed_before(&self, ino: Ino, (fh, patient): (u64, bool)) -> Answer {
        self.atomic.lost.forget(fh);
        self.kernel.attributes_changed(ino);
        if patient {
            let all = 0..SIZE_MAX;
            self.forget(&Stale {
                ino,
                size: 0,
                ranges: vec![all],
            });
        }
        self.fs.fsync(ino).errno()
    }

    /// Makes the kernel forget what was written over, and see that the file has grown. Waits for the kernel.
    fn forget(&self, stale: &Stale) {
        let size = self.fs.getattr(stale.ino).map_or(0, |now| now.inode.size);
        if size > stale.size {
            self.kernel.grown(stale.ino, size);
        }
        for range in &stale.ranges {
            self.kernel.content_changed(stale.ino, range.clone());
        }
    }

    /// Makes the kernel forget what commits that could not wait for it have left.
    pub(super) fn catch_up_with_commits(&self) {
        let left = std::mem::take(&mut *lock(&self.atomic.stale));
        for stale in &left {
            self.forget(stale);
        }
    }

    /// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
    pub(super) fn abort_atomic(&self, header: &InHeader, fh: u64, out: &mut Out<'_>) -> Answer {
        self.offers_atomic_writes()?;
        self.give_up(header.nodeid, fh);
        out.put(&IoctlOut::default())
    }

    /// What was written through this open file and not committed never was. The kernel may believe in a size
    /// that it would have had.
    pub(super) fn give_up(&self, ino: Ino, fh: u64) {
        if self.atomic.give_up(fh).is_some_and(|end| end > 0) {
            self.kernel.attributes_changed(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use quayfs_layout::BLOCK;

    use super::*;

    fn begin(all: &Sessions, fh: u64) {
        all.begin(fh, 7, 2).unwrap();
    }

    fn keep(all: &Sessions, fh: u64, at: u64, data: &[u8]) -> Result<bool, i32> {
        all.buffer_write(fh, (at, data), || Ok(None), (false, 3))
            .map_err(Errno::number)
    }

    fn taken(all: &Sessions) -> usize {
        all.accounts.taken()
    }

    #[test]
    fn a_session_is_that_of_an_open_file() {
        let all = Sessions::default();
        let (one, other) = (all.number(), all.number());
        assert_eq!(keep(&all, one, 0, b"x"), Ok(false));
        begin(&all, one);
        assert_eq!(keep(&all, other, 0, b"x"), Ok(false));
        assert_eq!(keep(&all, 0, 0, b"x"), Ok(false));
        assert_eq!(keep(&all, one, 5, b"kept"), Ok(true));
        begin(&all, one);
        assert_eq!(taken(&all), SESSION_COST + BLOCK_COST);
        assert_eq!(all.give_up(other), None);
        assert_eq!(all.give_up(one), Some(9));
        assert_eq!(all.give_up(one), None);
        assert_eq!(keep(&all, one, 0, b"x"), Ok(false));
        assert_eq!(taken(&all), 0);
    }

    #[test]
    fn what_is_appended_goes_to_the_end_that_the_session_has() {
        let all = Sessions::default();
        begin(&all, 1);
        let append = |size, data: &[u8]| {
            let kept = all.buffer_write(1, (0, data), || Ok(Some(size)), (false, 3));
            kept.map_err(Errno::number)
        };
        assert_eq!(append(100, b"one"), Ok(true));
        assert_eq!(append(100, b"two"), Ok(true));
        assert_eq!(append(200, b"three"), Ok(true));
        let session = all.of(1).unwrap();
        let kept = lock(&session);
        assert_eq!(kept.pieces(), [(100, &b"onetwo"[..]), (200, b"three")]);
    }

    #[test]
    fn no_more_than_one_record_can_say() {
        let all = Sessions::default();
        begin(&all, 1);
        assert_eq!(keep(&all, 1, 0, &[0; 8192]), Ok(true));
        assert_eq!(keep(&all, 1, 4096, &[0; 4096]), Ok(true));
        assert_eq!(keep(&all, 1, 8192, &[0; 4097]), Err(libc::EFBIG));
        assert_eq!(keep(&all, 1, u64::MAX, b"xx"), Err(libc::EFBIG));
        assert_eq!(keep(&all, 1, 8192, &[0; 4096]), Ok(true));
        assert_eq!(taken(&all), SESSION_COST + 3 * BLOCK_COST);
    }

    #[test]
    fn no_more_pieces_than_a_commit_can_bear() {
        let all = Sessions::default();
        begin(&all, 1);
        for i in 0..PIECES_MAX as u64 {
            assert_eq!(keep(&all, 1, 2 * i, b"x"), Ok(true));
        }
        assert_eq!(keep(&all, 1, 2 * BLOCK as u64, b"x"), Err(libc::EFBIG));
        // One that fills a gap is none more.
        assert_eq!(keep(&all, 1, 1, b"x"), Ok(true));
        assert_eq!(keep(&all, 1, 2 * BLOCK as u64, b"x"), Ok(true));
    }

    #[test]
    fn what_is_kept_is_on_the_account_of_who_has_begun() {
        let all = Sessions::default();
        let mut files = 1;
        let fill = |fh: u64, user| {
            all.begin(fh, user, 2).is_ok() && keep(&all, fh, 0, &[0; 3 * BLOCK]) == Ok(true)
        };
        while fill(files, 7) {
            files += 1;
        }
        assert!(fill(1 << 32, 8), "another user's");
        assert!(!fill(1 << 33, 7));
        for fh in (0..=files).chain([1 << 32, 1 << 33]) {
            all.give_up(fh);
        }
        assert_eq!(taken(&all), 0);
        assert!(fill(1, 7));
    }
}
