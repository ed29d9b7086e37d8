//! Requests, decoded in place: names and data are borrowed from the transport's buffer.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire;
use crate::wire::{
    AccessIn, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, FsyncIn,
    GetattrIn, GetxattrIn, InHeader, InterruptIn, IoctlIn, LinkIn, LseekIn, MkdirIn, MknodIn,
    Opcode, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, StatxIn,
    WriteIn,
};

/// A request of the kernel.
#[derive(Debug)]
pub struct Request<'a> {
    /// The caller, and the inode that it asks about.
    pub header: InHeader,
    /// What it asks for.
    pub op: Op<'a>,
}

/// What a request asks for. Names are without their terminating zero byte.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget {
        inodes: &'a [ForgetOne],
    },
    Getattr(GetattrIn),
    Statx(StatxIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        to: Rename2In,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        inode: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Create {
        args: CreateIn,
        name: &'a [u8],
    },
    Tmpfile {
        args: CreateIn,
        name: &'a [u8],
    },
    Read(ReadIn),
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Release(ReleaseIn),
    Flush,
    Fsync(FsyncIn),
    Setxattr {
        args: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Access {
        mask: u32,
    },
    Ioctl {
        args: IoctlIn,
        data: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    /// `wide`: the answer counts with 64 bits.
    CopyFileRange {
        args: CopyFileRangeIn,
        wide: bool,
    },
    Syncfs,
    Interrupt(InterruptIn),
    Destroy,
    /// Nothing that is known: to be answered with `ENOSYS`.
    Other {
        opcode: u32,
    },
}

/// Bytes that are no request: shorter than their opcode demands, or without the end of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Request<'a> {
    /// Its number, which no other request of the connection has, ever.
    pub fn number(&self) -> u64 {
        self.header.unique & !wire::UNIQUE_RESEND
    }

    /// Whether the kernel has sent it before, to a process that did not answer and may have carried it out.
    pub fn was_sent_before(&self) -> bool {
        self.header.unique & wire::UNIQUE_RESEND != 0
    }

    /// Decodes a message as `/dev/fuse` delivers it: header, arguments and payload in a row.
    ///
    /// # Errors
    /// [`Malformed`]; the header, if there is one, says what to answer to.
    pub fn parse(
        message: &'a [u8],
        setxattr_ext: bool,
    ) -> Result<Self, (Option<InHeader>, Malformed)> {
        let (header, body) = InHeader::read_from_prefix(message).map_err(|_| (None, Malformed))?;
        let end = (header.len as usize)
            .checked_sub(size_of::<InHeader>())
            .and_then(|end| end.checked_sub(8 * usize::from(header.extensions)))
            .ok_or((Some(header), Malformed))?;
        let body = body.get(..end).ok_or((Some(header), Malformed))?;
        let argument = argument_size(header.opcode, setxattr_ext);
        let (argument, payload) = body
            .split_at_checked(argument)
            .ok_or((Some(header), Malformed))?;
        let op = Op::parse(header.opcode, argument, payload).ok_or((Some(header), Malformed))?;
        Ok(Self { header, op })
    }

    /// Decodes a request as a ring entry holds it: the first argument apart from the payload.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse_split(
        header: InHeader,
        argument: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Self, Malformed> {
        let op = Op::parse(header.opcode, argument, payload).ok_or(Malformed)?;
        Ok(Self { header, op })
    }
}

/// Bytes of the first argument, which is of fixed size.
fn argument_size(opcode: u32, setxattr_ext: bool) -> usize {
    use Opcode as O;
    let Some(opcode) = O::of(opcode) else {
        return 0;
    };
    match opcode {
        O::Forget => size_of::<ForgetIn>(),
        O::BatchForget => size_of::<BatchForgetIn>(),
        O::Getattr => size_of::<GetattrIn>(),
        O::Statx => size_of::<StatxIn>(),
        O::Setattr => size_of::<SetattrIn>(),
        O::Mknod => size_of::<MknodIn>(),
        O::Mkdir => size_of::<MkdirIn>(),
        O::Rename => size_of::<RenameIn>(),
        O::Rename2 => size_of::<Rename2In>(),
        O::Link => size_of::<LinkIn>(),
        O::Open | O::Opendir => size_of::<OpenIn>(),
        O::Create | O::Tmpfile => size_of::<CreateIn>(),
        O::Read | O::Readdir | O::Readdirplus => size_of::<ReadIn>(),
        O::Write => size_of::<WriteIn>(),
        O::Release | O::Releasedir => size_of::<ReleaseIn>(),
        O::Fsync | O::Fsyncdir => size_of::<FsyncIn>(),
        O::Setxattr if setxattr_ext => size_of::<SetxattrIn>(),
        O::Setxattr => 8,
        O::Getxattr | O::Listxattr => size_of::<GetxattrIn>(),
        O::Access => size_of::<AccessIn>(),
        O::Ioctl => size_of::<IoctlIn>(),
        O::Fallocate => size_of::<FallocateIn>(),
        O::Lseek => size_of::<LseekIn>(),
        O::CopyFileRange | O::CopyFileRange64 => size_of::<CopyFileRangeIn>(),
        O::Interrupt => size_of::<InterruptIn>(),
        _ => 0,
    }
}

/// What follows the header of a request: an argument of fixed size, and bytes behind it.
///
/// Each function decodes one form that requests have, and makes an operation of it. There is none if bytes are
/// missing.
#[derive(Clone, Copy)]
struct Parts<'a> {
    argument: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Parts<'a> {
    fn argument<T>(self, op: impl FnOnce(T) -> Op<'a>) -> Option<Op<'a>>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        Some(op(fixed(self.argument)?))
    }

    fn name(self, op: impl FnOnce(&'a [u8]) -> Op<'a>) -> Option<Op<'a>> {
        Some(op(text(self.payload)?.0))
    }

    fn two_names(self, op: impl FnOnce(&'a [u8], &'a [u8]) -> Op<'a>) -> Option<Op<'a>> {
        let (first, rest) = text(self.payload)?;
        let (second, _) = text(rest)?;
        Some(op(first, second))
    }

    fn argument_and_name<T>(self, op: impl FnOnce(T, &'a [u8]) -> Op<'a>) -> Option<Op<'a>>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let (name, _) = text(self.payload)?;
        Some(op(fixed(self.argument)?, name))
    }

    /// `to`: the newer form of the argument, from the form that came.
    fn rename<T>(self, to: impl FnOnce(T) -> Rename2In) -> Option<Op<'a>>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let to = to(fixed(self.argument)?);
        self.two_names(|name, new_name| Op::Rename { to, name, new_name })
    }

    fn forgotten(self) -> Option<Op<'a>> {
        let count = fixed::<BatchForgetIn>(self.argument)?.count as usize;
        let bytes = self
            .payload
            .get(..count.checked_mul(size_of::<ForgetOne>())?)?;
        let inodes = <[ForgetOne]>::ref_from_bytes(bytes).ok()?;
        Some(Op::BatchForget { inodes })
    }

    fn write(self) -> Option<Op<'a>> {
        let args: WriteIn = fixed(self.argument)?;
        let data = self.payload.get(..args.size as usize)?;
        Some(Op::Write { args, data })
    }

    fn ioctl(self) -> Option<Op<'a>> {
        let args: IoctlIn = fixed(self.argument)?;
        let data = self.payload.get(..args.in_size as usize)?;
        Some(Op::Ioctl { args, data })
    }

    fn setxattr(self) -> Option<Op<'a>> {
        // The shorter form lacks the last two fields.
        let mut args = SetxattrIn::default();
        let given = self.argument.len().min(size_of::<SetxattrIn>());
        args.as_mut_bytes()[..given].copy_from_slice(&self.argument[..given]);
        let (name, rest) = text(self.payload)?;
        let value = rest.get(..args.size as usize)?;
        Some(Op::Setxattr { args, name, value })
    }
}

