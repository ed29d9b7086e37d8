//! One errno for each error of the operation layer.

use fuser::Errno;

use crate::error::FsError;

/// The errno that the kernel gets.
pub fn errno(e: &FsError) -> Errno {
    match e {
        FsError::NoEntry => Errno::ENOENT,
        FsError::Stale => Errno::ESTALE,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDir => Errno::ENOTDIR,
        FsError::IsDir => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::Invalid => Errno::EINVAL,
        FsError::Perm => Errno::EPERM,
        FsError::Access => Errno::EACCES,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::FileTooBig => Errno::EFBIG,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NoAttr => Errno::ENODATA,
        FsError::Range => Errno::ERANGE,
        FsError::TooLarge => Errno::E2BIG,
        FsError::Busy => Errno::EBUSY,
        FsError::NotSupported => Errno::EOPNOTSUPP,
        FsError::NoData => Errno::ENXIO,
        FsError::Io(_) => Errno::EIO,
        // Relief comes before the edge sees a shortage.
        FsError::Short(_) => Errno::EAGAIN,
    }
}
