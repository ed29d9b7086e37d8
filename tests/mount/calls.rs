//! Calls that few programs make, as the kernel hands them on: files without a name, whiteouts, flags,
//! handles, trim, the end that is asked for.
//!
//! Needs `/dev/fuse`, `chattr`, `lsattr` and `fstrim`, and root for what only root may do.

use crate::program;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use program::{Mounted, Scene, Start as _, as_nobody, can_be_root, can_mount, eventually, quayfs};
use rustix::fs::{
    Advice, AtFlags, CWD, Dir, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, StatxFlags,
    Timespec, Timestamps, XattrFlags, fadvise, fallocate, getxattr, ioctl_getflags, ioctl_setflags,
    linkat, listxattr, openat, removexattr, renameat_with, setxattr, statvfs, statx, utimensat,
};
use rustix::io::Errno;

/// Ways to mount: whether the daemon answers opens, and whether the kernel collects writes.
const WAYS: [&str; 4] = [
    "open=answer",
    "open=elide",
    "durability=commit,permissions=owner,open=elide",
    "open=answer,writeback",
];

fn mounted(options: &str) -> Mounted {
    Mounted::on(Scene::in_memory(), options)
}

/// A mount with a file and a directory, and where they are.
fn with_file_and_dir(options: &str) -> (Mounted, PathBuf, PathBuf) {
    let m = mounted(options);
    let (f, dir) = (m.mnt().join("f"), m.mnt().join("dir"));
    fs::write(&f, b"content").unwrap();
    fs::create_dir(&dir).unwrap();
    (m, f, dir)
}

/// Ends the mount and has the volume checked.
#[track_caller]
fn end(m: &Mounted) {
    m.umount();
    m.fsck();
}

fn tmpfile(dir: &Path, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
    openat(CWD, dir, flags, Mode::from(0o640)).map(File::from)
}

