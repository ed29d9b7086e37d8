//! Who may do what: that depends on the capabilities that the caller has for the daemon, not on being user 0.
//!
//! Needs `/dev/fuse`, root, `python3`, and `setpriv` and `unshare` (util-linux).

use crate::program;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use program::namespace::{copies, no_copies};
use program::{Mounted, Scene, Start as _, as_nobody, can_be_root};
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;

/// Does things to a directory or file, and says of each what became of it.
const CALLS: &str = "import errno, fcntl, os, struct, sys
path, *calls = sys.argv[1:]
def ioctl(number, *args):
    return lambda: fcntl.ioctl(os.open(path, os.O_RDONLY), number, *args)
quota = b'{\"project\":7,\"bytes_hard\":1234567}'
flags = lambda n: ioctl(0x40086602, struct.pack('l', n))
known = {
    'trim': ioctl(0xc0185879, struct.pack('QQQ', 0, 2**64 - 1, 0)),
    'shutdown': ioctl(0x8004587d, struct.pack('I', 1)),
    'quota': lambda: os.setxattr(path, b'quayfs.quota', quota),
    'quotas': lambda: os.getxattr(path, b'quayfs.quota'),
    'scrub': lambda: os.setxattr(path, b'quayfs.scrub', b'stop'),
    'findings': lambda: os.getxattr(path, b'quayfs.scrub'),
    'nodump': flags(0x40), 'immutable': flags(0x10), 'plain': flags(0),
    'fallocate': lambda: os.posix_fallocate(os.open(path, os.O_RDWR), 0, 100),
    'trusted': lambda: 'trusted.x' in os.listxattr(path) or sys.exit('trusted: hidden'),
}
for call in calls:
    try: known[call](); print(call, 'done')
    except OSError as e: print(call, errno.errorcode[e.errno])
";

/// Root of a container: user 0, and none of what is not listed.
fn without(missing: &str) -> Vec<String> {
    let all = "-all,+chown,+dac_override,+dac_read_search,+fowner,+fsetid,+linux_immutable,+setuid,+setgid,\
               +setpcap,+setfcap,+sys_admin,+sys_resource";
    let list = all.replace(&format!(",+{missing}"), "");
    vec![
        "setpriv".into(),
        format!("--bounding-set={list}"),
        "--inh-caps=-all".into(),
    ]
}

/// A user other than root, with one capability.
fn nobody_with(one: &str) -> Vec<String> {
    let mut words: Vec<String> = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]
    .map(Into::into)
    .into();
    words.push(format!("--inh-caps=+{one}"));
    words.push(format!("--ambient-caps=+{one}"));
    words
}

/// Root of a user namespace that is root out here as well.
fn in_a_user_namespace() -> Vec<String> {
    ["unshare", "--user", "--map-root-user"]
        .map(Into::into)
        .into()
}

/// What became of these calls.
#[track_caller]
fn calls(prefix: &[String], path: &Path, calls: &[&str]) -> Vec<String> {
    let mut words: Vec<&str> = prefix.iter().map(String::as_str).collect();
    words.extend(["python3", "-c", CALLS, path.to_str().unwrap()]);
    words.extend(calls);
    let mut command = Command::new(words[0]);
    // Programs that other users may run too: not those in a user's home.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:/bin:{path}"));
    let out = command.args(&words[1..]).capture().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let complaint = String::from_utf8(out.stderr).unwrap();
    said.lines()
        .chain(complaint.lines())
        .map(Into::into)
        .collect()
}

#[track_caller]
fn all_become(prefix: &[String], path: &Path, names: &[&str], end: &str) {
    let want: Vec<String> = names.iter().map(|name| format!("{name} {end}")).collect();
    assert_eq!(calls(prefix, path, names), want, "{prefix:?}");
}

const MANAGED: [&str; 6] = ["trim", "quota", "quotas", "scrub", "findings", "shutdown"];
/// Ways to mount: requests say which user asks, or do not.
const WAYS: [&str; 2] = [
    "allow_other,durability=op",
    "allow_other,durability=op,idmap",
];

#[test]
fn root_of_a_container_does_not_manage_the_mount() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mounted::on(Scene::open_to_all(), way);
        let mnt = m.mnt();
        all_become(&without("sys_admin"), &mnt, &MANAGED, "EPERM");
        all_become(&in_a_user_namespace(), &mnt, &MANAGED, "EPERM");
        all_become(&nobody_with("dac_override"), &mnt, &MANAGED, "EPERM");
        fs::write(mnt.join("still"), b"here").unwrap();
        // It is the capability that counts, whichever user has it.
        all_become(
            &nobody_with("sys_admin"),
            &mnt,
            &["trim", "quotas", "findings"],
            "done",
        );
        all_become(&without("nothing"), &mnt, &MANAGED[..5], "done");
        all_become(&nobody_with("sys_admin"), &mnt, &["shutdown"], "done");
        assert_eq!(
            fs::write(mnt.join("new"), b"").unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        m.umount();
    }
}

