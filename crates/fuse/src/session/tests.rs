//! A kernel of our own at the other end of a socket that keeps messages apart, as `/dev/fuse` does.

use std::sync::Mutex;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::answer::{Answer, Errno, Out};
use crate::request::{Op, Request};
use crate::service::{KernelCapabilities, RequestedCapabilities};
use crate::wire::{
    ForgetIn, FsyncIn, InHeader, InitIn, InitOut, IoctlIn, Opcode, OutHeader, ReadIn, WriteIn,
    WriteOut,
};

/// One file in memory.
#[derive(Default)]
struct Memory {
    /// Calls of `fsync` that wait for the device.
    syncing: Mutex<u32>,
    content: Mutex<Vec<u8>>,
    offer: Mutex<Option<KernelCapabilities>>,
    forgotten: Mutex<u64>,
}

impl Service for Memory {
    fn init(&self, offer: &KernelCapabilities) -> RequestedCapabilities {
        *self.offer.lock().unwrap() = Some(*offer);
        RequestedCapabilities {
            flags: Init::ASYNC_READ | Init::HANDLE_KILLPRIV_V2 | Init::DIRECT_IO_ALLOW_MMAP,
            max_write: 64 << 10,
            max_background: 16,
        }
    }

    fn started(&self) {}

    fn accepts(&self, offer: &KernelCapabilities) -> Result<(), String> {
        if offer.flags.contains(Init::ASYNC_READ) {
            Ok(())
        } else {
            Err("no readahead".into())
        }
    }

    fn waits_for_kernel(&self, request: &Request<'_>) -> bool {
        matches!(request.op, Op::Ioctl { ref args, .. } if args.cmd == 7)
    }

    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        match request.op {
            Op::Read(args) => {
                let content = self.content.lock().unwrap();
                let from = content.get(args.offset as usize..).unwrap_or_default();
                out.bytes(&from[..from.len().min(args.size as usize)])
            }
            Op::Write { args, data } => {
                let mut content = self.content.lock().unwrap();
                let end = args.offset as usize + data.len();
                let len = content.len().max(end);
                content.resize(len, 0);
                content[args.offset as usize..end].copy_from_slice(data);
                out.put(&WriteOut {
                    size: data.len() as u32,
                    padding: 0,
                })
            }
            Op::Forget { nlookup } => {
                *self.forgotten.lock().unwrap() += nlookup;
                Ok(())
            }
            Op::Statfs => {
                // What was appended before an error is not sent.
                out.put(&1u64)?;
                Err(Errno::new(libc::EDQUOT))
            }
            // Waits for a write, which comes once all calls wait at the same time.
            Op::Fsync(_) => crate::waiting(|| {
                *self.syncing.lock().unwrap() += 1;
                while self.content.lock().unwrap().is_empty() {
                    thread::yield_now();
                }
                Ok(())
            }),
            // Waits for a write.
            Op::Ioctl { data, .. } => {
                while self.content.lock().unwrap().is_empty() {
                    thread::yield_now();
                }
                out.bytes(data)
            }
            _ => Err(Errno::NOSYS),
        }
    }
}

/// The kernel's end.
struct Kernel(OwnedFd);

impl Kernel {
    fn send(&self, opcode: Opcode, unique: u64, parts: &[&[u8]]) {
        let body = parts.concat();
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode: opcode as u32,
            unique,
            ..InHeader::default()
        };
        rustix::io::write(&self.0, &[header.as_bytes(), &body].concat()).unwrap();
    }

    fn receive(&self) -> (OutHeader, Vec<u8>) {
        let mut message = vec![0; 1 << 20];
        let n = rustix::io::read(&self.0, &mut message).unwrap();
        let (header, body) = OutHeader::read_from_prefix(&message[..n]).unwrap();
        assert_eq!(header.len as usize, n);
        (header, body.to_vec())
    }

    fn ask(&self, opcode: Opcode, unique: u64, parts: &[&[u8]]) -> (i32, Vec<u8>) {
        self.send(opcode, unique, parts);
        let (header, body) = self.receive();
        assert_eq!(header.unique, unique);
        (header.error, body)
    }

    fn init(&self, minor: u32, flags: Init) -> (i32, Vec<u8>) {
        let init = InitIn {
            major: 7,
            minor,
            max_readahead: 1 << 17,
            flags: flags.bits() as u32,
            flags2: (flags.bits() >> 32) as u32,
            ..InitIn::default()
        };
        self.ask(Opcode::Init, 1, &[init.as_bytes()])
    }
}

