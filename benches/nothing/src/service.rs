//! Answers, with the same rules towards the kernel as the real thing has in mode `op`.

use std::sync::Arc;

use quayfs_fs::SetTime;
use quayfs_fuse::wire::{
    AttrOf, AttrOut, EntryOut, GetxattrOut, InHeader, OpenOut, ROOT, ReadIn, Rename2In, SetattrIn,
    StatfsOut, WriteOut,
};
use quayfs_fuse::{
    Answer, Errno, KernelCapabilities, Listing, Op, Out, Postponed, Request, RequestedCapabilities,
    Service, Stats,
};
use quayfs_options::{MountOptions, OpenPolicy};
use quayfs_server::STATUS_XATTR;
use quayfs_server::{FOREVER, open_flags, set_attr, wish};
use serde_json::json;

use crate::bound::Bound;
use quayfs_nothing::tree::{Node, Tree, now};

/// Largest request, as that of the real thing.
const REQUEST_MAX: usize = 1 << 20;
/// What `statfs` says there is.
const BLOCKS: u64 = 1 << 22;

/// Nothing behind the server.
pub struct Nothing {
    pub tree: Tree,
    pub options: MountOptions,
    pub bound: Option<Arc<Bound>>,
    pub stats: Arc<Stats>,
    pub started: Box<dyn Fn() + Send + Sync>,
}

fn err(number: i32) -> Errno {
    Errno::new(number)
}

fn entry(attr: AttrOf) -> EntryOut {
    EntryOut {
        nodeid: attr.ino,
        entry_valid: FOREVER,
        attr_valid: FOREVER,
        attr,
        ..EntryOut::default()
    }
}

impl Service for Nothing {
    fn init(&self, _: &KernelCapabilities) -> RequestedCapabilities {
        wish(&self.options, REQUEST_MAX)
    }

    fn started(&self) {
        (self.started)();
    }

    fn answer_sync(
        &self,
        request: &Request<'_>,
        out: &mut Out<'_>,
        postpone: &mut dyn FnMut() -> Postponed,
    ) -> Option<Answer> {
        match &self.bound {
            Some(bound) => bound.answer(postpone),
            None => Some(self.answer(request, out)),
        }
    }

    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        let (header, ino) = (&request.header, request.header.nodeid);
        match request.op {
            Op::Lookup { name } => self.lookup(ino, name, out),
            Op::Forget { nlookup } => {
                self.tree.forget(ino, nlookup);
                Ok(())
            }
            Op::BatchForget { inodes } => {
                for one in inodes {
                    self.tree.forget(one.nodeid, one.nlookup);
                }
                Ok(())
            }
            Op::Getattr(_) => put_attr(self.node(ino)?.attr(), out),
            Op::Setattr(ref args) => self.setattr(ino, args, out),
            Op::Readlink => out.bytes(&self.node(ino)?.target),
            Op::Symlink { name, target } => {
                self.make(header, libc::S_IFLNK | 0o777, 0, name, target, out)
            }
            Op::Mknod { args, name } => self.make(header, args.mode, args.rdev, name, b"", out),
            Op::Mkdir { args, name } => {
                self.make(header, args.mode | libc::S_IFDIR, 0, name, b"", out)
            }
            Op::Create { .. } if self.options.open == OpenPolicy::Elide => Err(Errno::NOSYS),
            Op::Create { args, name } => {
                self.make(header, args.mode | libc::S_IFREG, 0, name, b"", out)?;
                self.put_open(args.flags, out)
            }
            Op::Unlink { name } | Op::Rmdir { name } => self.tree.remove(ino, name).map_err(err),
            Op::Rename { to, name, new_name } => self.rename(ino, name, to, new_name),
            Op::Link { inode, name } => {
                let linked = self.tree.link(inode, ino, name);
                out.put(&entry(linked.map_err(err)?))
            }
            Op::Open(_) if self.options.open == OpenPolicy::Elide => Err(Errno::NOSYS),
            Op::Open(args) => self.put_open(args.flags, out),
            Op::Read(args) => {
                let node = self.node(ino)?;
                let most = (args.size as usize).min(out.room());
                out.fill(most, |room| Ok(self.tree.read(&node, args.offset, room)))
            }
            Op::Write { args, data } => {
                self.tree.write(&*self.node(ino)?, args.offset, data);
                out.put(&WriteOut {
                    size: data.len() as u32,
                    ..WriteOut::default()
                })
            }
            Op::Statfs => out.put(&StatfsOut {
                blocks: BLOCKS,
                bfree: BLOCKS,
                bavail: BLOCKS,
                files: BLOCKS,
                ffree: BLOCKS,
                bsize: 4096,
                namelen: 255,
                frsize: 4096,
                ..StatfsOut::default()
            }),
            Op::Release(_) => Ok(()),
            Op::Fsync(_) | Op::Fsyncdir(_) => match &self.bound {
                // Answered by `answer_sync`.
                Some(_) => Err(Errno::IO),
                None if self.options.writeback_cache => Ok(()),
                None => Err(Errno::NOSYS),
            },
            Op::Readdir(args) => self.list(ino, &args, false, out),
            Op::Readdirplus(args) => self.list(ino, &args, true, out),
            Op::Setxattr { name, value, .. } => {
                let node = self.node(ino)?;
                node.xattrs.lock().insert(name.into(), value.into());
                Ok(())
            }
            Op::Getxattr { name, size } => self.getxattr(ino, name, size, out),
            _ => Err(Errno::NOSYS),
        }
    }
}

