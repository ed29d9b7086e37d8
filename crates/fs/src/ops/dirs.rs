//! opendir, readdir.

use quayfs_layout::Ino;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir;

use crate::{Access, Attr, Fs};

/// Cookies of `.` and `..`; all others are larger.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number.
    pub ino: Ino,
    /// `DT_*` type.
    pub kind: u8,
    /// Where reading goes on behind this entry.
    pub cookie: u64,
    /// Name.
    pub name: Vec<u8>,
}

impl Fs {
    /// Calls `each` with the entries behind cookie `after` (0: from the start) until it returns
    /// false. Entries that exist throughout are seen exactly once, whatever else happens.
    pub fn readdir(&self, ino: Ino, after: u64, each: impl FnMut(DirEntry) -> bool) -> Result<()> {
        self.readdir_as(Access::Noted, ino, after, each)
    }

    /// As [`Fs::readdir`].
    pub fn readdir_as(
        &self,
        access: Access,
        ino: Ino,
        after: u64,
        mut each: impl FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let handle = self.handle(ino)?;
        {
            let _op = handle.lock.read();
            let image = handle.image();
            if !image.is_dir() {
                return Err(FsError::NotDir);
            }
            let dots = [(DOT, ino, &b"."[..]), (DOT_DOT, image.parent, &b".."[..])];
            for (cookie, ino, name) in dots {
                let e = DirEntry {
                    ino,
                    kind: 4,
                    cookie,
                    name: name.to_vec(),
                };
                if cookie > after && !each(e) {
                    return Ok(());
                }
            }
            let after = after.max(dir::FIRST_COOKIE - 1);
            let listed = dir::list(&*self.e.nodes, &image, after, |l| {
                each(DirEntry {
                    ino: l.ino,
                    kind: l.kind,
                    cookie: l.cookie,
                    name: l.name,
                })
            });
            listed?;
        }
        if access == Access::Noted {
            self.touch_atime(&handle);
        }
        Ok(())
    }

    /// Attributes of an entry that `readdir` has just returned, counted as a lookup; `None` if it
    /// is gone by now.
    ///
    /// # Errors
    /// The inode cannot be read: the entry is there all the same.
    pub fn entry_attr(&self, entry: &DirEntry) -> Result<Option<Attr>> {
        let handle = match self.handle(entry.ino) {
            Err(FsError::NoEntry | FsError::Stale) => return Ok(None),
            handle => handle?,
        };
        let _op = handle.lock.read();
        let (ino, inode) = (entry.ino, handle.image());
        Ok((inode.nlink > 0).then(|| {
            handle.looked_up();
            Attr { ino, inode }
        }))
    }
}