/// Gives an open file a name.
fn name(file: &File, to: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

fn flags(path: &Path) -> IFlags {
    ioctl_getflags(File::open(path).unwrap()).unwrap()
}

fn set(path: &Path, flags: IFlags) -> Result<(), Errno> {
    ioctl_setflags(File::open(path).unwrap(), flags)
}

#[track_caller]
fn refused<T>(result: io::Result<T>) {
    let errno = result.err().and_then(|e| e.raw_os_error());
    assert_eq!(errno, Some(libc::EPERM));
}

fn run(program: &str, args: &[&str], path: &Path) -> Option<String> {
    let output = Command::new(program).args(args).arg(path).capture();
    let output = output.unwrap_or_else(|e| panic!("{program} (package e2fsprogs): {e}"));
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

#[test]
fn files_without_a_name() {
    if !can_mount() {
        return;
    }
    for way in WAYS {
        let m = mounted(way);
        let dir = m.mnt().join("dir");
        fs::create_dir(&dir).unwrap();
        let mut gone = tmpfile(&dir, OFlags::empty()).unwrap();
        gone.write_all(&[7; 10_000]).unwrap();
        let mut kept = tmpfile(&dir, OFlags::empty()).unwrap();
        kept.write_all(b"content").unwrap();
        assert_eq!(kept.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        name(&kept, &dir.join("kept")).unwrap();
        assert_eq!(kept.metadata().unwrap().nlink(), 1);
        assert_eq!(fs::read(dir.join("kept")).unwrap(), b"content");
        // Once named it is a file like others: without its last name it gets no other.
        fs::remove_file(dir.join("kept")).unwrap();
        assert_eq!(name(&kept, &dir.join("kept")), Err(Errno::NOENT));
        let never = tmpfile(&dir, OFlags::EXCL).unwrap();
        assert_eq!(name(&never, &dir.join("never")), Err(Errno::NOENT));
        let direct = tmpfile(&dir, OFlags::DIRECT).unwrap();
        name(&direct, &dir.join("direct")).unwrap();
        let mut content = Vec::new();
        gone.read_to_end(&mut content).unwrap();
        drop((gone, kept, never, direct));
        end(&m);
        // Nothing is left of them.
        let fsck = quayfs(["fsck".as_ref(), m.0.vol().as_os_str()]).ok();
        assert!(fsck.contains("3 inodes"), "{fsck}");
        assert!(fsck.contains(" 0 orphans"), "{fsck}");
    }
}

/// Runs `fstrim`; what it says on the standard error if it fails.
fn fstrim(mnt: &Path, args: &[&str]) -> Result<u64, String> {
    let output = Command::new("fstrim")
        .args(args)
        .arg("-v")
        .arg(mnt)
        .capture();
    let output = output.unwrap_or_else(|e| panic!("fstrim (package util-linux): {e}"));
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    // `MOUNTPOINT: 1.5 GiB (1610612736 bytes) trimmed`
    let text = String::from_utf8(output.stdout).unwrap();
    let bytes = text.split_once('(').and_then(|(_, t)| t.split_once(' '));
    Ok(bytes.unwrap_or_else(|| panic!("{text}")).0.parse().unwrap())
}

fn free(mnt: &Path) -> u64 {
    let s = statvfs(mnt).unwrap();
    s.f_bfree * s.f_frsize
}

/// Waits until so much is free: the kernel tells in its own time that it has forgotten a file, and only
/// then its blocks are.
fn forgotten(mnt: &Path, wanted: u64) {
    eventually("a file is forgotten", || free(mnt) >= wanted);
}

#[test]
fn what_is_free_goes_back_to_the_disk() {
    if !can_be_root() {
        return;
    }
    const MIB: usize = 1 << 20;
    let content = |seed: usize| -> Vec<u8> {
        (0..24 * MIB)
            .map(|i| ((i * 31) >> 7) as u8 ^ seed as u8)
            .collect()
    };
    for way in [
        "open=answer",
        "durability=commit,data=ordered",
        "checkpoint=swap",
    ] {
        let m = Mounted::on(Scene::open_to_all(), &format!("allow_other,{way}"));
        let (keep, gone) = (m.mnt().join("keep"), m.mnt().join("gone"));
        fs::write(&gone, content(1)).unwrap();
        fs::write(&keep, content(2)).unwrap();
        // Parts of blocks as well, and what is staged when others are discarded.
        File::options()
            .write(true)
            .open(&keep)
            .unwrap()
            .write_all_at(&[9; 100], 5000)
            .unwrap();
        m.umount();
        m.mount(&format!("allow_other,{way}"));
        let data = m.0.vol().join("data");
        let held = || fs::metadata(&data).unwrap().blocks() * 512 / MIB as u64;
        let before = held();
        assert!(before >= 48, "{before}");
        let denied = as_nobody(|| fstrim(&m.mnt(), &[])).unwrap_err();
        assert!(denied.contains("not permitted"), "{denied}");
        fstrim(&m.mnt(), &["--offset", "1T"]).unwrap_err();
        let free = free(&m.mnt());
        fs::remove_file(&gone).unwrap();
        forgotten(&m.mnt(), free + 24 * MIB as u64);
        let before_end = m.0.vol().join("data").metadata().unwrap().len();
        let trimmed = fstrim(&m.mnt(), &[]).unwrap();
        // 128 MiB of data, of which 24 are in use.
        assert!(
            trimmed >= 90 * MIB as u64 && trimmed <= 104 * MIB as u64,
            "{trimmed}"
        );
        assert!((24..=26).contains(&held()), "{before} before, {}", held());
        assert_eq!(data.metadata().unwrap().len(), before_end);
        assert!(fstrim(&m.mnt(), &["--minimum", "64M"]).unwrap() <= trimmed);
        assert!(fstrim(&m.mnt(), &["--offset", "4096", "--length", "8192"]).unwrap() <= 8192);
        let mut want = content(2);
        want[5000..5100].fill(9);
        assert_eq!(fs::read(&keep).unwrap(), want);
        // What was discarded reads as what is written there next.
        fs::write(&gone, content(3)).unwrap();
        m.umount();
        m.mount(&format!("allow_other,{way}"));
        assert_eq!(fs::read(&gone).unwrap(), content(3));
        assert_eq!(fs::read(&keep).unwrap(), want);
        end(&m);
    }
}

/// Takes a handle of each path; or opens what handles name and reads that.
const HANDLES: &str = "import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('len', ctypes.c_uint), ('kind', ctypes.c_int), ('bytes', ctypes.c_ubyte * 128)]
what, mnt, *rest = sys.argv[1:]
for arg in rest:
    h = Handle(128)
    if what == 'take':
        mount_id = ctypes.c_int()
        if c.name_to_handle_at(-100, os.fsencode(arg), ctypes.byref(h), ctypes.byref(mount_id), 0):
            sys.exit(os.strerror(ctypes.get_errno()))
        print(f'{h.kind}:{bytes(h.bytes[:h.len]).hex()}')
        continue
    kind, hexed = arg.split(':')
    raw = bytes.fromhex(hexed)
    h.len, h.kind = len(raw), int(kind)
    ctypes.memmove(h.bytes, raw, len(raw))
    root = os.open(mnt, os.O_RDONLY)
    fd = c.open_by_handle_at(root, ctypes.byref(h), os.O_RDONLY)
    if fd < 0:
        print(os.strerror(ctypes.get_errno()))
    elif os.path.isdir(f'/proc/self/fd/{fd}'):
        print(sorted(os.listdir(fd)))
    else:
        print(os.read(fd, 100).decode())
";

fn handles(what: &str, mnt: &Path, rest: &[String]) -> Vec<String> {
    let mut python = Command::new("python3");
    python.args(["-c", HANDLES, what]).arg(mnt).args(rest);
    let out = python.capture().unwrap();
    let told = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    told.lines().map(str::to_owned).collect()
}

#[test]
fn handles_outlive_the_mount_and_not_the_file() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = mounted(way);
        let mnt = m.mnt();
        fs::create_dir(mnt.join("d")).unwrap();
        let names = ["d", "d/kept", "d/gone", "d/again"].map(|n| mnt.join(n));
        names[1..]
            .iter()
            .for_each(|n| fs::write(n, "content").unwrap());
        let paths = names.each_ref().map(|n| n.to_str().unwrap().to_owned());
        let taken = handles("take", &mnt, &paths);
        m.umount();
        m.mount(way);
        fs::remove_file(&names[2]).unwrap();
        // The number may be given again; the generation is another.
        fs::remove_file(&names[3]).unwrap();
        fs::write(&names[3], "another").unwrap();
        m.umount();
        m.mount(way);
        let stale = "Stale file handle";
        assert_eq!(
            handles("open", &mnt, &taken),
            ["['again', 'kept']", "content", stale, stale],
            "{way}"
        );
        end(&m);
    }
}

#[test]
fn whiteouts() {
    if !can_mount() {
        return;
    }
    for way in WAYS {
        let m = mounted(way);
        let (a, b, c) = (m.mnt().join("a"), m.mnt().join("b"), m.mnt().join("c"));
        fs::write(&a, b"content").unwrap();
        let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
        rename(&a, &b, RenameFlags::WHITEOUT).unwrap();
        let left = fs::symlink_metadata(&a).unwrap();
        assert!(left.file_type().is_char_device());
        assert_eq!((left.mode() & 0o7777, left.rdev(), left.nlink()), (0, 0, 1));
        assert_eq!(fs::read(&b).unwrap(), b"content");
        let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
        assert_eq!(rename(&b, &a, both), Err(Errno::EXIST));
        rename(&b, &c, both).unwrap();
        assert!(
            fs::symlink_metadata(&b)
                .unwrap()
                .file_type()
                .is_char_device()
        );
        let exchange = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
        assert_eq!(rename(&b, &c, exchange), Err(Errno::INVAL));
        end(&m);
    }
}

#[test]
fn immutable() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let (m, f, dir) = with_file_and_dir(way);
        fs::write(dir.join("in"), b"").unwrap();
        let before = File::options().write(true).open(&f).unwrap();
        set(&f, IFlags::IMMUTABLE).unwrap();
        set(&dir, IFlags::IMMUTABLE).unwrap();
        assert_eq!(flags(&f), IFlags::IMMUTABLE);
        let writes = File::options().write(true).open(&f);
        if way.contains("elide") {
            // The daemon does not hear of it; nothing comes of it.
            refused(writes.unwrap().write_all(b"x"));
        } else {
            refused(writes);
        }
        if !way.contains("writeback") {
            refused(before.write_all_at(b"x", 0));
        }
        refused(before.set_len(0));
        refused(fs::File::create(&f));
        refused(fallocate(&before, FallocateFlags::empty(), 0, 9).map_err(Into::into));
        refused(fs::set_permissions(&f, fs::Permissions::from_mode(0o000)));
        refused(std::os::unix::fs::chown(&f, Some(1), None));
        refused(fs::hard_link(&f, m.mnt().join("g")));
        refused(fs::rename(&f, m.mnt().join("g")));
        refused(fs::remove_file(&f));
        refused(setxattr(&f, "user.a", b"", XattrFlags::empty()).map_err(Into::into));
        refused(File::create(dir.join("new")));
        refused(fs::remove_file(dir.join("in")));
        assert_eq!(tmpfile(&dir, OFlags::empty()).err(), Some(Errno::PERM));
        fs::write(dir.join("in"), b"more").unwrap();
        assert_eq!(fs::read(&f).unwrap(), b"content");
        drop(before);
        end(&m);
        // The next mount knows.
        m.mount(way);
        refused(fs::remove_file(&f));
        assert_eq!(fs::read(&f).unwrap(), b"content");
        set(&f, IFlags::empty()).unwrap();
        fs::write(&f, b"other").unwrap();
        end(&m);
    }
}