fn put_attr(attr: AttrOf, out: &mut Out<'_>) -> Answer {
    out.put(&AttrOut {
        attr_valid: FOREVER,
        attr,
        ..AttrOut::default()
    })
}

impl Nothing {
    fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        self.tree.node(ino).ok_or(err(libc::ESTALE))
    }

    fn put_open(&self, flags: u32, out: &mut Out<'_>) -> Answer {
        out.put(&OpenOut {
            open_flags: open_flags(flags).bits(),
            ..OpenOut::default()
        })
    }

    fn lookup(&self, parent: u64, name: &[u8], out: &mut Out<'_>) -> Answer {
        match self.tree.lookup(parent, name).map_err(err)? {
            Some(attr) => out.put(&entry(attr)),
            None => out.put(&EntryOut {
                entry_valid: FOREVER,
                ..EntryOut::default()
            }),
        }
    }

    fn make(
        &self,
        header: &InHeader,
        mode: u32,
        rdev: u32,
        name: &[u8],
        target: &[u8],
        out: &mut Out<'_>,
    ) -> Answer {
        let ids = (header.uid, header.gid);
        let made = self
            .tree
            .create(header.nodeid, name, mode, ids, rdev, target);
        out.put(&entry(made.map_err(err)?))
    }

    fn setattr(&self, ino: u64, args: &SetattrIn, out: &mut Out<'_>) -> Answer {
        let node = self.node(ino)?;
        let (set, _) = set_attr(args);
        if let Some(size) = set.size {
            self.tree.resize(&node, size);
        }
        let mut attr = node.attr.lock();
        let (sec, nsec) = now();
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & libc::S_IFMT | mode & 0o7777;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        let when = |t: SetTime| match t {
            SetTime::Now => (sec, nsec),
            SetTime::At(t) => (t.sec.cast_unsigned(), t.nsec),
        };
        if let Some(t) = set.atime {
            (attr.atime, attr.atimensec) = when(t);
        }
        if let Some(t) = set.mtime.or(set.size.map(|_| SetTime::Now)) {
            (attr.mtime, attr.mtimensec) = when(t);
        }
        (attr.ctime, attr.ctimensec) = (sec, nsec);
        put_attr(*attr, out)
    }

    fn rename(&self, parent: u64, name: &[u8], to: Rename2In, new_name: &[u8]) -> Answer {
        if to.flags != 0 {
            return Err(err(libc::EINVAL));
        }
        let moved = self.tree.rename(parent, name, to.newdir, new_name);
        moved.map_err(err)
    }

    fn list(&self, ino: u64, args: &ReadIn, plus: bool, out: &mut Out<'_>) -> Answer {
        const DIR: u8 = (libc::S_IFDIR >> 12) as u8;
        let node = self.node(ino)?;
        let mut listing = Listing::new(out, args.size);
        for (cookie, name) in [(1, &b"."[..]), (2, b"..")] {
            if cookie > args.offset {
                let fits = if plus {
                    listing.entry(&EntryOut::default(), ino, cookie, DIR, name)
                } else {
                    listing.name(ino, cookie, DIR, name)
                };
                if !fits {
                    return Ok(());
                }
            }
        }
        let names = node.names.read();
        for (cookie, (name, ino)) in names.by_cookie.range(args.offset + 1..) {
            let Some(child) = self.tree.node(*ino) else {
                continue;
            };
            let attr = child.attr();
            let kind = (attr.mode >> 12) as u8;
            let fits = if plus {
                listing.entry(&entry(attr), *ino, *cookie, kind, name)
            } else {
                listing.name(*ino, *cookie, kind, name)
            };
            if !fits {
                break;
            }
            if plus {
                self.tree.looked_up(&child);
            }
        }
        Ok(())
    }

    fn getxattr(&self, ino: u64, name: &[u8], size: u32, out: &mut Out<'_>) -> Answer {
        let value = if ino == ROOT && name == STATUS_XATTR.as_bytes() {
            self.status().into_bytes()
        } else {
            let node = self.node(ino)?;
            let xattrs = node.xattrs.lock();
            xattrs.get(name).cloned().ok_or(err(libc::ENODATA))?
        };
        match size as usize {
            0 => out.put(&GetxattrOut {
                size: value.len() as u32,
                ..GetxattrOut::default()
            }),
            room if room < value.len() => Err(err(libc::ERANGE)),
            _ => out.bytes(&value),
        }
    }

    /// What a measurement needs to know, as the real thing says it.
    fn status(&self) -> String {
        let messages: serde_json::Map<_, _> = self
            .stats
            .messages()
            .into_iter()
            .map(|(op, n)| (op.name().to_owned(), n.into()))
            .collect();
        json!({
            "pid": std::process::id(),
            "options": self.options.to_string(),
            "transport": self.stats.transport(),
            "messages": messages,
            "counters": { "requests": self.stats.total() },
        })
        .to_string()
    }
}
