//! FUSE over io_uring (Linux 6.14): the buffers of a ring entry and its commands.
//! Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`, `fs/fuse/dev_uring.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Hands an entry's buffers to the kernel and waits for its first request.
pub const REGISTER: u32 = 1;
/// Answers an entry's request and waits for the next.
pub const COMMIT_AND_FETCH: u32 = 2;

/// First buffer of an entry: headers and arguments of fixed size. The second holds the payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Header {
    /// `InHeader` of a request, `OutHeader` of its answer.
    pub in_out: [u8; 128],
    /// First argument of a request, where it has one of fixed size.
    pub argument: [u8; 128],
    /// About the entry itself.
    pub entry: Entry,
}

/// About a ring entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// None so far.
    pub flags: u64,
    /// What to answer under.
    pub commit_id: u64,
    /// Bytes of payload, of a request or of its answer.
    pub payload: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}

/// In the command area of a submission.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// None so far.
    pub flags: u64,
    /// From [`Entry::commit_id`]; 0 to register.
    pub commit_id: u64,
    /// Number of the queue, which is that of a CPU.
    pub queue: u16,
    /// Zero.
    pub padding: [u8; 6],
}

const _: () = {
    assert!(size_of::<Header>() == 288);
    assert!(size_of::<Command>() == 24);
};
