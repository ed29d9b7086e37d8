//! One errno for each error of the operation layer.

use quayfs_fuse::Errno;

use quayfs_store::error::FsError;

/// The errno that the kernel gets.
pub fn errno(e: &FsError) -> Errno {
    Errno::new(match e {
        FsError::NoEntry => libc::ENOENT,
        FsError::Stale => libc::ESTALE,
        FsError::Exists => libc::EEXIST,
        FsError::NotDir => libc::ENOTDIR,
        FsError::IsDir => libc::EISDIR,
        FsError::NotEmpty => libc::ENOTEMPTY,
        FsError::NoSpace => libc::ENOSPC,
        FsError::Quota => libc::EDQUOT,
        FsError::NameTooLong => libc::ENAMETOOLONG,
        FsError::Invalid => libc::EINVAL,
        FsError::Perm => libc::EPERM,
        FsError::Access => libc::EACCES,
        FsError::TooManyLinks => libc::EMLINK,
        FsError::FileTooBig => libc::EFBIG,
        FsError::ReadOnly => libc::EROFS,
        FsError::NoAttr => libc::ENODATA,
        FsError::Range => libc::ERANGE,
        FsError::TooLarge => libc::E2BIG,
        FsError::TooManyExtents => libc::EFBIG,
        FsError::Busy => libc::EBUSY,
        FsError::NotSupported => libc::EOPNOTSUPP,
        FsError::OtherProject => libc::EXDEV,
        FsError::NoData => libc::ENXIO,
        FsError::Device(_) | FsError::Damaged(_) | FsError::Content(_) | FsError::Internal(_) => {
            libc::EIO
        }
        // Space is reclaimed, and the operation tried again, before the server sees a shortage.
        FsError::OutOf(_) => libc::EAGAIN,
    })
}

/// What the kernel gets for what the operation layer returns.
pub trait ToErrno<T> {
    /// With the [`errno`] of the error.
    fn errno(self) -> Result<T, Errno>;
}

impl<T> ToErrno<T> for Result<T, FsError> {
    fn errno(self) -> Result<T, Errno> {
        self.map_err(|e| errno(&e))
    }
}
