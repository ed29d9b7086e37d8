use zerocopy::IntoBytes;

use super::*;
use crate::wire::{AccessIn, CopyFileRangeIn, InitIn};

/// A message as `/dev/fuse` delivers it.
fn message(opcode: Opcode, argument: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + argument.len() + payload.len()) as u32,
        opcode: opcode as u32,
        unique: 7,
        nodeid: 3,
        uid: 1000,
        gid: 100,
        ..InHeader::default()
    };
    [header.as_bytes(), argument, payload].concat()
}

/// What an operation looks like when it comes in one piece and in two, which must be the same.
#[track_caller]
fn both(opcode: Opcode, argument: &[u8], payload: &[u8]) -> String {
    let whole = message(opcode, argument, payload);
    let whole = Request::parse(&whole, true).unwrap();
    assert_eq!((whole.header.unique, whole.header.nodeid), (7, 3));
    let mut area = [0; 128];
    area[..argument.len()].copy_from_slice(argument);
    let split = Request::parse_split(whole.header, &area, payload).unwrap();
    let text = format!("{:?}", whole.op);
    assert_eq!(text, format!("{:?}", split.op));
    text
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// As `Debug` shows bytes.
fn shown(bytes: &[u8]) -> String {
    format!("{bytes:?}")
}

#[test]
fn names_end_at_the_zero_byte() {
    for opcode in [
        Opcode::Lookup,
        Opcode::Unlink,
        Opcode::Rmdir,
        Opcode::Removexattr,
    ] {
        has(&both(opcode, &[], b"name\0"), &[&shown(b"name")]);
    }
    let (a, b) = (shown(b"old"), shown(b"new"));
    has(
        &both(Opcode::Symlink, &[], b"old\0new\0"),
        &["Symlink", &a, &b],
    );
    let to = RenameIn { newdir: 9 };
    has(
        &both(Opcode::Rename, to.as_bytes(), b"old\0new\0"),
        &["newdir: 9", "flags: 0", &a, &b],
    );
    let to = Rename2In {
        newdir: 9,
        flags: 2,
        padding: 0,
    };
    has(
        &both(Opcode::Rename2, to.as_bytes(), b"old\0new\0"),
        &["newdir: 9", "flags: 2", &a, &b],
    );
    let link = LinkIn { oldnodeid: 12 };
    has(
        &both(Opcode::Link, link.as_bytes(), b"new\0"),
        &["inode: 12", &b],
    );
}

#[test]
fn arguments_come_before_names() {
    let args = CreateIn {
        flags: 1,
        mode: 2,
        umask: 3,
        open_flags: 4,
    };
    for opcode in [Opcode::Create, Opcode::Tmpfile] {
        let text = both(opcode, args.as_bytes(), b"n\0");
        has(
            &text,
            &[
                "flags: 1",
                "mode: 2",
                "umask: 3",
                "open_flags: 4",
                &shown(b"n"),
            ],
        );
    }
    let args = MknodIn {
        mode: 5,
        rdev: 6,
        umask: 7,
        padding: 0,
    };
    has(
        &both(Opcode::Mknod, args.as_bytes(), b"n\0"),
        &["mode: 5", "rdev: 6", &shown(b"n")],
    );
    let args = MkdirIn { mode: 5, umask: 7 };
    has(
        &both(Opcode::Mkdir, args.as_bytes(), b"n\0"),
        &["mode: 5", "umask: 7", &shown(b"n")],
    );
}

#[test]
fn attributes_have_values_with_any_bytes() {
    let args = SetxattrIn {
        size: 3,
        flags: 2,
        setxattr_flags: 1,
        padding: 0,
    };
    let text = both(Opcode::Setxattr, args.as_bytes(), b"user.a\0\0x\0");
    has(
        &text,
        &["setxattr_flags: 1", &shown(b"user.a"), &shown(b"\0x\0")],
    );
    // Kernels before 5.13 leave the second half out.
    let short = message(Opcode::Setxattr, &args.as_bytes()[..8], b"user.a\0\0x\0");
    let request = Request::parse(&short, false).unwrap();
    has(
        &format!("{:?}", request.op),
        &["setxattr_flags: 0", &shown(b"user.a"), &shown(b"\0x\0")],
    );
    let args = GetxattrIn {
        size: 65,
        padding: 0,
    };
    has(
        &both(Opcode::Getxattr, args.as_bytes(), b"user.a\0"),
        &["size: 65", &shown(b"user.a")],
    );
    has(
        &both(Opcode::Listxattr, args.as_bytes(), b""),
        &["size: 65"],
    );
}

#[test]
fn content_is_as_long_as_the_arguments_say() {
    let args = WriteIn {
        fh: 0,
        offset: 77,
        size: 5,
        write_flags: 4,
        ..WriteIn::default()
    };
    let text = both(Opcode::Write, args.as_bytes(), b"12345");
    has(&text, &["offset: 77", "write_flags: 4", &shown(b"12345")]);
    let short = message(Opcode::Write, args.as_bytes(), b"1234");
    assert!(Request::parse(&short, true).is_err());
    let args = IoctlIn {
        cmd: 8,
        in_size: 2,
        ..IoctlIn::default()
    };
    has(
        &both(Opcode::Ioctl, args.as_bytes(), b"ab"),
        &["cmd: 8", &shown(b"ab")],
    );
}

#[test]
fn what_is_about_a_range_of_a_file_is_arguments_only() {
    let args = ReadIn {
        offset: 4096,
        size: 8192,
        ..ReadIn::default()
    };
    for opcode in [Opcode::Read, Opcode::Readdir, Opcode::Readdirplus] {
        has(
            &both(opcode, args.as_bytes(), b""),
            &["offset: 4096", "size: 8192"],
        );
    }
    let args = FallocateIn {
        offset: 1,
        length: 2,
        mode: 3,
        ..FallocateIn::default()
    };
    has(
        &both(Opcode::Fallocate, args.as_bytes(), b""),
        &["offset: 1", "length: 2", "mode: 3"],
    );
    let args = LseekIn {
        offset: 1,
        whence: 3,
        ..LseekIn::default()
    };
    has(
        &both(Opcode::Lseek, args.as_bytes(), b""),
        &["offset: 1", "whence: 3"],
    );
    let args = CopyFileRangeIn {
        off_in: 1,
        nodeid_out: 2,
        off_out: 3,
        len: 4,
        ..Default::default()
    };
    has(
        &both(Opcode::CopyFileRange, args.as_bytes(), b""),
        &["wide: false", "len: 4"],
    );
    has(
        &both(Opcode::CopyFileRange64, args.as_bytes(), b""),
        &["wide: true", "len: 4"],
    );
}

#[test]
fn everything_else_is_arguments_only() {
    let args = SetattrIn {
        valid: 8,
        size: 100,
        ..SetattrIn::default()
    };
    has(
        &both(Opcode::Setattr, args.as_bytes(), b""),
        &["valid: 8", "size: 100"],
    );
    let args = FsyncIn {
        fsync_flags: 1,
        ..FsyncIn::default()
    };
    for opcode in [Opcode::Fsync, Opcode::Fsyncdir] {
        has(&both(opcode, args.as_bytes(), b""), &["fsync_flags: 1"]);
    }
    let args = AccessIn {
        mask: 6,
        padding: 0,
    };
    has(&both(Opcode::Access, args.as_bytes(), b""), &["mask: 6"]);
    for (opcode, name) in [
        (Opcode::Readlink, "Readlink"),
        (Opcode::Statfs, "Statfs"),
        (Opcode::Syncfs, "Syncfs"),
        (Opcode::Destroy, "Destroy"),
        (Opcode::Bmap, "Other { opcode: 37 }"),
    ] {
        assert_eq!(both(opcode, &[], b""), name);
    }
}

#[test]
fn forgets_come_one_by_one_and_in_lots() {
    has(
        &both(Opcode::Forget, ForgetIn { nlookup: 3 }.as_bytes(), b""),
        &["nlookup: 3"],
    );
    let lot = [
        ForgetOne {
            nodeid: 1,
            nlookup: 2,
        },
        ForgetOne {
            nodeid: 3,
            nlookup: 4,
        },
    ];
    let args = BatchForgetIn { count: 2, dummy: 0 };
    let whole = message(Opcode::BatchForget, args.as_bytes(), lot.as_bytes());
    // The kernel's messages are aligned to 8 bytes, as the transports' buffers are.
    let mut aligned = vec![0u64; whole.len().div_ceil(8)];
    aligned.as_mut_bytes()[..whole.len()].copy_from_slice(&whole);
    let request = Request::parse(&aligned.as_bytes()[..whole.len()], true).unwrap();
    assert!(matches!(request.op, Op::BatchForget { inodes } if inodes == lot));
    let args = BatchForgetIn {
        count: u32::MAX,
        dummy: 0,
    };
    let whole = message(Opcode::BatchForget, args.as_bytes(), lot.as_bytes());
    assert!(Request::parse(&whole, true).is_err());
}

/// Every message cut short anywhere is refused or still makes sense, and nothing panics.
#[test]
fn what_is_cut_short_is_refused() {
    let rest = [&[1; 64][..], b"name\0other\0"].concat();
    for opcode in Opcode::ALL {
        let whole = message(*opcode, &rest, &[]);
        for end in 0..whole.len() {
            let mut cut = whole[..end].to_vec();
            if let Some(len) = cut.get_mut(..4) {
                len.copy_from_slice((end as u32).as_bytes());
            }
            if let Err((header, Malformed)) = Request::parse(&cut, true) {
                assert_eq!(header.is_some(), end >= size_of::<InHeader>());
            } else {
                assert!(end >= size_of::<InHeader>() + argument_size(*opcode as u32, true));
            }
        }
    }
}

#[test]
fn a_length_beyond_the_message_is_refused() {
    let mut whole = message(Opcode::Statfs, &[], &[]);
    whole[..4].copy_from_slice(41u32.as_bytes());
    assert!(Request::parse(&whole, true).is_err());
    whole[..4].copy_from_slice(39u32.as_bytes());
    assert!(Request::parse(&whole, true).is_err());
}

#[test]
fn unknown_messages_are_called_so() {
    let mut whole = message(Opcode::Statfs, &[], InitIn::default().as_bytes());
    whole[4..8].copy_from_slice(4096u32.as_bytes());
    let request = Request::parse(&whole, true).unwrap();
    assert!(matches!(request.op, Op::Other { opcode: 4096 }));
}
