//! What a message asks for.

macro_rules! opcodes {
    ($($name:ident = $number:literal $text:literal,)+) => {
        /// What a message asks for (`enum fuse_opcode`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum Opcode {
            $($name = $number,)+
        }

        impl Opcode {
            /// Every opcode.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The opcode with this number.
            pub fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Its name in the kernel's header without the prefix, in small letters.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1 "lookup",
    Forget = 2 "forget",
    Getattr = 3 "getattr",
    Setattr = 4 "setattr",
    Readlink = 5 "readlink",
    Symlink = 6 "symlink",
    Mknod = 8 "mknod",
    Mkdir = 9 "mkdir",
    Unlink = 10 "unlink",
    Rmdir = 11 "rmdir",
    Rename = 12 "rename",
    Link = 13 "link",
    Open = 14 "open",
    Read = 15 "read",
    Write = 16 "write",
    Statfs = 17 "statfs",
    Release = 18 "release",
    Fsync = 20 "fsync",
    Setxattr = 21 "setxattr",
    Getxattr = 22 "getxattr",
    Listxattr = 23 "listxattr",
    Removexattr = 24 "removexattr",
    Flush = 25 "flush",
    Init = 26 "init",
    Opendir = 27 "opendir",
    Readdir = 28 "readdir",
    Releasedir = 29 "releasedir",
    Fsyncdir = 30 "fsyncdir",
    Getlk = 31 "getlk",
    Setlk = 32 "setlk",
    Setlkw = 33 "setlkw",
    Access = 34 "access",
    Create = 35 "create",
    Interrupt = 36 "interrupt",
    Bmap = 37 "bmap",
    Destroy = 38 "destroy",
    Ioctl = 39 "ioctl",
    Poll = 40 "poll",
    NotifyReply = 41 "notify_reply",
    BatchForget = 42 "batch_forget",
    Fallocate = 43 "fallocate",
    Readdirplus = 44 "readdirplus",
    Rename2 = 45 "rename2",
    Lseek = 46 "lseek",
    CopyFileRange = 47 "copy_file_range",
    Setupmapping = 48 "setupmapping",
    Removemapping = 49 "removemapping",
    Syncfs = 50 "syncfs",
    Tmpfile = 51 "tmpfile",
    Statx = 52 "statx",
    CopyFileRange64 = 53 "copy_file_range_64",
}

/// One more than the largest number.
pub const END: usize = 54;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_each_others_inverse() {
        let mut seen = 0;
        for number in 0..4096 {
            if let Some(op) = Opcode::of(number) {
                assert_eq!(op as u32, number);
                assert!((number as usize) < END);
                seen += 1;
            }
        }
        assert_eq!(seen, Opcode::ALL.len());
    }
}
