//! Idmapped mounts of a mount (`-o idmap`): who owns what on either side, who loses privileges, who may
//! do what only root may.
//!
//! Needs `/dev/fuse`, Linux 6.12, `python3`, `fstrim`, `unshare`, and root.

use crate::program;

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use program::{
    Mounted, QUAYFS, Scene, Start as _, as_nobody, as_user, can_be_root, quayfs, transport,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, XattrFlags,
    fallocate, ioctl_getflags, ioctl_setflags, linkat, mknodat, openat, renameat_with, setxattr,
};

/// Ways to mount: whether the daemon answers opens, whether the kernel collects writes, and whether there
/// are lists: with these the daemon applies the umask.
const WAYS: [&str; 4] = [
    "open=answer",
    "open=elide,noacl",
    "open=answer,writeback",
    "durability=commit,open=elide",
];
/// A user of the volume, and which user that is on the idmapped mount. Root is root on both.
const INSIDE: u32 = 1000;
const OUTSIDE: u32 = 2000;

/// Mounts a directory at another place, with two ids mapped as `id_map` has it: the volume's first.
const MAP: &str = "import ctypes, os, signal, sys
c = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    result = getattr(c, name)(*args)
    if result < 0:
        sys.exit(f'{args[0] if name == \"syscall\" else name}: {os.strerror(ctypes.get_errno())}')
    return result
source, target, inside, outside = sys.argv[1:]
ready, told = os.pipe()
child = os.fork()
if child == 0:
    call('unshare', 0x10000000)
    os.write(told, b'x')
    signal.pause()
os.read(ready, 1)
for kind in 'ug':
    with open(f'/proc/{child}/{kind}id_map', 'w') as f:
        f.write(f'0 0 1\\n{inside} {outside} 1\\n')
class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ('set', 'clear', 'propagation', 'userns')]
try:
    userns = os.open(f'/proc/{child}/ns/user', os.O_RDONLY)
    tree = call('syscall', 428, -100, os.fsencode(source), 1)
    idmap = Attributes(0x100000, 0, 0, userns)
    call('syscall', 442, tree, b'', 0x1000, ctypes.byref(idmap), ctypes.sizeof(idmap))
    call('syscall', 429, tree, b'', -100, os.fsencode(target), 4)
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
";

/// A mount, and an idmapped one of it that goes away first.
struct Mapped {
    mapped: PathBuf,
    plain: Mounted,
}

impl Mapped {
    fn new(way: &str) -> Self {
        let plain = Mounted::on(Scene::open_to_all(), &format!("idmap,allow_other,{way}"));
        fs::set_permissions(plain.mnt(), Permissions::from_mode(0o777)).unwrap();
        let mapped = plain.0.dir().join("mapped");
        fs::create_dir(&mapped).unwrap();
        map(&plain.mnt(), &mapped).unwrap();
        Self { mapped, plain }
    }

    /// The same name on both.
    fn both(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.plain.mnt().join(name), self.mapped.join(name))
    }

    fn end(self) {
        unmount(&self.mapped);
        self.plain.umount();
        self.plain.fsck();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|table| table.contains(&format!(" {} ", self.mapped.display())))
        {
            unmount(&self.mapped);
        }
    }
}

fn unmount(target: &Path) {
    let umount = Command::new("umount").arg("-il").arg(target).finish();
    assert!(umount.unwrap().success());
}