/// The kernel opens and collects by itself: what is written is refused when it arrives.
#[test]
fn nothing_arrives_where_the_kernel_asks_nobody() {
    if !can_be_root() {
        return;
    }
    const WAY: &str = "open=elide,writeback";
    let m = mounted(WAY);
    let f = m.mnt().join("f");
    fs::write(&f, b"content").unwrap();
    set(&f, IFlags::IMMUTABLE).unwrap();
    assert_eq!(set(&f, IFlags::APPEND), Err(Errno::OPNOTSUPP));
    let file = File::options().write(true).open(&f).unwrap();
    file.write_all_at(b"xxx", 0).unwrap();
    assert!(file.sync_all().is_err());
    refused(file.set_len(0));
    drop(file);
    end(&m);
    m.mount(WAY);
    assert_eq!(fs::read(&f).unwrap(), b"content");
    end(&m);
}

#[test]
fn append_only() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let (m, f, dir) = with_file_and_dir(way);
        set(&dir, IFlags::APPEND).unwrap();
        fs::write(dir.join("new"), b"").unwrap();
        refused(fs::remove_file(dir.join("new")));
        refused(fs::rename(dir.join("new"), dir.join("newer")));
        if way.contains("writeback") {
            assert_eq!(set(&f, IFlags::APPEND), Err(Errno::OPNOTSUPP));
            end(&m);
            continue;
        }
        set(&f, IFlags::APPEND).unwrap();
        let append = || File::options().append(true).open(&f);
        append().unwrap().write_all(b" and more").unwrap();
        append().unwrap().write_all(&[b'x'; 10_000]).unwrap();
        let writes = File::options().write(true).open(&f);
        if way.contains("elide") {
            let writes = writes.unwrap();
            refused(writes.write_all_at(b"x", 0));
            refused(writes.write_all_at(b"x", 10_016));
        } else {
            refused(writes);
        }
        refused(File::create(&f));
        refused(append().unwrap().set_len(3));
        refused(fs::remove_file(&f));
        let content = fs::read(&f).unwrap();
        assert_eq!(content.len(), 10_016);
        assert!(content.starts_with(b"content and more"));
        end(&m);
    }
}

