//! The operation layer: a file system as a library, without a kernel.
//!
//! One file per family of operations. Each operation reserves what it needs, takes its locks in
//! the order of [`locks`], changes images and pages through a transaction, appends its record,
//! and publishes. The server decodes requests into these calls and decides nothing.
//!
//! # Embedding
//!
//! A program can use a volume as a library, while no other process has it mounted. `examples/embed.rs` is one.
//!
//! ```no_run
//! use quayfs_fs::volume::{Access, Volume};
//! use quayfs_fs::{Caller, Fs, MountOptions, S_IFREG};
//! use quayfs_mkfs::{MkfsOptions, mkfs};
//! use std::error::Error;
//! use std::path::Path;
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let path = Path::new("volume");
//!     let size = Some(64 << 20);
//!     mkfs(path, &MkfsOptions { size, ..MkfsOptions::default() })?; // as `quayfs mkfs volume --size 64M`
//!     let volume = Volume::open(path, Access::ReadWrite, Duration::ZERO)?;
//!     let fs = Fs::mount(volume, &MountOptions::default())?;
//!     let me = Caller { uid: 1000, gid: 1000, umask: 0o022 };
//!     let file = fs.mknod(me, fs.root(), b"file", S_IFREG | 0o644, 0)?.ino;
//!     fs.write(file, 0, b"content", false)?;
//!     fs.fsync(file)?;
//!     assert_eq!(fs.read(file, 0, 4096)?, b"content");
//!     fs.shutdown()?;
//!     Ok(())
//! }
//! ```
//!
//! What the kernel does for mounts is the program's business here:
//!
//! * It walks along paths, name by name ([`Fs::lookup`]), and checks permissions; the library checks none.
//! * What returns an inode that was looked up or made counts as a lookup. As long as not all are taken back
//!   ([`Fs::forget`]), the inode stays even without a name, as an open file does.
//! * It ends a mount with [`Fs::shutdown`]. Without that, the next one recovers as after a crash.
//!
//! All calls may be made from any thread, and block where they wait for a medium, room, or a lock. Each is atomic,
//! but for those that `docs/semantics.md` names: it is done, or has failed and left nothing. A call that has returned is durable at once if [`Fs::sync_is_free`] says so, else
//! from the next [`Fs::fsync`], of whichever file, or after `commit=` seconds ([`MountOptions`]). After a failure of a
//! medium everything that would change something fails with [`FsError::ReadOnly`] ([`Fs::has_failed`]).
//!
//! What is public beyond what is named here is for the server, the checker and tests. `docs/embedding.md` says more,
//! `docs/versions.md` what versions promise.

pub mod attr;
pub mod closing;
pub mod data;
pub mod extents;
pub mod locks;
mod ops;
pub mod predecessor;
pub mod protect;
pub mod recovery;
pub mod scrub;
mod standstill;
mod status;
pub mod volume;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use quayfs_background::{Background, Staged, Threads, guarded};
use quayfs_layout::dirent;
use quayfs_layout::inode::{Inode, ROOT, S_IFDIR};
use quayfs_pmem::{Backend, Region};
use quayfs_store::error::Result;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::txn::Edit;
use quayfs_sync::Mutex;
use quayfs_sync::thread::{self, JoinHandle};
use quayfs_sync::time::{self, Instant};

pub use attr::{Access, Asker, Attr, Caller, SetAttr, SetTime};
pub use ops::create::LINK_MAX;
pub use ops::data::{FallocMode, Whence, WriteAt, WriteOptions};
pub use ops::dirs::DirEntry;
pub use ops::exchange::{Exchange, Freshness};
pub use ops::flags::{SetFlags, Writes};
pub use ops::lookup::TARGET_MAX;
pub use ops::quota::{QUOTAS_MAX, Quota, SetQuota};
pub use ops::rename::RenameFlags;
pub use ops::statfs::StatFs;
pub use ops::xattr::{Cause, SetXattr};
pub use standstill::Resized;
pub use status::{Latencies, Status, uuid_text};