/// What went wrong, if it did.
fn map(source: &Path, target: &Path) -> Result<(), String> {
    let mut python = Command::new("python3");
    python.args(["-c", MAP]).arg(source).arg(target);
    let ids = [INSIDE, OUTSIDE].map(|id| id.to_string());
    let out = python.args(ids).capture().expect("python3");
    if out.status.success() {
        return Ok(());
    }
    Err(String::from_utf8(out.stderr).unwrap())
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (meta.uid(), meta.gid())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[track_caller]
fn refused<T>(result: io::Result<T>, with: i32) {
    let errno = result.err().and_then(|e| e.raw_os_error());
    assert_eq!(errno, Some(with));
}

#[test]
fn what_is_made_has_the_mapped_owner() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mapped::new(way);
        let (plain, mapped) = m.both("d");
        fs::create_dir(&plain).unwrap();
        fs::set_permissions(&plain, Permissions::from_mode(0o777)).unwrap();
        as_user(OUTSIDE, || {
            let at = |name: &str| mapped.join(name);
            fs::write(at("file"), b"content").unwrap();
            fs::create_dir(at("dir")).unwrap();
            symlink("file", at("link")).unwrap();
            mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            let file = File::from(openat(CWD, &mapped, flags, Mode::RWXU).unwrap());
            use std::os::fd::AsRawFd;
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, from, CWD, at("tmpfile"), AtFlags::SYMLINK_FOLLOW).unwrap();
            fs::write(at("moved"), b"").unwrap();
            let (from, to) = (at("moved"), at("renamed"));
            renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT).unwrap();
        });
        for name in ["file", "dir", "link", "fifo", "tmpfile", "moved", "renamed"] {
            assert_eq!(owner(&plain.join(name)), (INSIDE, INSIDE), "{way}: {name}");
            assert_eq!(
                owner(&mapped.join(name)),
                (OUTSIDE, OUTSIDE),
                "{way}: {name}"
            );
        }
        // A user that the mount does not map can make nothing there, but can on the mount that maps nothing.
        refused(
            as_nobody(|| fs::write(mapped.join("no"), b"")),
            libc::EOVERFLOW,
        );
        refused(
            as_nobody(|| fs::create_dir(mapped.join("no"))),
            libc::EOVERFLOW,
        );
        as_nobody(|| fs::write(plain.join("yes"), b"")).unwrap();
        assert_eq!(owner(&plain.join("yes")), (65534, 65534));
        // Root is root on both, and the volume's own user is the same user on the one that maps nothing.
        fs::write(mapped.join("root"), b"").unwrap();
        as_user(INSIDE, || fs::write(plain.join("user"), b"")).unwrap();
        assert_eq!(owner(&plain.join("root")), (0, 0));
        assert_eq!(owner(&mapped.join("user")), (OUTSIDE, OUTSIDE));
        m.end();
    }
}

#[test]
fn who_owns_a_file_decides_who_may_use_it() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mapped::new(way);
        let (plain, mapped) = m.both("f");
        fs::write(&plain, b"content").unwrap();
        fs::set_permissions(&plain, Permissions::from_mode(0o600)).unwrap();
        chown(&mapped, Some(OUTSIDE), Some(OUTSIDE)).unwrap();
        assert_eq!(owner(&plain), (INSIDE, INSIDE), "{way}");
        assert_eq!(owner(&mapped), (OUTSIDE, OUTSIDE), "{way}");
        assert_eq!(as_user(OUTSIDE, || fs::read(&mapped)).unwrap(), b"content");
        as_user(OUTSIDE, || fs::write(&mapped, b"other")).unwrap();
        as_user(OUTSIDE, || {
            fs::set_permissions(&mapped, Permissions::from_mode(0o640))
        })
        .unwrap();
        refused(as_user(OUTSIDE, || fs::read(&plain)), libc::EACCES);
        refused(as_user(INSIDE, || fs::read(&mapped)), libc::EACCES);
        assert_eq!(as_user(INSIDE, || fs::read(&plain)).unwrap(), b"other");
        // An id that the mount does not map means nothing there.
        refused(chown(&mapped, Some(7), None), libc::EOVERFLOW);
        chown(&plain, Some(7), None).unwrap();
        refused(as_user(OUTSIDE, || fs::write(&mapped, b"")), libc::EACCES);
        assert_eq!(owner(&plain), (7, INSIDE), "{way}");
        m.end();
    }
}