#[test]
fn flags_as_programs_show_them() {
    if !can_mount() {
        return;
    }
    let (m, f, dir) = with_file_and_dir("open=answer");
    assert!(run("chattr", &["+dAS"], &f).is_some());
    assert!(run("chattr", &["+DP", "-p", "42"], &dir).is_some());
    fs::write(dir.join("in"), b"").unwrap();
    // Of a file there is no `D`, and `c` is none of ours.
    assert_eq!(set(&f, IFlags::DIRSYNC), Err(Errno::OPNOTSUPP));
    assert!(run("chattr", &["+c"], &f).is_none());
    let line = |path: &Path| run("lsattr", &["-d", "-p", "-v"], path).unwrap();
    let words = |line: &str| -> Vec<String> {
        let words = line.split_whitespace().take(3);
        words.map(|w| w.replace('-', "")).collect()
    };
    let shown = words(&line(&f));
    assert_eq!((&*shown[0], &*shown[2]), ("0", "SdA"));
    let shown = words(&line(&dir));
    assert_eq!((&*shown[0], &*shown[2]), ("42", "DP"));
    let shown = words(&line(&dir.join("in")));
    assert_eq!((&*shown[0], &*shown[2]), ("42", ""));
    // The version is the generation, of which the second file of a volume has another than the first.
    assert_ne!(words(&line(&f))[1], words(&line(&dir.join("in")))[1]);
    // Into another project nothing is moved.
    let moved = fs::rename(&f, dir.join("f")).unwrap_err();
    assert_eq!(moved.raw_os_error(), Some(libc::EXDEV));
    end(&m);
}