// What the calls take and return, for those that use nothing else of the crates below.
pub use quayfs_layout::Ino;
pub use quayfs_layout::inode::{S_IFBLK, S_IFCHR, S_IFIFO, S_IFREG, S_IFSOCK};
pub use quayfs_layout::quota::Subject;
pub use quayfs_options::MountOptions;
pub use quayfs_store::error::FsError;

use crate::predecessor::Predecessor;
use crate::recovery::MountError;
use crate::scrub::Scrubber;
use crate::volume::Volume;

/// What is left of an earlier mount must not go on, but where this one goes on with it. A daemon of an earlier build has left
/// no token.
fn fence_off_others(volume: &mut Volume) -> std::result::Result<(), MountError> {
    let token = volume
        .predecessor()
        .and_then(|last| last.requests.fencing_token());
    match token {
        Some(_) => Ok(()),
        None => Ok(volume.renew_fencing_token().map_err(FsError::from)?),
    }
}

/// A mounted volume.
pub struct Fs {
    /// What all operations share, and what works beside them.
    pub e: Arc<Background>,
    pub(crate) volume: Volume,
    rename: locks::RenameLock,
    threads: Mutex<Option<Threads>>,
    chores: Mutex<Option<JoinHandle<()>>>,
    reaper: Mutex<Option<JoinHandle<()>>>,
    dead: AtomicBool,
    /// When it began to serve, by either clock.
    started: SystemTime,
    began: Instant,
    /// The file that its process logs to, for those who ask.
    pub log: OnceLock<PathBuf>,
    /// Says whether a part of the volume is being moved, for those who ask.
    pub moving: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    ends_with_daemon: OnceLock<String>,
    successor: standstill::Successor,
    /// Verifies what is at rest, when asked to.
    pub scrub: Scrubber,
}

impl Fs {
    /// Recovers a volume and starts the background threads. When it returns, operations are
    /// answered.
    ///
    /// # Errors
    /// [`MountError`]; what recovery has done until then is durable or will be done again.
    pub fn mount(
        mut volume: Volume,
        options: &MountOptions,
    ) -> std::result::Result<Arc<Self>, MountError> {
        fence_off_others(&mut volume)?;
        let engine = Arc::new(Background::new(recovery::recover(&volume, options)?));
        let threads = Threads::start(&engine)?;
        let fs = Self::serve(volume, options, engine, Some(threads));
        if !options.read_only {
            fs.start_chores()?;
        }
        Ok(fs)
    }

    /// As [`Fs::mount`] without background threads, for tools and tests: digest, rounds and zero
    /// batches run when they are called ([`quayfs_background::digest::digest_all`],
    /// [`quayfs_background::checkpoint::round`], [`quayfs_background::checkpoint::zero_freed`]), and within an
    /// operation that runs short.
    pub fn mount_quiet(
        mut volume: Volume,
        options: &MountOptions,
    ) -> std::result::Result<Arc<Self>, MountError> {
        fence_off_others(&mut volume)?;
        let engine = Arc::new(Background::new(recovery::recover(&volume, options)?));
        engine.reclaim_inline();
        let fs = Self::serve(volume, options, engine, None);
        if !options.read_only {
            fs.reap_unknown_orphans();
        }
        Ok(fs)
    }

    fn serve(
        volume: Volume,
        options: &MountOptions,
        engine: Arc<Background>,
        threads: Option<Threads>,
    ) -> Arc<Self> {
        let was_shut_down = volume
            .predecessor()
            .is_some_and(|last| last.requests.is_shut_down());
        let fs = Arc::new(Self {
            e: engine,
            volume,
            rename: locks::RenameLock::default(),
            threads: Mutex::new(threads),
            chores: Mutex::default(),
            reaper: Mutex::default(),
            dead: AtomicBool::new(was_shut_down),
            started: time::now(),
            began: Instant::now(),
            log: OnceLock::new(),
            moving: OnceLock::new(),
            ends_with_daemon: OnceLock::new(),
            successor: standstill::Successor::default(),
            scrub: Scrubber::default(),
        });
        if !options.read_only {
            fs.resume_truncates();
        }
        fs
    }

