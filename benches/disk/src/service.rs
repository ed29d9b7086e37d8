//! A root directory with one file, which is the disk.

use quayfs_fuse::wire::{
    AttrOf, AttrOut, EntryOut, Init, Open, OpenOut, ROOT, ReadIn, StatfsOut, WriteOut,
};
use quayfs_fuse::{
    Answer, Errno, KernelCapabilities, Listing, Op, Out, Request, RequestedCapabilities, Service,
    waiting,
};
use quayfs_server::FOREVER;

use crate::cache::SECTOR;
use crate::device::Device;

/// The number of the file, and its name.
const FILE: u64 = ROOT + 1;
const NAME: &[u8] = b"disk";
/// Largest request.
const REQUEST_MAX: u32 = 1 << 20;
/// Requests of a device under way at once.
const BACKGROUND: u16 = 64;

/// The file system of a disk.
pub struct Disk<'a> {
    pub device: &'a Device,
    pub started: Box<dyn Fn() + Send + Sync>,
}

impl Service for Disk<'_> {
    fn init(&self, _: &KernelCapabilities) -> RequestedCapabilities {
        RequestedCapabilities {
            // Without asynchronous direct I/O a loop device has one request under way.
            flags: Init::ASYNC_READ | Init::ASYNC_DIO | Init::PARALLEL_DIROPS,
            max_write: REQUEST_MAX,
            max_background: BACKGROUND,
        }
    }

    fn started(&self) {
        (self.started)();
    }

    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        let ino = request.header.nodeid;
        match request.op {
            Op::Lookup { name } if ino == ROOT && name == NAME => out.put(&EntryOut {
                nodeid: FILE,
                entry_valid: FOREVER,
                attr_valid: FOREVER,
                attr: self.attr(FILE),
                ..EntryOut::default()
            }),
            Op::Lookup { .. } => Err(Errno::new(libc::ENOENT)),
            Op::Forget { .. } | Op::BatchForget { .. } => Ok(()),
            Op::Getattr(_) => out.put(&AttrOut {
                attr_valid: FOREVER,
                attr: self.attr(ino),
                ..AttrOut::default()
            }),
            Op::Setattr(_) => Err(Errno::new(libc::EPERM)),
            Op::Open(_) => out.put(&OpenOut {
                open_flags: (Open::DIRECT_IO | Open::PARALLEL_DIRECT_WRITES).bits(),
                ..OpenOut::default()
            }),
            Op::Opendir(_) => out.put(&OpenOut::default()),
            Op::Release(_) | Op::Releasedir(_) => Ok(()),
            Op::Readdir(args) => list(&args, out),
            Op::Read(args) => {
                let most = (args.size as usize).min(out.room());
                out.fill(most, |room| {
                    waiting(|| self.device.read(args.offset, room)).map_err(errno)
                })
            }
            Op::Write { args, data } => {
                waiting(|| self.device.write(args.offset, data)).map_err(errno)?;
                out.put(&WriteOut {
                    size: data.len() as u32,
                    ..WriteOut::default()
                })
            }
            Op::Fsync(_) => waiting(|| self.device.flush()).map_err(errno),
            Op::Statfs => out.put(&StatfsOut {
                blocks: self.device.size() / SECTOR as u64,
                bsize: SECTOR as u32,
                frsize: SECTOR as u32,
                namelen: 255,
                ..StatfsOut::default()
            }),
            _ => Err(Errno::NOSYS),
        }
    }
}

impl Disk<'_> {
    fn attr(&self, ino: u64) -> AttrOf {
        let (mode, nlink, size) = match ino {
            ROOT => (libc::S_IFDIR | 0o700, 2, 0),
            _ => (libc::S_IFREG | 0o600, 1, self.device.size()),
        };
        AttrOf {
            ino,
            size,
            blocks: size / SECTOR as u64,
            mode,
            nlink,
            blksize: 4096,
            ..AttrOf::default()
        }
    }
}

fn list(args: &ReadIn, out: &mut Out<'_>) -> Answer {
    let mut listing = Listing::new(out, args.size);
    let kind = |mode: u32| (mode >> 12) as u8;
    let all: [(u64, u32, &[u8]); 3] = [
        (ROOT, libc::S_IFDIR, b"."),
        (ROOT, libc::S_IFDIR, b".."),
        (FILE, libc::S_IFREG, NAME),
    ];
    for (next, (ino, mode, name)) in (1..).zip(all) {
        if next > args.offset && !listing.name(ino, next, kind(mode), name) {
            break;
        }
    }
    Ok(())
}

fn errno(e: std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::IO, Errno::new)
}
