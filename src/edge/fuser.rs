//! Requests from `/dev/fuse`, by the `fuser` crate.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quayfs_layout::inode::{Inode, ROOT, S_IFMT, S_IFREG};

use crate::config::OpenPolicy;
use crate::edge::convert::{
    self, caller, falloc_mode, file_attr, generation, kind, open_flags, rename_flags, set_time,
    set_xattr,
};
use crate::edge::errno::errno;
use crate::edge::listing;
use crate::edge::session::{FOREVER, negotiate};
use crate::error::FsError;
use crate::fs::attr::{from_system, mode_of_kind};
use crate::fs::{Attr, Fs, SetAttr};
use crate::metrics::Metrics;

/// Name of the attribute of the root directory that holds the mount's status.
pub const STATUS_XATTR: &str = "quayfs.status";
/// Name of the attribute of the root directory that starts and stops a scrub, and holds its
/// report; `quayfs.scrub.N` holds the report from finding N on.
pub const SCRUB_XATTR: &str = "quayfs.scrub";

/// The operation layer, as the crate calls it.
pub(super) struct Edge {
    pub(super) fs: Arc<Fs>,
    /// Called once, when the kernel has asked for the first time.
    pub(super) started: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Edge {
    fn count(&self) {
        Metrics::add(&self.fs.e.metrics.requests, 1);
    }

    fn entry(&self, result: Result<Attr, FsError>, reply: ReplyEntry) {
        self.count();
        match result {
            Ok(a) => reply.entry(&FOREVER, &file_attr(a.ino, &a.inode), generation(&a)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn attr(&self, result: Result<Attr, FsError>, reply: ReplyAttr) {
        self.count();
        match result {
            Ok(a) => reply.attr(&FOREVER, &file_attr(a.ino, &a.inode)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn empty(&self, result: Result<(), FsError>, reply: ReplyEmpty) {
        self.count();
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn xattr(&self, result: Result<Vec<u8>, FsError>, size: u32, reply: ReplyXattr) {
        self.count();
        match result {
            Ok(v) if size == 0 => reply.size(v.len() as u32),
            Ok(v) if v.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(v) => reply.data(&v),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Whether every operation was durable when it returned, so that `fsync` need not be sent. With the
    /// kernel collecting writes it is sent all the same: Linux forgets about pages that it could not
    /// write to a daemon that is dead, so that `fsync` would succeed where nobody answers it.
    fn sync_is_needless(&self) -> bool {
        self.fs.sync_is_free() && !self.fs.e.options.writeback_cache
    }

    /// Mode `commit`: a write to a file opened with `O_SYNC` or `O_DSYNC` is durable when it
    /// returns.
    fn sync_write(&self, ino: INodeNo, flags: OpenFlags) -> Result<(), FsError> {
        if flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            self.fs.fsync(ino.0)
        } else {
            Ok(())
        }
    }
}

impl Filesystem for Edge {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(&self.fs, config)?;
        if let Some(started) = self.started.take() {
            started();
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(parent.0, name.as_bytes()) {
            Err(FsError::NoEntry) => {
                self.count();
                // Inode 0: the kernel remembers that the name does not exist.
                let none = file_attr(0, &Inode::default());
                reply.entry(&FOREVER, &none, Generation(0));
            }
            other => self.entry(other, reply),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.count();
        self.fs.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(self.fs.getattr(ino.0), reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(from_system),
        };
        let result = (|| {
            if size.is_some() || uid.is_some() || gid.is_some() {
                self.fs.drop_capabilities(ino.0)?;
            }
            // The flag that says so does not come through; root keeps the bits (CAP_FSETID).
            self.fs.setattr(ino.0, &set, req.uid() != 0)
        })();
        self.attr(result, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.count();
        match self.fs.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(
            self.fs
                .mknod(caller(req), parent.0, name.as_bytes(), mode, rdev),
            reply,
        );
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(
            self.fs.mkdir(caller(req), parent.0, name.as_bytes(), mode),
            reply,
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.fs.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.fs.rmdir(parent.0, name.as_bytes()), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        self.entry(
            self.fs
                .symlink(caller(req), parent.0, link_name.as_bytes(), target),
            reply,
        );
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = match rename_flags(flags) {
            Ok(flags) => flags,
            Err(e) => return reply.error(e),
        };
        let (old, new) = (
            (parent.0, name.as_bytes()),
            (newparent.0, newname.as_bytes()),
        );
        self.empty(self.fs.rename(old, new, flags), reply);
    }

    fn link(
        &self,
        _: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.entry(self.fs.link(ino.0, newparent.0, newname.as_bytes()), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.count();
        if self.fs.e.options.open == OpenPolicy::Elide {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), open_flags(flags.0));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.count();
        Metrics::add(&self.fs.e.metrics.reads, 1);
        match self.fs.read(ino.0, offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.count();
        Metrics::add(&self.fs.e.metrics.writes, 1);
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let result = (|| {
            self.fs.drop_capabilities(ino.0)?;
            self.fs.write(ino.0, offset, data, kill)?;
            self.sync_write(ino, flags)
        })();
        match result {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Closing a file makes nothing durable that was not: never sent again after this answer.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.count();
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.count();
        self.fs.release(ino.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.sync_is_needless() {
            // Never sent again after this answer.
            self.count();
            return reply.error(Errno::ENOSYS);
        }
        self.empty(self.fs.fsync(ino.0), reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No state per open directory: the kernel need not ask.
        self.count();
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.count();
        let result = self.fs.readdir(ino.0, offset, |e| {
            let kind = kind(mode_of_kind(e.kind));
            !reply.add(INodeNo(e.ino), e.cookie, kind, OsStr::from_bytes(&e.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.count();
        match listing::with_attributes(&self.fs, ino.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.sync_is_needless() {
            self.count();
            return reply.error(Errno::ENOSYS);
        }
        self.empty(self.fs.fsync(ino.0), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.count();
        let s = self.fs.statfs();
        reply.statfs(
            s.blocks,
            s.free,
            s.free,
            s.files,
            s.files_free,
            s.block_size,
            s.name_max,
            s.block_size,
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        if ino.0 == ROOT && name == SCRUB_XATTR {
            return self.empty(self.fs.scrub_command(caller(req), value), reply);
        }
        match set_xattr(flags) {
            Ok(how) => self.empty(self.fs.setxattr(ino.0, name.as_bytes(), value, how), reply),
            Err(e) => reply.error(e),
        }
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if ino.0 == ROOT && name == STATUS_XATTR {
            let json = serde_json::to_vec(&self.fs.status()).map_err(FsError::io);
            return self.xattr(json, size, reply);
        }
        if ino.0 == ROOT
            && let Some(from) = convert::scrub_report(name)
        {
            return self.xattr(self.fs.scrub_report(caller(req), from), size, reply);
        }
        self.xattr(self.fs.getxattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.xattr(self.fs.listxattr(ino.0), size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.fs.removexattr(ino.0, name.as_bytes()), reply);
    }

    /// Never sent: the kernel checks permissions itself (`default_permissions`).
    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        self.count();
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.count();
        let mode = mode & !S_IFMT | S_IFREG;
        match self
            .fs
            .mknod(caller(req), parent.0, name.as_bytes(), mode, 0)
        {
            Ok(a) => reply.created(
                &FOREVER,
                &file_attr(a.ino, &a.inode),
                generation(&a),
                FileHandle(0),
                open_flags(flags),
            ),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match falloc_mode(mode) {
            Ok(mode) => self.empty(self.fs.fallocate(ino.0, mode, offset, length), reply),
            Err(e) => reply.error(e),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.count();
        let whence = match convert::whence(whence) {
            Ok(whence) => whence,
            Err(e) => return reply.error(e),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.fs.seek(ino.0, whence, offset) {
            Ok(at) => reply.offset(at.cast_signed()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.count();
        let result = (|| {
            self.fs.drop_capabilities(ino_out.0)?;
            self.fs
                .copy_range((ino_in.0, offset_in), (ino_out.0, offset_out), len)
        })();
        match result {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _cmd: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        self.count();
        reply.error(Errno::ENOTTY);
    }
}