    /// Starts what may take its time while requests are answered: orphans are freed, first those of the
    /// previous life, and the region is faulted in.
    fn start_chores(self: &Arc<Self>) -> std::io::Result<()> {
        // A caller that forgets a mount instead of ending it leaves a thread behind, but no lock of its volume.
        let (fs, engine) = (Arc::downgrade(self), Arc::clone(&self.e));
        let reaper = thread::Builder::new()
            .name("quayfs-reap".into())
            .spawn(move || {
                guarded(&engine, "quayfs-reap", |engine| {
                    engine.serve_orphans(|ino| {
                        if let Some(fs) = fs.upgrade().filter(|fs| fs.alive().is_ok()) {
                            fs.reap_unless_known(ino);
                        }
                    });
                });
            })?;
        *self.reaper.lock() = Some(reaper);
        let fs = Arc::clone(self);
        let chores = thread::Builder::new()
            .name("quayfs-chores".into())
            .spawn(move || {
                guarded(&fs.e, "quayfs-chores", |e| {
                    if e.is_read_only() {
                        return;
                    }
                    fs.reap_unknown_orphans();
                    if is_allocated(&e.region) {
                        e.region.prefault(e.stopping());
                    }
                });
            })?;
        *self.chores.lock() = Some(chores);
        Ok(())
    }

    /// Waits until the orphans of the previous life and those that were forgotten are freed, for tools and
    /// tests that count what is free.
    pub fn finish_chores(&self) {
        let chores = self.chores.lock().take();
        if chores.is_some_and(|c| c.join().is_err()) {
            tracing::error!("the thread for chores panicked");
        }
        self.e.await_orphans();
    }

    fn end_chores(&self) {
        self.e.stop_chores();
        self.scrub.end();
        self.finish_chores();
        let reaper = self.reaper.lock().take();
        if reaper.is_some_and(|r| r.join().is_err()) {
            tracing::error!("the thread that frees orphans panicked");
        }
    }

    /// Says why the mount ends when this process does; not said, another process goes on with it. What is said first
    /// counts.
    pub fn ends_with_daemon(&self, why: &str) {
        let _ = self.ends_with_daemon.set(why.into());
    }

    /// What [`Fs::ends_with_daemon`] was told, or what has become of the process that would start the next daemon; or that this
    /// one would not find the volume.
    pub fn why_it_ends_with_daemon(&self) -> Option<String> {
        if self.ends_with_daemon.get().is_none()
            && let Some(why) = self.successor.why_lost()
            && self.ends_with_daemon.set(why.into()).is_ok()
        {
            tracing::warn!("from now on the mount ends with this daemon: {why}");
        }
        let gone = || match &self.unlinked()[..] {
            [] => None,
            parts => Some(format!(
                "another one would not find {}",
                parts.join(" and ")
            )),
        };
        self.ends_with_daemon.get().cloned().or_else(gone)
    }

    /// Whether a failure has made the mount read-only.
    pub fn has_failed(&self) -> bool {
        self.e.is_read_only() && !self.e.options.read_only
    }

    /// Why it is read-only though that was not asked for, if a medium is write-protected.
    pub fn protected(&self) -> Option<&str> {
        self.volume.protected()
    }

    /// The daemon whose mount goes on.
    pub fn predecessor(&self) -> Option<&Predecessor> {
        self.volume.predecessor()
    }

    /// The volume's directory.
    pub fn volume_path(&self) -> &Path {
        self.volume.path()
    }

    /// Finishes everything: orphans are freed, all staged blocks are on the data device, the
    /// volume is marked clean. Nothing may call operations any more. After [`Fs::kill`] it is left as
    /// it is.
    pub fn shutdown(&self) -> Result<()> {
        self.shut_down(Staged::Drain)
    }