fn fixed<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// The bytes before the first zero byte, and what follows it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

impl<'a> Op<'a> {
    /// The form of each request, as a table. There is no operation if bytes are missing.
    fn parse(number: u32, argument: &'a [u8], payload: &'a [u8]) -> Option<Self> {
        use Opcode as O;
        let parts = Parts { argument, payload };
        let Some(opcode) = O::of(number) else {
            return Some(Self::Other { opcode: number });
        };
        match opcode {
            O::Lookup => parts.name(|name| Self::Lookup { name }),
            O::Forget => parts.argument(|ForgetIn { nlookup }| Self::Forget { nlookup }),
            O::BatchForget => parts.forgotten(),
            O::Getattr => parts.argument(Self::Getattr),
            O::Statx => parts.argument(Self::Statx),
            O::Setattr => parts.argument(Self::Setattr),
            O::Readlink => Some(Self::Readlink),
            O::Symlink => parts.two_names(|name, target| Self::Symlink { name, target }),
            O::Mknod => parts.argument_and_name(|args, name| Self::Mknod { args, name }),
            O::Mkdir => parts.argument_and_name(|args, name| Self::Mkdir { args, name }),
            O::Unlink => parts.name(|name| Self::Unlink { name }),
            O::Rmdir => parts.name(|name| Self::Rmdir { name }),
            O::Rename => parts.rename(|RenameIn { newdir }| Rename2In {
                newdir,
                ..Rename2In::default()
            }),
            O::Rename2 => parts.rename(|to: Rename2In| to),
            O::Link => parts
                .argument_and_name(|LinkIn { oldnodeid: inode }, name| Self::Link { inode, name }),
            O::Open => parts.argument(Self::Open),
            O::Create => parts.argument_and_name(|args, name| Self::Create { args, name }),
            O::Tmpfile => parts.argument_and_name(|args, name| Self::Tmpfile { args, name }),
            O::Read => parts.argument(Self::Read),
            O::Write => parts.write(),
            O::Statfs => Some(Self::Statfs),
            O::Release => parts.argument(Self::Release),
            O::Flush => Some(Self::Flush),
            O::Fsync => parts.argument(Self::Fsync),
            O::Setxattr => parts.setxattr(),
            O::Getxattr => parts
                .argument_and_name(|GetxattrIn { size, .. }, name| Self::Getxattr { size, name }),
            O::Listxattr => parts.argument(|GetxattrIn { size, .. }| Self::Listxattr { size }),
            O::Removexattr => parts.name(|name| Self::Removexattr { name }),
            O::Opendir => parts.argument(Self::Opendir),
            O::Readdir => parts.argument(Self::Readdir),
            O::Readdirplus => parts.argument(Self::Readdirplus),
            O::Releasedir => parts.argument(Self::Releasedir),
            O::Fsyncdir => parts.argument(Self::Fsyncdir),
            O::Access => parts.argument(|AccessIn { mask, .. }| Self::Access { mask }),
            O::Ioctl => parts.ioctl(),
            O::Fallocate => parts.argument(Self::Fallocate),
            O::Lseek => parts.argument(Self::Lseek),
            O::CopyFileRange => parts.argument(|args| Self::CopyFileRange { args, wide: false }),
            O::CopyFileRange64 => parts.argument(|args| Self::CopyFileRange { args, wide: true }),
            O::Syncfs => Some(Self::Syncfs),
            O::Interrupt => parts.argument(Self::Interrupt),
            O::Destroy => Some(Self::Destroy),
            O::Init
            | O::Getlk
            | O::Setlk
            | O::Setlkw
            | O::Bmap
            | O::Poll
            | O::NotifyReply
            | O::Setupmapping
            | O::Removemapping => Some(Self::Other { opcode: number }),
        }
    }

    /// Whether it is `fsync` or `fsyncdir`.
    pub(crate) fn is_sync(opcode: u32) -> bool {
        matches!(Opcode::of(opcode), Some(Opcode::Fsync | Opcode::Fsyncdir))
    }

    /// Whether the answer can be longer than [`crate::answer::SHORT`] bytes.
    pub(crate) fn answers_at_length(opcode: u32) -> bool {
        use Opcode as O;
        matches!(
            O::of(opcode),
            Some(
                O::Read
                    | O::Readdir
                    | O::Readdirplus
                    | O::Readlink
                    | O::Getxattr
                    | O::Listxattr
                    | O::Ioctl
            )
        )
    }

    /// Whether nothing waits for an answer.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Forget { .. } | Self::BatchForget { .. })
    }
}

#[cfg(test)]
mod tests;
