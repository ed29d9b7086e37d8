//! Mounts of ordinary users: what root does for them, and what it does not.

use super::planned::{compiled, copy, replace};
use super::*;
use crate::program::{Run, as_user, can_be_root, copy_program};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};

const USER: u32 = 65534;

/// A mount of a user, by a program that belongs to that user.
fn mounted() -> (Mounted, PathBuf) {
    let m = Mounted(Scene::in_memory());
    let program = copy(&m.0, "quayfs");
    let (vol, mnt) = (m.0.vol(), m.0.mnt());
    let parts = [vol.join("pmem"), vol.join("data")];
    for path in [m.0.dir(), &vol, &mnt, &parts[0], &parts[1], &program] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let mut mount = as_their_user(&program);
    mount.arg("mount").args([&vol, &mnt]);
    assert!(mount.finish().unwrap().success());
    (m, program)
}

/// The program, run by the user, with the right to mount.
fn as_their_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"]);
    command.arg(program);
    command
}

#[test]
fn root_runs_no_program_that_another_user_chose() {
    if !can_be_root() {
        return;
    }
    let (m, program) = mounted();
    let marker = m.0.dir().join("marker");
    let body = format!(
        "FILE *f = fopen(\"{}\", \"a\"); fprintf(f, \"%d\\n\", getuid()); return 1;",
        marker.display()
    );
    fs::rename(compiled(&m.0, "other", &body), &program).unwrap();
    let run = replace(&m, &[]);
    assert_eq!(run.code, 1, "{run:?}");
    let users = fs::read_to_string(&marker).unwrap();
    assert!(users.lines().all(|user| user == "65534"), "{users}");
    // Nor does it listen to all that one says.
    let endless = compiled(&m.0, "endless", "for (;;) puts(\"served\");");
    fs::rename(endless, &program).unwrap();
    replace(&m, &[]).fails(1, "it does not say what it can");
    as_user(USER, || fs::read_dir(m.mnt()).map(drop)).unwrap();
    m.umount();
}

/// A descriptor of a program is a descriptor of whatever has its name.
#[test]
fn root_opens_nothing_that_the_user_may_not_reach() {
    if !can_be_root() {
        return;
    }
    let (m, program) = mounted();
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let hidden = closed.path().join("quayfs");
    copy_program(&hidden);
    fs::remove_file(&program).unwrap();
    symlink(&hidden, &program).unwrap();
    replace(&m, &[]).fails(1, "Permission denied");
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o755)).unwrap();
    replace(&m, &[]).ok();
    m.umount();
}

/// As with root: a mount is not left by the daemon that it has.
#[test]
fn a_user_loses_no_mount_to_a_restart() {
    if !can_be_root() {
        return;
    }
    let (m, program) = mounted();
    let old = daemon(&m);
    let (vol, away) = (m.0.vol(), m.0.dir().join("away"));
    let says = |command: &str| -> Run {
        let mut asked = as_their_user(&program);
        asked.arg(command).arg(m.mnt()).capture().unwrap().into()
    };
    let stays = |about: &str| {
        let status = says("status");
        assert!(status.code == 1 && status.out.contains(about), "{status:?}");
        says("restart").fails(1, about);
        assert_eq!(daemon(&m), old);
    };
    fs::rename(&vol, &away).unwrap();
    stays("there is nothing at");
    fs::rename(&away, &vol).unwrap();
    for closed in [vol.clone(), vol.join("pmem")] {
        let mode = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
        mode(0);
        stays("permission denied");
        mode(0o700);
    }
    says("restart").ok();
    m.umount();
}

/// Runs the program. One that waits for what never comes is ended, and fails with 124.
fn in_time(args: &[&str]) -> Run {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "100", crate::program::QUAYFS]);
    command.args(args).capture().unwrap().into()
}

/// Connects to a socket until it takes no more.
fn fill(name: &[u8]) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new_abstract_name(name).unwrap();
    let mut all = Vec::new();
    loop {
        let socket = seqpacket();
        match connect(&socket, &address) {
            Ok(()) => all.push(socket),
            Err(Errno::AGAIN) => return all,
            Err(e) => panic!("{e}"),
        }
    }
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// The name of the socket of a supervisor.
fn socket_of(supervisor: i32) -> String {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let ends = format!("/{supervisor}");
    let mut names = sockets.lines().filter_map(|line| line.split('@').nth(1));
    let is_it = |name: &&str| name.starts_with("quayfs-supervisor/") && name.ends_with(&ends);
    names.find(is_it).unwrap().into()
}

