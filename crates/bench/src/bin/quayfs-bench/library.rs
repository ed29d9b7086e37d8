//! The operation layer as the workloads call it: `quayfs_fs::Fs` without a kernel.
//!
//! Each call does what the server does for the requests that the kernel would send for it. What the kernel keeps of the
//! directories on the way to a name is [`dentries`]', and of the content of files [`page_cache`]'s. The last name of a
//! path is looked up in every call, and the lookup taken back when the call ends. An open file keeps one, so that it
//! stays when its last name goes.
//!
//! What the kernel's lock of an inode orders is not ordered here: of two appends to one file at once, one
//! may end on top of the other.

pub mod data_alone;
mod dentries;
pub mod nothing;
pub mod page_cache;

use std::ffi::CStr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use quayfs_bench::library::{Library, Node};
use quayfs_fs::{Attr, Caller, Fs, RenameFlags, SetAttr, SetTime, WriteOptions};
use quayfs_layout::inode::{S_IFREG, Time};
use quayfs_store::error::FsError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::dentries::Dentries;
use quayfs_server::errno::errno;
use quayfs_server::writes;

/// A mounted volume that workloads call.
pub struct OpLayer {
    fs: Arc<Fs>,
    by: Caller,
    dentries: Dentries,
    /// Written instead of what a workload asks for, as far as it goes.
    content: &'static [u8],
}

impl OpLayer {
    /// Calls `fs` as the user of this process.
    pub fn new(fs: Arc<Fs>) -> Self {
        let by = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0o022,
        };
        Self {
            fs,
            by,
            dentries: Dentries::default(),
            content: &[],
        }
    }

    /// Writes as many bytes of `content` instead of what a workload asks for, unless those are more than it has.
    pub fn writing(mut self, content: &'static [u8]) -> Self {
        self.content = content;
        self
    }

    /// Walks along a path: its last name is still to be looked up in the directory that is returned.
    fn parent<'p>(&self, dir: Node, path: &'p CStr) -> Result<(Node, &'p [u8]), FsError> {
        let (mut at, mut rest) = (dir, path.to_bytes());
        while let Some(slash) = rest.iter().position(|b| *b == b'/') {
            at = self.dentries.directory(&self.fs, at, &rest[..slash])?;
            rest = &rest[slash + 1..];
        }
        Ok((at, rest))
    }

    /// An inode whose lookup was just counted.
    fn known(&self, ino: Node) -> Known<'_> {
        Known {
            fs: &self.fs,
            ino,
            counted: true,
        }
    }

    fn find_or_make(
        &self,
        dir: Node,
        path: &CStr,
        flags: OFlags,
        mode: Mode,
    ) -> Result<Attr, FsError> {
        let (parent, name) = self.parent(dir, path)?;
        let exclusive = flags.contains(OFlags::EXCL);
        loop {
            if !exclusive {
                match self.fs.lookup(parent, name) {
                    Err(FsError::NoEntry) if flags.contains(OFlags::CREATE) => {}
                    found => return found,
                }
            }
            let mode = mode.as_raw_mode() & 0o7777 | S_IFREG;
            match self.fs.mknod(self.by, parent, name, mode, 0) {
                // Another thread was faster.
                Err(FsError::Exists) if !exclusive => {}
                made => return made,
            }
        }
    }

    fn open_node(
        &self,
        dir: Node,
        path: &CStr,
        flags: OFlags,
        mode: Mode,
    ) -> Result<Node, FsError> {
        let found = if flags.contains(OFlags::CREATE) {
            self.find_or_make(dir, path, flags, mode)?
        } else {
            let (parent, name) = self.parent(dir, path)?;
            self.fs.lookup(parent, name)?
        };
        let node = self.known(found.ino);
        let is_dir = found.inode.is_dir();
        if flags.contains(OFlags::DIRECTORY) && !is_dir {
            return Err(FsError::NotDir);
        }
        if is_dir {
            return if flags & OFlags::RWMODE == OFlags::RDONLY {
                Ok(node.keep())
            } else {
                Err(FsError::IsDir)
            };
        }
        self.fs.may_open(*node, writes(flags.bits()))?;
        if flags.contains(OFlags::TRUNC) {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            self.fs.setattr(*node, &set, false)?;
        }
        Ok(node.keep())
    }
}

impl Drop for OpLayer {
    fn drop(&mut self) {
        self.dentries.forget_all(&self.fs);
    }
}

/// An inode with the lookup that was counted for it, which goes when this goes.
struct Known<'f> {
    fs: &'f Fs,
    ino: Node,
    counted: bool,
}