const SPARE: u64 = 3;

/// Serves `service` while `kernel` asks.
fn with<R>(
    service: &Memory,
    stats: &Stats,
    kernel: impl FnOnce(&Kernel) -> R,
) -> (R, io::Result<()>) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let options = Options {
        workers: 1,
        spare: SPARE as usize,
        clone: false,
        patient: 1,
        ..Options::default()
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(service, ours, &options, stats, None));
        let kernel_end = Kernel(theirs);
        let result = kernel(&kernel_end);
        drop(kernel_end);
        (result, server.join().unwrap())
    })
}

/// What is wished for and offered is agreed upon, and no more.
fn agree(kernel: &Kernel, offered: Init) {
    let (error, body) = kernel.init(99, offered);
    assert_eq!(error, 0);
    let out = InitOut::read_from_bytes(&body).unwrap();
    assert_eq!((out.major, out.minor), (7, crate::wire::MINOR));
    assert_eq!((out.max_write, out.max_pages), (64 << 10, 16));
    let flags = u64::from(out.flags) | u64::from(out.flags2) << 32;
    let expected = Init::ASYNC_READ | Init::MAX_PAGES | Init::INIT_EXT | Init::DIRECT_IO_ALLOW_MMAP;
    assert_eq!(Init::from_bits_truncate(flags), expected);
}

#[test]
fn a_session_agrees_and_answers() {
    let (service, stats) = (Memory::default(), Stats::default());
    let offered = Init::ASYNC_READ
        | Init::MAX_PAGES
        | Init::INIT_EXT
        | Init::DIRECT_IO_ALLOW_MMAP
        | Init::WRITEBACK_CACHE;
    let ((), ended) = with(&service, &stats, |kernel| {
        agree(kernel, offered);
        let args = WriteIn {
            offset: 3,
            size: 5,
            ..WriteIn::default()
        };
        let (error, body) = kernel.ask(Opcode::Write, 2, &[args.as_bytes(), b"hello"]);
        assert_eq!(
            (error, WriteOut::read_from_bytes(&body).unwrap().size),
            (0, 5)
        );
        let args = ReadIn {
            offset: 1,
            size: 100,
            ..ReadIn::default()
        };
        assert_eq!(
            kernel.ask(Opcode::Read, 3, &[args.as_bytes()]),
            (0, b"\0\0hello".to_vec())
        );
        assert_eq!(
            kernel.ask(Opcode::Statfs, 4, &[]),
            (-libc::EDQUOT, Vec::new())
        );
        assert_eq!(
            kernel.ask(Opcode::Poll, 5, &[&[0; 24]]),
            (-libc::ENOSYS, Vec::new())
        );
        // These get no answer: the next answer is that of the next question.
        kernel.send(Opcode::Forget, 6, &[ForgetIn { nlookup: 4 }.as_bytes()]);
        assert_eq!(kernel.ask(Opcode::Readlink, 7, &[]).0, -libc::ENOSYS);
        // Half a request is an error of that request.
        assert_eq!(
            kernel.ask(Opcode::Write, 8, &[&[0; 8]]),
            (-libc::EIO, Vec::new())
        );
        assert_eq!(kernel.ask(Opcode::Read, 9, &[args.as_bytes()]).0, 0);
    });
    ended.unwrap();
    assert_eq!(*service.forgotten.lock().unwrap(), 4);
    assert_eq!(service.offer.lock().unwrap().unwrap().flags, offered);
    assert_eq!(stats.transport(), Some("dev"));
    let count = |op| {
        stats
            .messages()
            .iter()
            .find(|(o, _)| *o == op)
            .map_or(0, |(_, n)| *n)
    };
    assert_eq!(
        (
            count(Opcode::Read),
            count(Opcode::Write),
            count(Opcode::Forget)
        ),
        (2, 1, 1)
    );
}