/// Names of sockets are free for all.
#[test]
fn who_takes_the_name_of_a_supervisor_keeps_nobody_waiting() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let supervisor = parent(daemon(&m));
    let name = socket_of(supervisor);
    let begin = name.strip_suffix(&supervisor.to_string()).unwrap();
    // Some are found before the true one.
    let taken: Vec<_> = as_user(USER, || {
        let names = (0..32).map(|n| format!("{begin}{}", 5_000_000 + n));
        let take = |name: String| {
            let listener = seqpacket();
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            bind(&listener, &address).unwrap();
            listen(&listener, 0).unwrap();
            (listener, fill(name.as_bytes()))
        };
        names.map(take).collect()
    });
    let mnt = m.mnt();
    let mnt = mnt.to_str().unwrap();
    in_time(&["status", mnt]).ok();
    in_time(&["restart", mnt]).ok();
    in_time(&["umount", mnt]).ok();
    drop(taken);
}

/// As many calls as it would hear wait for it already.
#[test]
fn a_stopped_supervisor_with_many_callers_is_not_waited_for() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let supervisor = parent(daemon(&m));
    let name = socket_of(supervisor);
    kill(supervisor, "STOP");
    let callers = fill(name.as_bytes());
    let mnt = m.mnt();
    let mnt = mnt.to_str().unwrap();
    let about = format!("`kill -CONT {supervisor}`");
    let restart = in_time(&["restart", mnt]);
    let resize = in_time(&["resize", mnt, "--data", "96M"]);
    let status = in_time(&["status", mnt]);
    let umount = in_time(&["umount", "--force", mnt]);
    kill(supervisor, "CONT");
    restart.fails(1, &about);
    resize.fails(1, &about);
    assert!(
        status.code == 1 && status.out.contains(&about),
        "{status:?}"
    );
    assert!(
        umount.err.contains("supervisor has not ended"),
        "{umount:?}"
    );
    umount.ok();
    drop(callers);
    eventually("the supervisor ends", || !runs(supervisor));
    m.fsck();
}

/// It has heard what is wanted of it, and says nothing any more.
#[test]
fn a_supervisor_that_is_stopped_over_a_restart_is_not_waited_for() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let supervisor = parent(daemon(&m));
    let hangs = compiled(
        &m.0,
        "hangs",
        &format!(
            "if (argc > 1 && !strcmp(argv[1], \"succession\")) return execv(\"{}\", argv);\nfor (;;) pause();",
            crate::program::QUAYFS
        ),
    );
    let (mnt, hangs) = (m.mnt(), hangs.canonicalize().unwrap());
    let words = ["restart", mnt.to_str().unwrap(), "--binary"];
    let words = [&words[..], &[hangs.to_str().unwrap()]].concat();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| in_time(&words));
        let mut hanging = 0;
        eventually("the new program runs", || {
            let is_it =
                |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p == hangs);
            hanging = children(supervisor).into_iter().find(is_it).unwrap_or(0);
            hanging != 0
        });
        kill(supervisor, "STOP");
        let run = run.join().unwrap();
        kill(hanging, "KILL");
        kill(supervisor, "CONT");
        run.fails(1, &format!("`kill -CONT {supervisor}`"));
    });
    assert!(runs(daemon(&m)));
    m.umount();
    m.fsck();
}

#[test]
fn a_supervisor_that_is_stopped_is_not_waited_for() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let old = daemon(&m);
    let supervisor = parent(old);
    kill(supervisor, "STOP");
    let mnt = m.mnt();
    let about = format!("`kill -CONT {supervisor}`");
    replace(&m, &[]).fails(1, &about);
    quayfs(["resize", mnt.to_str().unwrap(), "--data", "96M"]).fails(1, &about);
    kill(supervisor, "CONT");
    replace(&m, &[]).ok();
    m.umount();
}