    /// As [`Fs::shutdown`], but staged blocks are left in the region where it is durable; whether they are. The volume is
    /// clean all the same: the next mount has nothing to recover, and moves them in its time.
    pub fn shutdown_leaving_staged(&self) -> Result<bool> {
        let staged = match self.leaves_staged() {
            true => Staged::Leave,
            false => Staged::Drain,
        };
        self.shut_down(staged).map(|()| staged == Staged::Leave)
    }

    /// Whether staged blocks may stay in the region when the mount ends: not where that is lost with the machine.
    pub fn leaves_staged(&self) -> bool {
        self.e.region.backend() != Backend::Volatile
    }

    fn shut_down(&self, staged: Staged) -> Result<()> {
        if self.alive().is_err() {
            tracing::warn!("the mount was shut down: the next one recovers the volume");
            self.abandon();
            return Ok(());
        }
        self.end_chores();
        let mut threads = self.threads.lock().take();
        if !self.e.is_read_only() {
            self.reap_all_orphans();
        }
        self.e.stop();
        if let Some(t) = &mut threads {
            t.join();
        }
        let closed = self.e.close(staged);
        // With something staged there is nothing to keep, and the device may not answer.
        if closed.is_ok() && !self.e.is_read_only() && staged == Staged::Drain {
            self.back_up();
        }
        if let Some(t) = threads {
            t.dismiss(&self.e);
        }
        closed
    }

    /// What the superblock says of a volume that is closed is kept on the data device as well. It is closed without that.
    fn back_up(&self) {
        let kept = crate::volume::backup::store(&self.e.region, &*self.e.device, &self.e.config);
        if let Err(e) = kept {
            tracing::warn!("the copy of the journal superblock is not written: {e}");
        }
    }

    /// Ends the background threads and finishes nothing: what is on the media afterwards is what
    /// the death of the daemon would leave there.
    pub fn abandon(&self) {
        self.end_chores();
        self.e.stop();
        if let Some(mut t) = self.threads.lock().take() {
            t.join();
            t.dismiss(&self.e);
        }
    }

    fn handle(&self, ino: Ino) -> Result<Arc<InodeHandle>> {
        self.e.used();
        self.e.inodes.get(&self.e.nodes, ino)
    }

    /// An inode's handle, and what `f` finds in its image.
    fn handle_and<T>(
        &self,
        ino: Ino,
        f: impl FnOnce(&Inode) -> T,
    ) -> Result<(Arc<InodeHandle>, T)> {
        self.e.used();
        self.e.inodes.get_and(&self.e.nodes, ino, f)
    }

    /// The root directory's number.
    pub fn root(&self) -> Ino {
        ROOT
    }
}

/// Whether all of the region's file is there: faulting in a sparse one would allocate it.
fn is_allocated(region: &Region) -> bool {
    // What is open, not what has its name: this thread may not be allowed to go where that is.
    let meta = region.metadata().ok().flatten();
    meta.is_some_and(|m| !m.is_file() || m.blocks() * 512 >= m.len())
}

/// Checks a name that is to be created or removed.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(FsError::Invalid);
    }
    if name.len() > dirent::NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    Ok(())
}

/// The image of a directory that can still be used.
fn live_dir(handle: &InodeHandle) -> Result<Inode> {
    let dir = handle.image();
    check_dir(&dir)?;
    Ok(dir)
}

/// A directory that can still be used, to be changed. The caller holds its operation lock exclusively.
fn edit_dir(handle: &InodeHandle) -> Result<Edit<'_>> {
    Ok(Edit::exclusive(handle, live_dir(handle)?))
}

/// Checks that a directory can still be used.
fn check_dir(dir: &Inode) -> Result<()> {
    if dir.mode == 0 {
        return Err(FsError::Stale);
    }
    if dir.kind() != S_IFDIR {
        return Err(FsError::NotDir);
    }
    if dir.nlink == 0 {
        return Err(FsError::NoEntry);
    }
    Ok(())
}
