//! What crosses the boundary to the kernel, byte by byte.
//!
//! Source: `include/uapi/linux/fuse.h`, protocol 7.31 (Linux 5.4) to 7.45 (Linux 6.18). Integers are in
//! the machine's byte order: kernel and daemon share the machine. Every structure is plain bytes
//! (`zerocopy`), so that reading one from a request needs no `unsafe` and cannot misread.

/// Structures of the kernel's: plain bytes in its layout.
macro_rules! structures {
    ($($(#[doc = $doc:literal])+ $name:ident { $($field:ident: $type:ty,)* })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
                zerocopy::Immutable, zerocopy::KnownLayout,
            )]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name {
                $(pub $field: $type,)*
            }
        )+
    };
}

mod flags;
mod input;
mod opcode;
mod output;
pub mod ring;

pub use flags::{ExchangeFlags, Init, Open, SetattrValid, WriteFlags};
pub use flags::{FSYNC_FDATASYNC, OPEN_KILL_SUIDGID, SETXATTR_ACL_KILL_SGID};
pub use input::*;
pub use opcode::{END as OPCODES_END, Opcode};
pub use output::*;

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that is spoken.
pub const MINOR: u32 = 45;
/// Oldest minor version that is understood: Linux 5.4.
pub const MINOR_LEAST: u32 = 31;
/// Number of the root directory.
pub const ROOT: u64 = 1;
/// `FUSE_NOTIFY_INVAL_INODE`: stands where answers have their errno.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_STORE`.
pub const NOTIFY_STORE: i32 = 4;
/// `FUSE_NOTIFY_RESEND`.
pub const NOTIFY_RESEND: i32 = 7;
/// `FUSE_UNIQUE_RESEND`: set in the number of a request that was sent before.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// `FS_IOC_GETFLAGS` of a 64-bit program; what it and the next one hand over are 4 bytes all the same.
pub const IOC_GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
pub const IOC_SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_GETVERSION`: again 4 bytes.
pub const IOC_GETVERSION: u32 = 0x8008_7601;
/// `FS_IOC32_GETVERSION`, the same for 32-bit programs.
pub const IOC32_GETVERSION: u32 = 0x8004_7601;
/// `FS_IOC_FSGETXATTR`.
pub const IOC_FSGETXATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub const IOC_FSSETXATTR: u32 = 0x401c_5820;
/// `FS_IOC_SHUTDOWN`. The kernel does not hand its argument over: the number says that it is an answer.
pub const IOC_SHUTDOWN: u32 = 0x8004_587d;
/// `FITRIM`.
pub const IOC_TRIM: u32 = 0xc018_5879;
/// `F2FS_IOC_START_ATOMIC_WRITE`.
pub const IOC_START_ATOMIC_WRITE: u32 = 0xf501;
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
pub const IOC_COMMIT_ATOMIC_WRITE: u32 = 0xf502;
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
pub const IOC_ABORT_ATOMIC_WRITE: u32 = 0xf505;
/// `F2FS_IOC_GET_FEATURES`.
pub const IOC_GET_FEATURES: u32 = 0x8004_f50c;
/// The bit of its answer that says that there are atomic writes (`F2FS_FEATURE_ATOMIC_WRITE`).
pub const F2FS_FEATURE_ATOMIC_WRITE: u32 = 1 << 2;
/// `XFS_IOC_EXCHANGE_RANGE`.
pub const IOC_EXCHANGE_RANGE: u32 = 0x4028_5881;
/// `XFS_IOC_START_COMMIT`.
pub const IOC_START_COMMIT: u32 = 0x8058_5882;
/// `XFS_IOC_COMMIT_RANGE`.
pub const IOC_COMMIT_RANGE: u32 = 0x4058_5883;
/// Request to share a connection through a further descriptor (`FUSE_DEV_IOC_CLONE`).
pub const IOC_CLONE: u32 = 0x8004_e500;
