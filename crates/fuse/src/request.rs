//! Requests, decoded in place: names and data are borrowed from the transport's buffer.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire::{
    self, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, FsyncIn,
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
        O::Access => size_of::<wire::AccessIn>(),
        O::Ioctl => size_of::<IoctlIn>(),
        O::Fallocate => size_of::<FallocateIn>(),
        O::Lseek => size_of::<LseekIn>(),
        O::CopyFileRange | O::CopyFileRange64 => size_of::<CopyFileRangeIn>(),
        O::Interrupt => size_of::<InterruptIn>(),
        _ => 0,
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

fn name(bytes: &[u8]) -> Option<&[u8]> {
    text(bytes).map(|(name, _)| name)
}

impl<'a> Op<'a> {
    fn parse(number: u32, argument: &'a [u8], payload: &'a [u8]) -> Option<Self> {
        use Opcode as O;
        let Some(opcode) = O::of(number) else {
            return Some(Self::Other { opcode: number });
        };
        Some(match opcode {
            O::Lookup => Self::Lookup {
                name: name(payload)?,
            },
            O::Forget => Self::Forget {
                nlookup: fixed::<ForgetIn>(argument)?.nlookup,
            },
            O::BatchForget => {
                let count = fixed::<BatchForgetIn>(argument)?.count as usize;
                let bytes = payload.get(..count.checked_mul(size_of::<ForgetOne>())?)?;
                Self::BatchForget {
                    inodes: <[ForgetOne]>::ref_from_bytes(bytes).ok()?,
                }
            }
            O::Getattr => Self::Getattr(fixed(argument)?),
            O::Statx => Self::Statx(fixed(argument)?),
            O::Setattr => Self::Setattr(fixed(argument)?),
            O::Readlink => Self::Readlink,
            O::Symlink => {
                let (name, rest) = text(payload)?;
                Self::Symlink {
                    name,
                    target: self::name(rest)?,
                }
            }
            O::Mknod => Self::Mknod {
                args: fixed(argument)?,
                name: name(payload)?,
            },
            O::Mkdir => Self::Mkdir {
                args: fixed(argument)?,
                name: name(payload)?,
            },
            O::Unlink => Self::Unlink {
                name: name(payload)?,
            },
            O::Rmdir => Self::Rmdir {
                name: name(payload)?,
            },
            O::Rename | O::Rename2 => {
                let to = if opcode == O::Rename2 {
                    fixed(argument)?
                } else {
                    let newdir = fixed::<RenameIn>(argument)?.newdir;
                    Rename2In {
                        newdir,
                        ..Rename2In::default()
                    }
                };
                let (name, rest) = text(payload)?;
                Self::Rename {
                    to,
                    name,
                    new_name: self::name(rest)?,
                }
            }
            O::Link => Self::Link {
                inode: fixed::<LinkIn>(argument)?.oldnodeid,
                name: name(payload)?,
            },
            O::Open => Self::Open(fixed(argument)?),
            O::Create => Self::Create {
                args: fixed(argument)?,
                name: name(payload)?,
            },
            O::Tmpfile => Self::Tmpfile {
                args: fixed(argument)?,
                name: name(payload)?,
            },
            O::Read => Self::Read(fixed(argument)?),
            O::Write => {
                let args: WriteIn = fixed(argument)?;
                Self::Write {
                    args,
                    data: payload.get(..args.size as usize)?,
                }
            }
            O::Statfs => Self::Statfs,
            O::Release => Self::Release(fixed(argument)?),
            O::Flush => Self::Flush,
            O::Fsync => Self::Fsync(fixed(argument)?),
            O::Setxattr => {
                // The shorter form lacks the last two fields.
                let mut args = SetxattrIn::default();
                let given = argument.len().min(size_of::<SetxattrIn>());
                args.as_mut_bytes()[..given].copy_from_slice(&argument[..given]);
                let (name, rest) = text(payload)?;
                Self::Setxattr {
                    args,
                    name,
                    value: rest.get(..args.size as usize)?,
                }
            }
            O::Getxattr => Self::Getxattr {
                size: fixed::<GetxattrIn>(argument)?.size,
                name: name(payload)?,
            },
            O::Listxattr => Self::Listxattr {
                size: fixed::<GetxattrIn>(argument)?.size,
            },
            O::Removexattr => Self::Removexattr {
                name: name(payload)?,
            },
            O::Opendir => Self::Opendir(fixed(argument)?),
            O::Readdir => Self::Readdir(fixed(argument)?),
            O::Readdirplus => Self::Readdirplus(fixed(argument)?),
            O::Releasedir => Self::Releasedir(fixed(argument)?),
            O::Fsyncdir => Self::Fsyncdir(fixed(argument)?),
            O::Access => Self::Access {
                mask: fixed::<wire::AccessIn>(argument)?.mask,
            },
            O::Ioctl => {
                let args: IoctlIn = fixed(argument)?;
                Self::Ioctl {
                    args,
                    data: payload.get(..args.in_size as usize)?,
                }
            }
            O::Fallocate => Self::Fallocate(fixed(argument)?),
            O::Lseek => Self::Lseek(fixed(argument)?),
            O::CopyFileRange | O::CopyFileRange64 => Self::CopyFileRange {
                args: fixed(argument)?,
                wide: opcode == O::CopyFileRange64,
            },
            O::Syncfs => Self::Syncfs,
            O::Interrupt => Self::Interrupt(fixed(argument)?),
            O::Destroy => Self::Destroy,
            O::Init
            | O::Getlk
            | O::Setlk
            | O::Setlkw
            | O::Bmap
            | O::Poll
            | O::NotifyReply
            | O::Setupmapping
            | O::Removemapping => Self::Other { opcode: number },
        })
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
#[path = "request_tests.rs"]
mod tests;