/// A new process namespace, whose tasks the daemon sees under other numbers than they have themselves.
#[test]
fn tasks_are_seen_from_outside_of_their_namespace() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "allow_other,durability=op");
    // Another `/proc` takes a mount namespace.
    let copies = copies();
    let inside = ["unshare", "--pid", "--mount-proc", "--fork"].map(String::from);
    all_become(&inside, &m.mnt(), &["trim", "quota"], "done");
    let less = [&inside[..], &without("sys_admin")].concat();
    all_become(&less, &m.mnt(), &["trim", "quota", "shutdown"], "EPERM");
    drop(copies);
    m.umount();
}

#[test]
fn privileges_of_a_file_are_kept_for_a_capability() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mounted::on(Scene::open_to_all(), way);
        let f = m.mnt().join("f");
        fs::write(&f, b"content").unwrap();
        let after = |who: &[String]| {
            chown(&f, Some(0), Some(0)).unwrap();
            fs::set_permissions(&f, Permissions::from_mode(0o6777)).unwrap();
            all_become(who, &f, &["fallocate"], "done");
            f.metadata().unwrap().mode() & 0o7777
        };
        assert_eq!(after(&without("nothing")), 0o6777, "{way}");
        assert_eq!(after(&nobody_with("fsetid")), 0o6777, "{way}");
        assert_eq!(after(&without("fsetid")), 0o777, "{way}");
        assert_eq!(after(&in_a_user_namespace()), 0o777, "{way}");
        m.umount();
        m.fsck();
    }
}

#[test]
fn flags_are_for_the_owner_and_for_capabilities() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mounted::on(Scene::open_to_all(), way);
        let f = m.mnt().join("f");
        fs::write(&f, b"content").unwrap();
        chown(&f, Some(7), Some(7)).unwrap();
        all_become(&without("fowner"), &f, &["nodump", "plain"], "EPERM");
        all_become(&nobody_with("linux_immutable"), &f, &["immutable"], "EPERM");
        all_become(&nobody_with("fowner"), &f, &["nodump", "plain"], "done");
        all_become(&without("linux_immutable"), &f, &["immutable"], "EPERM");
        all_become(&without("nothing"), &f, &["immutable", "plain"], "done");
        m.umount();
        m.fsck();
    }
}

#[test]
fn trusted_attributes_are_not_listed_to_everybody() {
    if !can_be_root() {
        return;
    }
    for way in WAYS {
        let m = Mounted::on(Scene::open_to_all(), way);
        let f = m.mnt().join("f");
        fs::write(&f, b"content").unwrap();
        setxattr(&f, "trusted.x", b"secret", XattrFlags::empty()).unwrap();
        setxattr(&f, "user.x", b"known", XattrFlags::empty()).unwrap();
        assert_eq!(
            calls(&without("nothing"), &f, &["trusted"]),
            ["trusted done"]
        );
        assert_eq!(
            calls(&nobody_with("sys_admin"), &f, &["trusted"]),
            ["trusted done"]
        );
        for who in [
            without("sys_admin"),
            in_a_user_namespace(),
            nobody_with("chown"),
        ] {
            assert_eq!(
                calls(&who, &f, &["trusted"]),
                ["trusted: hidden"],
                "{who:?}"
            );
        }
        as_nobody(|| {
            let mut names = [0; 100];
            // How long the list is says nothing either.
            assert_eq!(rustix::fs::listxattr_query(&f), Ok(7), "{way}");
            assert_eq!(rustix::fs::listxattr(&f, &mut names), Ok(7));
            assert_eq!(&names[..7], b"user.x\0");
            let mut value = [0; 100];
            let got = rustix::fs::getxattr(&f, "trusted.x", &mut value);
            assert_eq!(got, Err(Errno::NODATA));
        });
        m.umount();
        m.fsck();
    }
}

/// When overlayfs copies up a file for a task, it lists the attributes with the rights of the user who has mounted
/// it, which the task lacks.
#[test]
fn what_is_copied_up_for_others_keeps_its_attributes() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "allow_other,durability=op");
    let lower = m.mnt().join("lower");
    fs::create_dir(&lower).unwrap();
    let f = lower.join("f");
    fs::write(&f, b"content").unwrap();
    fs::set_permissions(&f, Permissions::from_mode(0o666)).unwrap();
    setxattr(&f, "trusted.x", b"kept", XattrFlags::empty()).unwrap();
    let around = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(around.path(), Permissions::from_mode(0o755)).unwrap();
    let [upper, work, merged] = ["upper", "work", "merged"].map(|name| around.path().join(name));
    for dir in [&upper, &work, &merged] {
        fs::create_dir(dir).unwrap();
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    // A copy of this mount would keep the one below alive.
    let alone = no_copies();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "overlay", "-o", &options, "overlay"])
        .arg(&merged);
    let out = mount.capture().unwrap();
    assert!(out.status.success(), "{out:?}");
    let written = as_nobody(|| fs::write(merged.join("f"), b"changed"));
    let umount = Command::new("umount").arg(&merged).finish().unwrap();
    drop(alone);
    written.unwrap();
    assert!(umount.success());
    let mut value = [0; 8];
    let got = rustix::fs::getxattr(upper.join("f"), "trusted.x", &mut value);
    assert_eq!(got, Ok(4));
    m.umount();
}
