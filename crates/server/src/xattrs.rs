//! Requests about extended attributes.

use quayfs_fuse::wire::{GetxattrOut, InHeader, SETXATTR_ACL_KILL_SGID, SetxattrIn};
use quayfs_fuse::{Answer, Errno, Out};
use quayfs_layout::inode::ROOT;
use rustix::process::geteuid;

use crate::PREFIX;
use crate::convert::set_xattr;
use crate::errno::ToErrno;
use crate::service::Server;

impl Server {
    pub(super) fn setxattr(
        &self,
        header: &InHeader,
        args: SetxattrIn,
        name: &[u8],
        value: &[u8],
    ) -> Answer {
        if self.may_be_asked(header, name)
            && let Some(answer) = self.command(header, name, value)
        {
            return answer;
        }
        let how = set_xattr(args.flags)?;
        let stranger = args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
        self.fs
            .setxattr_by(header.nodeid, name, value, how, stranger)
            .errno()
    }

    pub(super) fn getxattr(
        &self,
        header: &InHeader,
        name: &[u8],
        size: u32,
        out: &mut Out<'_>,
    ) -> Answer {
        if self.may_be_asked(header, name)
            && let Some(value) = self.report(header, name)
        {
            return put(&value?, size, out);
        }
        put(&self.fs.getxattr(header.nodeid, name).errno()?, size, out)
    }

    /// Whether an attribute is one of those that are none: of the root directory, and, where root has mounted and asks, of
    /// everything else as well, since a bind mount may show no more of it. What a container is given a part of says nothing
    /// about the rest there; nor does a mount of an ordinary user, since an overlay over it asks in the name of that user.
    fn may_be_asked(&self, header: &InHeader, name: &[u8]) -> bool {
        let manages = || geteuid().is_root() && self.fs.may_watch(self.asker(header)).is_ok();
        header.nodeid == ROOT || name.starts_with(PREFIX) && manages()
    }

    pub(super) fn listxattr(&self, header: &InHeader, size: u32, out: &mut Out<'_>) -> Answer {
        let by = self.asker(header);
        let names = self
            .fs
            .listxattr_for(header.nodeid, || by.sees_trusted())
            .errno()?;
        put(&names, size, out)
    }
}

/// The value, or its size where that is asked for.
fn put(value: &[u8], size: u32, out: &mut Out<'_>) -> Answer {
    if size == 0 {
        return out.put(&GetxattrOut {
            size: value.len() as u32,
            ..GetxattrOut::default()
        });
    }
    if value.len() > size as usize {
        return Err(Errno::new(libc::ERANGE));
    }
    out.bytes(value)
}