/// Takes set-user-id bits from a file in each way that does.
fn change(path: &Path, how: &str) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    match how {
        "write" => {
            file.write_all_at(b"x", 0)?;
            file.sync_all()
        }
        "truncate" => file.set_len(3),
        _ => Ok(fallocate(&file, FallocateFlags::empty(), 0, 8192)?),
    }
}

#[test]
fn writes_of_others_take_privileges_away() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mapped::new(way);
        let (plain, mapped) = m.both("f");
        fs::write(&plain, b"content").unwrap();
        chown(&plain, Some(INSIDE), Some(INSIDE)).unwrap();
        let set = || fs::set_permissions(&plain, Permissions::from_mode(0o6777)).unwrap();
        for how in ["write", "truncate", "fallocate"] {
            for (path, user) in [(&mapped, OUTSIDE), (&plain, INSIDE), (&plain, 65534)] {
                set();
                assert_eq!((mode(&plain), mode(&mapped)), (0o6777, 0o6777));
                as_user(user, || change(path, how)).unwrap();
                let now = (mode(&plain), mode(&mapped));
                assert_eq!(now, (0o777, 0o777), "{way}: {how} by {user}");
            }
            for path in [&mapped, &plain] {
                set();
                change(path, how).unwrap();
                let now = (mode(&plain), mode(&mapped));
                assert_eq!(now, (0o6777, 0o6777), "{way}: {how} by root");
            }
        }
        m.end();
    }
}

fn flag(path: &Path, flags: IFlags) -> io::Result<()> {
    Ok(ioctl_setflags(File::open(path)?, flags)?)
}

#[test]
fn flags_are_for_owners_as_the_mount_maps_them() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mapped::new(way);
        let (plain, mapped) = m.both("f");
        fs::write(&plain, b"content").unwrap();
        chown(&plain, Some(INSIDE), Some(INSIDE)).unwrap();
        as_user(OUTSIDE, || flag(&mapped, IFlags::NODUMP)).unwrap();
        as_user(INSIDE, || flag(&plain, IFlags::NODUMP | IFlags::NOATIME)).unwrap();
        let flags = || ioctl_getflags(File::open(&plain).unwrap()).unwrap();
        assert_eq!(flags(), IFlags::NODUMP | IFlags::NOATIME);
        for (path, user) in [(&mapped, INSIDE), (&plain, OUTSIDE), (&plain, 65534)] {
            refused(as_user(user, || flag(path, IFlags::empty())), libc::EPERM);
        }
        for (path, user) in [(&mapped, OUTSIDE), (&plain, INSIDE)] {
            for only_root in [IFlags::IMMUTABLE, IFlags::APPEND] {
                refused(as_user(user, || flag(path, only_root)), libc::EPERM);
            }
        }
        assert_eq!(flags(), IFlags::NODUMP | IFlags::NOATIME, "{way}");
        for path in [&mapped, &plain] {
            flag(path, IFlags::IMMUTABLE).unwrap();
            refused(fs::remove_file(&mapped), libc::EPERM);
            flag(path, IFlags::empty()).unwrap();
        }
        m.end();
    }
}

/// What only root may, by its name: `None` if it is done.
fn manage(mnt: &Path, what: &str) -> Option<String> {
    let failed = |e: io::Error| Some(e.to_string());
    match what {
        "trim" => {
            let out = Command::new("fstrim").arg(mnt).capture().expect("fstrim");
            (!out.status.success()).then(|| String::from_utf8(out.stderr).unwrap())
        }
        "shutdown" => {
            const CODE: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
            let mut python = Command::new("python3");
            let out = python.args(["-c", CODE]).arg(mnt).capture().unwrap();
            (!out.status.success()).then(|| String::from_utf8(out.stderr).unwrap())
        }
        "scrub" => setxattr(mnt, "quayfs.scrub", b"stop", XattrFlags::empty())
            .map_or_else(|e| failed(e.into()), |()| None),
        _ => {
            let mut value = [0; 4096];
            rustix::fs::getxattr(mnt, what, &mut value).map_or_else(|e| failed(e.into()), |_| None)
        }
    }
}

