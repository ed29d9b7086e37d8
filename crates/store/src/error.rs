//! What can go wrong in the operation layer. The server turns each into one errno.

use std::fmt;

use crate::damage::Damage;

/// Result of the operation layer.
pub type Result<T> = std::result::Result<T, FsError>;

/// A resource that has run short for the moment. The operation has released everything it held
/// and is tried again after space is reclaimed (credits), or ends as [`FsError::NoSpace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Staging slots.
    Slots,
    /// Log space.
    Log,
    /// Logical blocks.
    Blocks,
    /// Node pages, node ids or inode numbers.
    Nodes,
}

/// An error of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsError {
    /// Name or inode does not exist.
    NoEntry,
    /// The inode number is not in use (any more).
    Stale,
    /// Name exists.
    Exists,
    /// Not a directory.
    NotDir,
    /// Is a directory.
    IsDir,
    /// Directory not empty.
    NotEmpty,
    /// No space left, now and after space is reclaimed.
    NoSpace,
    /// A limit of a project, user or group is in the way.
    Quota,
    /// Name longer than 255 bytes.
    NameTooLong,
    /// Invalid argument.
    Invalid,
    /// Operation not permitted.
    Perm,
    /// Permission denied.
    Access,
    /// Too many links.
    TooManyLinks,
    /// Offset or size beyond what a file can have.
    FileTooBig,
    /// The mount is read-only.
    ReadOnly,
    /// No such attribute.
    NoAttr,
    /// Result does not fit the caller's buffer.
    Range,
    /// Attribute too large.
    TooLarge,
    /// It would take more than one record, for so many extents or blocks.
    TooManyExtents,
    /// Something else that excludes this is under way, or has been.
    Busy,
    /// Not supported.
    NotSupported,
    /// A name would join inodes of different projects.
    OtherProject,
    /// No data or hole at or after this offset.
    NoData,
    /// A device has failed, or the log with it; the text says which, and how.
    Device(String),
    /// Metadata is damaged. It has been counted and logged, and `errors=` has had its say.
    Damaged(Damage),
    /// A block of a file does not hold what was written to it.
    Content(String),
    /// Something that no caller can do anything about: the mount was shut down, or there is a bug.
    Internal(String),
    /// Try again after space is reclaimed. Never leaves the operation layer.
    OutOf(Resource),
}

impl FsError {
    /// A device has failed, with its cause. What it has delivered and is not true is damage, and is not made here
    /// ([`crate::damage::Watch::damaged`]).
    pub fn device(what: impl fmt::Display) -> Self {
        Self::Device(what.to_string())
    }

    /// A block of a file does not hold what was written to it.
    pub fn content(what: impl fmt::Display) -> Self {
        Self::Content(what.to_string())
    }

    /// No caller can do anything about it.
    pub fn internal(what: impl fmt::Display) -> Self {
        Self::Internal(what.to_string())
    }

    /// Whether a caller is told no more than that input or output has failed.
    pub fn is_io(&self) -> bool {
        self.cause().is_some()
    }

    /// What has failed, without saying again that something has; for all that is an input/output error.
    pub fn cause(&self) -> Option<String> {
        match self {
            Self::Device(what) | Self::Content(what) | Self::Internal(what) => Some(what.clone()),
            Self::Damaged(damage) => Some(damage.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = match self {
            Self::NoEntry => "no such file or directory",
            Self::Stale => "stale inode number",
            Self::Exists => "file exists",
            Self::NotDir => "not a directory",
            Self::IsDir => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::NoSpace => "no space left",
            Self::Quota => "quota exceeded",
            Self::NameTooLong => "file name too long",
            Self::Invalid => "invalid argument",
            Self::Perm => "operation not permitted",
            Self::Access => "permission denied",
            Self::TooManyLinks => "too many links",
            Self::FileTooBig => "file too large",
            Self::ReadOnly => "read-only file system",
            Self::NoAttr => "no such attribute",
            Self::Range => "result too large for the buffer",
            Self::TooLarge => "attribute too large",
            Self::TooManyExtents => "more extents or blocks than one record can name",
            Self::Busy => "device or resource busy",
            Self::NotSupported => "operation not supported",
            Self::OtherProject => "another project",
            Self::NoData => "no data or hole at this offset",
            Self::Device(what) | Self::Content(what) | Self::Internal(what) => {
                return write!(f, "input/output error: {what}");
            }
            Self::Damaged(damage) => return write!(f, "damaged metadata: {damage}"),
            Self::OutOf(s) => return write!(f, "short of {s:?}"),
        };
        f.write_str(s)
    }
}

impl std::error::Error for FsError {}

impl From<quayfs_pmem::PmemError> for FsError {
    fn from(e: quayfs_pmem::PmemError) -> Self {
        Self::device(e)
    }
}

impl From<std::io::Error> for FsError {
    fn from(e: std::io::Error) -> Self {
        Self::device(e)
    }
}
