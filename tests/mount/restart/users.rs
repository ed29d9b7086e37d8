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
    mounted_with(&[])
}

/// The same with these options.
fn mounted_with(options: &[&str]) -> (Mounted, PathBuf) {
    let m = Mounted(Scene::in_memory());
    let program = copy(&m.0, "quayfs");
    let (vol, mnt) = (m.0.vol(), m.0.mnt());
    let parts = [vol.join("pmem"), vol.join("data")];
    for path in [m.0.dir(), &vol, &mnt, &parts[0], &parts[1], &program] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let mut mount = as_their_user(&program);
    mount.arg("mount").args([&vol, &mnt]).args(options);
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

/// What root says of a mount of the user whose next daemon could not go on: nothing is done, and no command is advised.
#[track_caller]
fn is_left_alone(m: &Mounted, about: &str) {
    let old = daemon(m);
    let status = quayfs(["status".as_ref(), m.mnt().as_os_str()]);
    let words: Vec<_> = status.out.split_whitespace().collect();
    let told = words.join(" ").contains(about);
    assert!(status.code == 1 && told, "{status:?}");
    let run = replace(m, &[]);
    for said in [&status.out, &run.err] {
        assert!(!said.contains("chmod") && !said.contains("chown"), "{said}");
    }
    run.fails(1, about);
    assert_eq!(daemon(m), old);
}

/// The next daemon is the user's: what root can read does not count.
#[test]
fn root_ends_no_mount_of_a_user_by_a_restart() {
    if !can_be_root() {
        return;
    }
    let (m, _) = mounted();
    let region = m.0.vol().join("pmem");
    std::os::unix::fs::chown(&region, Some(0), Some(0)).unwrap();
    is_left_alone(&m, "permission denied: it belongs to user 0");
    std::os::unix::fs::chown(&region, Some(USER), Some(USER)).unwrap();
    replace(&m, &[]).ok();
    m.umount();
}

/// The name of a volume may be given to something else by its user.
#[test]
fn root_is_not_told_to_change_what_a_user_names() {
    if !can_be_root() {
        return;
    }
    let (m, _) = mounted();
    let (vol, away) = (m.0.vol(), m.0.dir().join("away"));
    let precious = m.0.dir().join("precious");
    fs::write(&precious, "content").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
    fs::rename(&vol, &away).unwrap();
    symlink(&precious, &vol).unwrap();
    is_left_alone(&m, "others have access to it");
    fs::remove_file(&vol).unwrap();
    fs::rename(&away, &vol).unwrap();
    m.umount();
}

/// Nor is what has the name looked into that the mount table shows.
#[test]
fn root_is_not_told_to_repair_what_a_user_names() {
    if !can_be_root() {
        return;
    }
    let other = Scene::in_memory();
    let theirs = other.vol().canonicalize().unwrap();
    let theirs = theirs.to_str().unwrap();
    let (m, _) = mounted_with(&["-o", &format!("norestart,fsname={theirs}")]);
    let region = other.vol().join("pmem");
    let region = File::options().write(true).open(region).unwrap();
    // Damage, which a repair would mend.
    region.write_all_at(&[0xff; 64], 512).unwrap();
    let mnt = m.mnt();
    let pid = daemon(&m);
    kill(pid, "KILL");
    let is_dead = || fs::read_dir(&mnt).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
    eventually("it is dead", || as_user(USER, is_dead));
    let status = quayfs(["status".as_ref(), mnt.as_os_str()]);
    assert_eq!(status.code, 2, "{status:?}");
    let commands = status.out.split('`').skip(1).step_by(2);
    let named: Vec<_> = commands
        .filter(|command| command.contains(theirs))
        .collect();
    assert!(named.is_empty(), "{status:?}");
    let json = quayfs(["status".as_ref(), mnt.as_os_str(), "--json".as_ref()]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let volume = &json["volumes"][0];
    assert!(
        volume["uuid"].is_null() && volume["log"].is_null(),
        "{volume}"
    );
    m.umount();
}

/// A directory that a group may enter is entered by daemons that are in the group.
#[test]
fn a_user_has_the_groups_of_the_last_daemon() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let program = copy(&scene, "quayfs");
    let closed = scene.dir().join("closed");
    fs::create_dir(&closed).unwrap();
    let vol = closed.join("vol");
    fs::rename(scene.vol(), &vol).unwrap();
    for path in [&vol, &scene.mnt(), &vol.join("pmem"), &vol.join("data")] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    std::os::unix::fs::chown(&closed, Some(0), Some(12345)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(scene.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut mount = Command::new("setpriv");
    mount.args(["--reuid=65534", "--regid=65534", "--groups=12345"]);
    mount.args(["--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"]);
    mount.arg(&program).arg("mount").args([&vol, &scene.mnt()]);
    assert!(mount.finish().unwrap().success());
    let m = Mounted(scene);
    quayfs(["status".as_ref(), m.mnt().as_os_str()]).ok();
    replace(&m, &[]).ok();
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