impl Known<'_> {
    /// The lookup stays.
    fn keep(mut self) -> Node {
        self.counted = false;
        self.ino
    }
}

impl Deref for Known<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.ino
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.ino, 1);
        }
    }
}

/// The errno that the kernel would pass on.
fn said<T>(result: Result<T, FsError>) -> Result<T, Errno> {
    result.map_err(|e| Errno::from_raw_os_error(errno(&e).number()))
}

impl Library for OpLayer {
    fn root(&self) -> Result<Node, Errno> {
        said(self.fs.lookup(self.fs.root(), b".")).map(|a| a.ino)
    }

    fn open(&self, dir: Node, path: &CStr, flags: OFlags, mode: Mode) -> Result<Node, Errno> {
        said(self.open_node(dir, path, flags, mode))
    }

    fn close(&self, node: Node) {
        self.fs.release(node);
        self.fs.forget(node, 1);
    }

    fn read(&self, node: Node, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        said(self.fs.read_into(node, offset, buffer))
    }

    fn write(&self, node: Node, data: &[u8], offset: u64, flags: OFlags) -> Result<usize, Errno> {
        let append = flags.contains(OFlags::APPEND);
        let manner = WriteOptions {
            append,
            ..WriteOptions::default()
        };
        let content = self.content.get(..data.len()).unwrap_or(data);
        said(self.fs.write_for(node, offset, content, manner))?;
        if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
            said(self.fs.fsync(node))?;
        }
        Ok(data.len())
    }

    fn size(&self, node: Node) -> Result<u64, Errno> {
        said(self.fs.getattr(node)).map(|a| a.inode.size)
    }

    fn fsync(&self, node: Node) -> Result<(), Errno> {
        said(self.fs.fsync(node))
    }

    fn syncfs(&self) -> Result<(), Errno> {
        said(self.fs.sync_all())
    }

    fn stat(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        said(self.parent(dir, path).and_then(|(parent, name)| {
            let found = self.fs.lookup(parent, name)?;
            drop(self.known(found.ino));
            Ok(())
        }))
    }

    fn unlink(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        let at = self.parent(dir, path);
        said(at.and_then(|(parent, name)| self.fs.unlink(parent, name)))
    }

    fn rename(&self, dir: Node, from: &CStr, to: &CStr) -> Result<(), Errno> {
        said(self.parent(dir, from).and_then(|(old, name)| {
            let (new, new_name) = self.parent(dir, to)?;
            let done = (self.fs).rename((old, name), (new, new_name), RenameFlags::default());
            // Whatever came of it: a failure may be that of making it durable.
            self.dentries.forget(&self.fs, old, name);
            self.dentries.forget(&self.fs, new, new_name);
            done
        }))
    }

    fn mkdir(&self, dir: Node, path: &CStr, mode: Mode) -> Result<(), Errno> {
        said(self.parent(dir, path).and_then(|(parent, name)| {
            let mode = mode.as_raw_mode() & 0o7777;
            let made = self.fs.mkdir(self.by, parent, name, mode)?;
            drop(self.known(made.ino));
            Ok(())
        }))
    }

    fn rmdir(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        said(self.parent(dir, path).and_then(|(parent, name)| {
            let done = self.fs.rmdir(parent, name);
            self.dentries.forget(&self.fs, parent, name);
            done
        }))
    }

    fn list(&self, node: Node, cookie: &mut u64, room: &mut Vec<u8>) -> Result<(), Errno> {
        said(self.fs.readdir(node, *cookie, |entry| {
            let dot = entry.name == b"." || entry.name == b"..";
            if !dot {
                if room.len() + entry.name.len() + 1 > room.capacity() {
                    return false;
                }
                room.extend_from_slice(&entry.name);
                room.push(0);
            }
            *cookie = entry.cookie;
            true
        }))
    }

    fn chmod(&self, node: Node, mode: Mode) -> Result<(), Errno> {
        let set = SetAttr {
            mode: Some(mode.as_raw_mode() & 0o7777),
            ..SetAttr::default()
        };
        said(self.fs.setattr(node, &set, false)).map(drop)
    }

    fn set_mtime(&self, node: Node, seconds: i64) -> Result<(), Errno> {
        let at = Time {
            sec: seconds,
            nsec: 0,
        };
        let set = SetAttr {
            mtime: Some(SetTime::At(at)),
            ..SetAttr::default()
        };
        said(self.fs.setattr(node, &set, false)).map(drop)
    }

    fn describe(&self, node: Node) -> PathBuf {
        format!("(operation layer: inode {node})").into()
    }
}

#[cfg(test)]
mod tests;
