//! setattr, access time.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_NOATIME, Inode, S_IFMT, Time};
use quayfs_options::AtimePolicy;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::txn::{Edit, Reservation, Txn};

use crate::attr::{SetTime, drop_privileges, now};
use crate::ops::acl::needs_to_follow;
use crate::ops::truncate::Also;
use crate::{Attr, Fs, SetAttr, protect};

const DAY: i64 = 86_400;

impl Fs {
    /// Changes attributes. A change of size is a truncate; what else is asked for follows in a
    /// record of its own.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, kill_privileges: bool) -> Result<Attr> {
        if !times_are_valid(set) {
            return Err(FsError::Invalid);
        }
        let mut attr = None;
        let mut set = *set;
        if let Some(size) = set.size.take() {
            let mtime = match set.mtime.take() {
                Some(SetTime::At(t)) => Some(t),
                _ => None,
            };
            attr = Some(self.truncate(
                ino,
                size,
                Also {
                    mtime,
                    kill_privileges,
                },
            )?);
        }
        if let Some(attr) = attr
            && set == SetAttr::default()
        {
            return Ok(attr);
        }
        let handle = self.handle(ino)?;
        self.e.retrying(|| {
            let reservation = match set.mode {
                Some(_) => handle.with(needs_to_follow),
                None => Reservation::default(),
            };
            let mut txn = Txn::begin(
                &self.e,
                Reservation {
                    prefer: ino as usize,
                    ..reservation
                },
            )?;
            let _op = handle.lock.write();
            let mut edit = Edit::shared(&handle)?;
            let i = &mut edit.image;
            protect::set(i, &set)?;
            let time = now();
            if let Some(mode) = set.mode {
                i.mode = i.mode & S_IFMT | mode & 0o7777;
                self.follow_mode(&mut txn, (ino, i), reservation)?;
            }
            if set.uid.is_some() || set.gid.is_some() {
                i.uid = set.uid.unwrap_or(i.uid);
                i.gid = set.gid.unwrap_or(i.gid);
                if set.mode.is_none() {
                    drop_privileges(i);
                }
            }
            let at = |t: SetTime| match t {
                SetTime::Now => time,
                SetTime::At(t) => t,
            };
            i.atime = set.atime.map_or(i.atime, at);
            i.mtime = set.mtime.map_or(i.mtime, at);
            i.ctime = set.ctime.unwrap_or(time);
            txn.commit(&mut edit)?;
            let inode = edit.image;
            Ok(Attr { ino, inode })
        })
    }

    /// Notes a read, if the mount's policy says so. Failure to note is no failure to read.
    pub fn touch_atime(&self, handle: &InodeHandle) {
        if self.e.options.atime == AtimePolicy::NoAtime || self.e.is_read_only() {
            return;
        }
        if self.e.options.nodiratime && handle.with(Inode::is_dir) {
            return;
        }
        let time = now();
        let always = self.e.options.atime == AtimePolicy::StrictAtime;
        let due = |i: &Inode| always || atime_is_due(i, time);
        if !handle.with(|i| i.flags & FLAG_NOATIME == 0 && due(i)) {
            return;
        }
        let noted = (|| {
            let txn = Txn::begin(&self.e, Reservation::default())?;
            let _op = handle.lock.read();
            let mut edit = Edit::shared(handle)?;
            if due(&edit.image) {
                edit.image.atime = time;
                txn.commit(&mut edit)?;
            }
            Ok::<_, FsError>(())
        })();
        if let Err(err) = noted {
            tracing::debug!("access time of inode {}: {err}", handle.ino);
        }
    }
}

/// The rule of `relatime` (mount(8)): older than the last change, or a day old.
fn atime_is_due(i: &Inode, now: Time) -> bool {
    i.atime <= i.mtime || i.atime <= i.ctime || now.sec.saturating_sub(i.atime.sec) >= DAY
}

/// Whether all nanoseconds are below a second, as every reader of them expects.
fn times_are_valid(set: &SetAttr) -> bool {
    let given = [set.atime, set.mtime]
        .into_iter()
        .flatten()
        .map(|t| match t {
            SetTime::Now => 0,
            SetTime::At(t) => t.nsec,
        });
    given
        .chain(set.ctime.map(|t| t.nsec))
        .all(|n| n < 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime() {
        let t = |sec| Time { sec, nsec: 0 };
        let i = |atime, change| Inode {
            atime: t(atime),
            mtime: t(change),
            ctime: t(change),
            ..Inode::default()
        };
        assert!(atime_is_due(&i(10, 10), t(11)));
        assert!(atime_is_due(&i(10, 12), t(13)));
        assert!(!atime_is_due(&i(12, 10), t(13)));
        assert!(atime_is_due(&i(12, 10), t(12 + DAY)));
        assert!(atime_is_due(&i(i64::MIN + 1, i64::MIN), t(i64::MAX)));
    }
}