#[test]
fn what_only_root_may_is_refused_to_others() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mapped::new(way);
        let (plain, mapped) = (m.plain.mnt(), m.mapped.clone());
        for what in ["trim", "scrub", "quayfs.scrub", "quayfs.quota", "shutdown"] {
            for (mnt, user) in [(&mapped, OUTSIDE), (&plain, INSIDE), (&plain, 65534)] {
                let said = as_user(user, || manage(mnt, what)).expect(what);
                let denied = said.contains("not permitted");
                assert!(denied, "{way}: {what} by {user}: {said}");
            }
        }
        fs::write(mapped.join("still"), b"here").unwrap();
        for what in ["trim", "scrub", "quayfs.scrub", "quayfs.quota"] {
            for mnt in [&mapped, &plain] {
                assert_eq!(manage(mnt, what), None, "{way}: {what} by root");
            }
        }
        assert_eq!(manage(&mapped, "shutdown"), None, "{way}");
        refused(fs::write(plain.join("new"), b""), libc::EIO);
        m.end();
    }
}

/// Mounts in a process namespace of its own, in which it has number 1, and asks for a trim as another user.
const FIRST: &str = "import fcntl, os, struct, subprocess, sys
quayfs, vol, mnt, *options = sys.argv[1:]
subprocess.run([quayfs, 'mount', vol, mnt, '-o', 'idmap,allow_other', *options], check=True)
os.setresgid(7, 7, 7)
os.setresuid(7, 7, 7)
try:
    everything = struct.pack('QQQ', 0, 2**64 - 1, 0)
    fcntl.ioctl(os.open(mnt, os.O_RDONLY), 0xc0185879, everything)
    print('done', flush=True)
except OSError as e:
    print(e.strerror, flush=True)
sys.stdin.read()
";

/// A daemon that cannot see which process asks takes no caller for root. Here `/proc` is that of another
/// namespace, where number 1 is root's.
#[test]
fn who_cannot_be_seen_is_not_root() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::open_to_all();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    let mut first = Command::new("unshare");
    first.args(["--pid", "--fork", "python3", "-c", FIRST, QUAYFS]);
    first.arg(&vol).arg(&mnt);
    first.args(transport(&["mount".into()]));
    first.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut first = first.start().expect("unshare (package util-linux)");
    let m = Mounted(scene);
    let said = BufReader::new(first.stdout.take().unwrap()).lines();
    let last = said.map(Result::unwrap).find(|l| !l.contains(" on "));
    assert_eq!(last.as_deref(), Some("Operation not permitted"));
    // Out here every process is outside of that namespace.
    let f = mnt.join("f");
    fs::write(&f, b"content").unwrap();
    fs::set_permissions(&f, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(owner(&f), (0, 0), "what is made names its owner");
    flag(&f, IFlags::NODUMP).unwrap();
    for what in ["trim", "scrub", "quayfs.quota"] {
        let said = manage(&mnt, what).expect(what);
        assert!(said.contains("not permitted"), "{what}: {said}");
    }
    change(&f, "fallocate").unwrap();
    assert_eq!(mode(&f), 0o755);
    drop((m, first.stdin.take()));
    assert!(first.wait().unwrap().success());
}

#[test]
fn without_the_option_no_mount_maps_ids() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "allow_other");
    let mapped = m.0.dir().join("mapped");
    fs::create_dir(&mapped).unwrap();
    let said = map(&m.mnt(), &mapped);
    if said.is_ok() {
        unmount(&mapped);
    }
    assert_eq!(said, Err("442: Invalid argument\n".into()));
    let options = m.info()["options"].as_str().unwrap().to_owned();
    assert!(!options.contains("idmap"), "{options}");
    m.umount();
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let mount = ["mount".as_ref(), vol.as_os_str(), mnt.as_os_str()];
    let both = ["-o".as_ref(), "idmap,permissions=owner".as_ref()];
    quayfs(mount.into_iter().chain(both)).fails(1, "contradict");
    m.fsck();
}