#[test]
fn an_answer_that_waits_for_another_request_keeps_nobody_waiting() {
    let (service, stats) = (Memory::default(), Stats::default());
    let ((), ended) = with(&service, &stats, |kernel| {
        kernel.init(45, Init::ASYNC_READ);
        let ioctl = IoctlIn {
            cmd: 7,
            in_size: 3,
            out_size: 3,
            ..IoctlIn::default()
        };
        // The only worker takes the first one, and the second.
        kernel.send(Opcode::Ioctl, 2, &[ioctl.as_bytes(), b"abc"]);
        let args = WriteIn {
            size: 1,
            ..WriteIn::default()
        };
        kernel.send(Opcode::Write, 3, &[args.as_bytes(), b"x"]);
        let mut answers = [kernel.receive(), kernel.receive()];
        answers.sort_by_key(|(header, _)| header.unique);
        let [(first, echo), (second, _)] = answers;
        assert_eq!((first.unique, first.error, &echo[..]), (2, 0, &b"abc"[..]));
        assert_eq!((second.unique, second.error), (3, 0));
    });
    ended.unwrap();
}

#[test]
fn while_calls_wait_for_the_device_others_are_answered() {
    let (service, stats) = (Memory::default(), Stats::default());
    let ((), ended) = with(&service, &stats, |kernel| {
        kernel.init(45, Init::ASYNC_READ);
        let write = |unique, content: &[u8]| {
            let args = WriteIn {
                size: content.len() as u32,
                ..WriteIn::default()
            };
            kernel.send(Opcode::Write, unique, &[args.as_bytes(), content]);
        };
        for round in 1..20 {
            let first = round * 10;
            for n in 0..SPARE {
                let args = FsyncIn::default();
                kernel.send(Opcode::Fsync, first + n, &[args.as_bytes()]);
            }
            // The one place is free in between, however many wait.
            write(first + SPARE, b"");
            let (header, _) = kernel.receive();
            assert_eq!((header.unique, header.error), (first + SPARE, 0));
            while *service.syncing.lock().unwrap() != SPARE as u32 {
                thread::yield_now();
            }
            write(first + SPARE + 1, b"x");
            let mut answered: Vec<_> = (0..=SPARE).map(|_| kernel.receive().0.unique).collect();
            answered.sort_unstable();
            let mut sent: Vec<_> = (first..first + SPARE).collect();
            sent.push(first + SPARE + 1);
            assert_eq!(answered, sent);
            *service.syncing.lock().unwrap() = 0;
            service.content.lock().unwrap().clear();
        }
    });
    ended.unwrap();
}

#[test]
fn flags_beyond_the_first_word_count_only_where_the_kernel_says_so() {
    let (service, stats) = (Memory::default(), Stats::default());
    let offered = Init::ASYNC_READ | Init::DIRECT_IO_ALLOW_MMAP;
    let ((), ended) = with(&service, &stats, |kernel| {
        let out = InitOut::read_from_bytes(&kernel.init(36, offered).1).unwrap();
        assert_eq!((out.minor, out.flags2), (36, 0));
    });
    ended.unwrap();
}

#[test]
fn a_kernel_that_is_too_old_is_refused() {
    let (service, stats) = (Memory::default(), Stats::default());
    let (error, ended) = with(&service, &stats, |kernel| {
        kernel.init(30, Init::ASYNC_READ).0
    });
    assert_eq!(error, -libc::EPROTO);
    assert!(ended.unwrap_err().to_string().contains("7.31 (Linux 5.4)"));
}

#[test]
fn a_kernel_that_lacks_something_is_refused() {
    let (service, stats) = (Memory::default(), Stats::default());
    let (error, ended) = with(&service, &stats, |kernel| {
        kernel.init(45, Init::MAX_PAGES).0
    });
    assert_eq!(error, -libc::EPROTO);
    assert!(ended.unwrap_err().to_string().contains("no readahead"));
}
