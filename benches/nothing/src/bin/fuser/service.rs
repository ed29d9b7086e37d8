//! Answers, as those of the other one.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quayfs_fuse::wire::AttrOf;
use quayfs_nothing::tree::{Node, Tree, now};

/// How long names and attributes are valid: for ever, as the kernel counts.
const FOREVER: Duration = Duration::from_secs(1 << 30);
const REQUEST_MAX: u32 = 1 << 20;
const BLOCKS: u64 = 1 << 22;

/// Nothing behind `fuser`.
pub struct Nothing {
    pub tree: Tree,
    /// `open` is answered with `ENOSYS`.
    pub elide: bool,
}

fn err(number: i32) -> Errno {
    Errno::from_i32(number)
}

fn time(sec: u64, nsec: u32) -> SystemTime {
    UNIX_EPOCH + Duration::new(sec, nsec)
}

fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn attributes(a: &AttrOf) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime, a.atimensec),
        mtime: time(a.mtime, a.mtimensec),
        ctime: time(a.ctime, a.ctimensec),
        crtime: UNIX_EPOCH,
        kind: kind(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

/// What has no name: the kernel remembers that.
fn absent() -> FileAttr {
    attributes(&AttrOf::default())
}

fn put_entry(found: Result<AttrOf, i32>, reply: ReplyEntry) {
    match found {
        Ok(attr) => reply.entry(&FOREVER, &attributes(&attr), Generation(0)),
        Err(number) => reply.error(err(number)),
    }
}

fn put_empty(done: Result<(), i32>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(number) => reply.error(err(number)),
    }
}

fn open_flags(flags: i32) -> FopenFlags {
    if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

impl Nothing {
    fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.tree.node(ino.0).ok_or(err(libc::ESTALE))
    }

    fn make(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Result<AttrOf, i32> {
        let ids = (r.uid(), r.gid());
        self.tree
            .create(parent.0, name.as_bytes(), mode, ids, rdev, b"")
    }
}

impl Filesystem for Nothing {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wish = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        wish.set(InitFlags::FUSE_NO_OPEN_SUPPORT, self.elide);
        let failed = |what: &str| io::Error::other(format!("the kernel does not take {what}"));
        let has = config.capabilities();
        config
            .add_capabilities(wish & has)
            .map_err(|_| failed("these flags"))?;
        config
            .set_max_write(REQUEST_MAX)
            .map_err(|_| failed("1 MiB"))?;
        config
            .set_max_background(64)
            .map_err(|_| failed("64 requests"))?;
        println!("ready");
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree.lookup(parent.0, name.as_bytes()) {
            Ok(Some(attr)) => reply.entry(&FOREVER, &attributes(&attr), Generation(0)),
            Ok(None) => reply.entry(&FOREVER, &absent(), Generation(0)),
            Err(number) => reply.error(err(number)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino) {
            Ok(node) => reply.attr(&FOREVER, &attributes(&node.attr())),
            Err(e) => reply.error(e),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        if let Some(size) = size {
            self.tree.resize(&node, size);
        }
        let mut attr = node.attr.lock();
        if let Some(mode) = mode {
            attr.mode = attr.mode & libc::S_IFMT | mode & 0o7777;
        }
        attr.uid = uid.unwrap_or(attr.uid);
        attr.gid = gid.unwrap_or(attr.gid);
        let when = |t: TimeOrNow| match t {
            TimeOrNow::Now => now(),
            TimeOrNow::SpecificTime(t) => {
                let since = t.duration_since(UNIX_EPOCH).unwrap_or_default();
                (since.as_secs(), since.subsec_nanos())
            }
        };
        if let Some(t) = atime {
            (attr.atime, attr.atimensec) = when(t);
        }
        if let Some(t) = mtime.or(size.map(|_| TimeOrNow::Now)) {
            (attr.mtime, attr.mtimensec) = when(t);
        }
        (attr.ctime, attr.ctimensec) = now();
        reply.attr(&FOREVER, &attributes(&attr));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino) {
            Ok(node) => reply.data(&node.target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        put_entry(self.make(r, parent, name, mode, rdev), reply);
    }

    fn mkdir(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        put_entry(self.make(r, parent, name, mode | libc::S_IFDIR, 0), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        put_empty(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        put_empty(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn symlink(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &std::path::Path,
        reply: ReplyEntry,
    ) {
        let (ids, target) = ((r.uid(), r.gid()), target.as_os_str().as_bytes());
        let mode = libc::S_IFLNK | 0o777;
        let made = self
            .tree
            .create(parent.0, name.as_bytes(), mode, ids, 0, target);
        put_entry(made, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(err(libc::EINVAL));
        }
        let moved = self
            .tree
            .rename(parent.0, name.as_bytes(), to.0, new.as_bytes());
        put_empty(moved, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        put_entry(self.tree.link(ino.0, parent.0, name.as_bytes()), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.elide {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), open_flags(flags.0));
        }
    }

    fn create(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if self.elide {
            return reply.error(Errno::ENOSYS);
        }
        match self.make(r, parent, name, mode | libc::S_IFREG, 0) {
            Ok(attr) => {
                let (attr, flags) = (attributes(&attr), open_flags(flags));
                reply.created(&FOREVER, &attr, Generation(0), FileHandle(0), flags);
            }
            Err(number) => reply.error(err(number)),
        }
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
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        // It takes what is sent as a slice: there is no room of its own to read into.
        let mut room = vec![0; size as usize];
        let n = self.tree.read(&node, offset, &mut room);
        reply.data(&room[..n]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.node(ino) {
            Ok(node) => {
                self.tree.write(&node, offset, data);
                reply.written(data.len() as u32);
            }
            Err(e) => reply.error(e),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
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
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        for (cookie, name) in [(1, "."), (2, "..")] {
            if cookie > offset && reply.add(ino, cookie, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let names = node.names.read();
        for (cookie, (name, child)) in names.by_cookie.range(offset + 1..) {
            let Some(child) = self.tree.node(*child) else {
                continue;
            };
            let attr = child.attr();
            let name = OsStr::from_bytes(name);
            if reply.add(INodeNo(attr.ino), *cookie, kind(attr.mode), name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        for (cookie, name) in [(1, "."), (2, "..")] {
            let attr = absent();
            if cookie > offset
                && reply.add(INodeNo(0), cookie, name, &FOREVER, &attr, Generation(0))
            {
                return reply.ok();
            }
        }
        let names = node.names.read();
        for (cookie, (name, child)) in names.by_cookie.range(offset + 1..) {
            let Some(child) = self.tree.node(*child) else {
                continue;
            };
            let attr = attributes(&child.attr());
            let name = OsStr::from_bytes(name);
            if reply.add(attr.ino, *cookie, name, &FOREVER, &attr, Generation(0)) {
                break;
            }
            self.tree.looked_up(&child);
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4096, 255, 4096);
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        match self.node(ino) {
            Ok(node) => {
                let name = name.as_bytes().to_vec();
                node.xattrs.lock().insert(name, value.to_vec());
                reply.ok();
            }
            Err(e) => reply.error(e),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self
            .node(ino)
            .map(|node| node.xattrs.lock().get(name.as_bytes()).cloned());
        match value {
            Ok(Some(value)) if size == 0 => reply.size(value.len() as u32),
            Ok(Some(value)) if value.len() > size as usize => reply.error(err(libc::ERANGE)),
            Ok(Some(value)) => reply.data(&value),
            Ok(None) => reply.error(err(libc::ENODATA)),
            Err(e) => reply.error(e),
        }
    }
}