/// The kernel keeps attributes, among them the time of the last change, and takes flags for none.
#[test]
fn chattr_is_a_change() {
    if !can_mount() {
        return;
    }
    for way in WAYS {
        let (m, f, dir) = with_file_and_dir(way);
        for path in [&f, &dir] {
            let changed = || {
                let meta = fs::metadata(path).unwrap();
                (meta.ctime(), meta.ctime_nsec())
            };
            let made = changed();
            set(path, IFlags::NODUMP).unwrap();
            let flagged = changed();
            assert!(run("chattr", &["-p", "7"], path).is_some());
            // With `writeback` the kernel keeps the times of files itself.
            if way.contains("writeback") && path == &f {
                assert_eq!((flagged, changed()), (made, made), "{way}");
            } else {
                assert!(made < flagged && flagged < changed(), "{way}");
            }
        }
        end(&m);
    }
}

fn accessed(path: &Path) -> (i64, i64) {
    let meta = fs::metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec())
}

/// With `strictatime` the kernel answers no read by itself.
#[test]
fn every_read_is_noted() {
    if !can_mount() {
        return;
    }
    for more in ["", ",writeback", ",durability=commit"] {
        let (m, f, dir) = with_file_and_dir(&format!("strictatime{more}"));
        let mut file = File::open(&f).unwrap();
        let mut last = (0, 0);
        for _ in 0..3 {
            assert_eq!(fs::read(&f).unwrap(), b"content");
            let read = accessed(&f);
            file.read_exact(&mut [0]).unwrap();
            assert!(read > last && accessed(&f) > read, "{more}");
            last = accessed(&f);
        }
        drop(file);
        let mut last = (0, 0);
        for _ in 0..3 {
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
            assert!(accessed(&dir) > last, "{more}");
            last = accessed(&dir);
        }
        end(&m);
    }
}

/// What is opened with `O_NOATIME` is read without a trace, also where the kernel opens without asking.
#[test]
fn some_reads_are_not_noted() {
    if !can_mount() {
        return;
    }
    for way in WAYS {
        let (m, f, dir) = with_file_and_dir(way);
        let long_ago = Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 0,
        };
        let open = |path: &Path, more| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
            openat(CWD, path, flags, Mode::empty()).unwrap()
        };
        let mut changes = long_ago.tv_sec..;
        let mut age = |path: &Path| {
            // Not newer than the change of the content, so that the next read would be noted. That is another
            // one each time, or the kernel would list a directory by itself.
            let times = Timestamps {
                last_access: long_ago,
                last_modification: Timespec {
                    tv_sec: changes.next().unwrap(),
                    tv_nsec: 0,
                },
            };
            utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
        };
        File::open(&f).unwrap().sync_all().unwrap();
        for (more, noted) in [(OFlags::NOATIME, false), (OFlags::empty(), true)] {
            age(&f);
            let file = open(&f, more);
            // What the kernel remembers it does not ask for.
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            assert_eq!(rustix::io::read(&file, &mut [0; 100]), Ok(7));
            assert_eq!(accessed(&f).0 != long_ago.tv_sec, noted, "{way}");
            age(&dir);
            let listed = Dir::new(open(&dir, more | OFlags::DIRECTORY)).unwrap();
            assert_eq!(listed.count(), 2);
            assert_eq!(accessed(&dir).0 != long_ago.tv_sec, noted, "{way}");
        }
        end(&m);
    }
}

/// Programs probe for what is there by names that others know of.
#[test]
fn attributes_have_the_names_of_linux() {
    if !can_mount() {
        return;
    }
    let (m, f, dir) = with_file_and_dir("open=answer");
    let call = |path: &Path, name: &str| {
        let set = setxattr(path, name, b"x", XattrFlags::empty());
        let got = getxattr(path, name, &mut [0; 10]).map(drop);
        (set, got, removexattr(path, name))
    };
    for (name, why) in [
        ("btrfs.compression", Errno::OPNOTSUPP),
        ("system.nfs4_acl", Errno::OPNOTSUPP),
        ("os2.x", Errno::OPNOTSUPP),
        ("User.x", Errno::OPNOTSUPP),
        ("userx", Errno::OPNOTSUPP),
        ("bare", Errno::OPNOTSUPP),
        // Such names are asked for everywhere, and this one is none.
        ("quayfs.other", Errno::OPNOTSUPP),
        ("user.", Errno::INVAL),
        ("security.", Errno::INVAL),
        ("trusted.", Errno::INVAL),
    ] {
        // About an empty name in there, the kernel itself answers only callers that may ask.
        if name == "trusted." && !rustix::process::geteuid().is_root() {
            continue;
        }
        for path in [&f, &dir] {
            assert_eq!(call(path, name), (Err(why), Err(why), Err(why)), "{name}");
        }
    }
    assert_eq!(call(&m.mnt(), "quayfs.other").0, Err(Errno::OPNOTSUPP));
    for path in [&f, &dir] {
        assert_eq!(listxattr(path, &mut [0u8; 10]), Ok(0));
        assert_eq!(call(path, "user.x"), (Ok(()), Ok(()), Ok(())));
    }
    end(&m);
}

/// `FS_IOC_SHUTDOWN`, as root may call it.
const SHUTDOWN: &str = "import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x8004587d, struct.pack('I', int(sys.argv[2])))
";

/// After a shutdown there are only errors; the next mount has everything that was done before, open
/// files without a name excepted.
#[test]
fn a_mount_is_shut_down() {
    if !can_mount() {
        return;
    }
    for way in WAYS {
        let (m, f, dir) = with_file_and_dir(way);
        let mut open = File::create(dir.join("open")).unwrap();
        open.write_all(&[7; 10_000]).unwrap();
        // What the kernel has collected is its own until it is sent.
        open.sync_all().unwrap();
        File::open(&f).unwrap().sync_all().unwrap();
        let gone = tmpfile(&dir, OFlags::empty()).unwrap();
        let mnt = m.mnt();
        let shutdown = |flag| {
            run(
                "python3",
                &["-c", SHUTDOWN, mnt.to_str().unwrap()],
                Path::new(flag),
            )
        };
        assert!(shutdown("2").is_some(), "{way}");
        for failed in [
            fs::write(mnt.join("new"), b"").unwrap_err(),
            fs::create_dir(mnt.join("sub")).unwrap_err(),
            fs::remove_file(&f).unwrap_err(),
            fs::set_permissions(&f, fs::Permissions::from_mode(0o600)).unwrap_err(),
        ] {
            assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{way}: {failed}");
        }
        assert!(m.info()["pid"].is_number(), "{way}: an unmount asks it");
        drop((open, gone));
        m.umount();
        let fsck = quayfs(["fsck".as_ref(), m.0.vol().as_os_str()]).ok();
        assert!(fsck.contains("not unmounted cleanly"), "{way}: {fsck}");
        assert!(fsck.contains(" 1 orphan)"), "{way}: {fsck}");
        m.mount(way);
        assert_eq!(fs::read(&f).unwrap(), b"content");
        assert_eq!(fs::read(dir.join("open")).unwrap(), [7; 10_000]);
        assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2);
        end(&m);
    }
}

/// The kernel remembers the mode, and executes by it; a program that asks for nothing but the mode is
/// shown that as well.
#[test]
fn writes_of_others_take_privileges_away() {
    if !can_mount() || !can_be_root() {
        return;
    }
    for way in ["allow_other,open=answer", "allow_other,open=elide"] {
        let m = Mounted::on(Scene::open_to_all(), way);
        let f = m.mnt().join("f");
        for flags in [OFlags::empty(), OFlags::DIRECT] {
            fs::write(&f, [1; 4096]).unwrap();
            fs::set_permissions(&f, fs::Permissions::from_mode(0o6777)).unwrap();
            let mode = || {
                let now = statx(CWD, &f, AtFlags::empty(), StatxFlags::MODE).unwrap();
                now.stx_mode & 0o7777
            };
            assert_eq!(mode(), 0o6777);
            as_nobody(|| {
                let file = openat(CWD, &f, OFlags::WRONLY | flags, Mode::empty()).map(File::from);
                let file = file.unwrap();
                file.write_all_at(&Page([2; 4096]).0, 0).unwrap();
            });
            assert_eq!(mode(), 0o777, "{way}, {flags:?}");
        }
        end(&m);
    }
}

/// What direct I/O wants to be aligned.
#[repr(align(4096))]
struct Page([u8; 4096]);
