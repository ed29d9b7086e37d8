//! `quayfs restart`: one daemon takes the place of another, and the mount goes on.

use super::*;
use crate::load::under_load;
use crate::program::{QUAYFS, as_user, can_be_root, copy_program, named};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

/// What `quayfs restart` has to say.
pub(super) fn replace(m: &Mounted, words: &[&str]) -> program::Run {
    let mnt = m.mnt();
    let words = words.iter().map(std::ffi::OsStr::new);
    quayfs(
        ["restart".as_ref(), mnt.as_os_str()]
            .into_iter()
            .chain(words),
    )
}

/// The program that a process runs; with a remark of the kernel if its file is gone.
fn program_of(pid: i32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// A copy of the program, as the next version of a package would be.
pub(super) fn copy(m: &Scene, name: &str) -> PathBuf {
    let path = m.dir().join(name);
    copy_program(&path);
    path.canonicalize().unwrap()
}

/// A program of the body of its `main`.
pub(super) fn compiled(scene: &Scene, name: &str, body: &str) -> PathBuf {
    let headers = ["signal", "stdio", "string", "sys/socket", "unistd"];
    let headers: String = headers
        .map(|name| format!("#include <{name}.h>\n"))
        .concat();
    let source = format!("{headers}int main(int argc, char **argv) {{\n{body}\n}}\n");
    let path = scene.dir().join(name);
    let code = path.with_extension("c");
    fs::write(&code, source).unwrap();
    let made = Command::new("cc").arg("-o").arg(&path).arg(&code).finish();
    assert!(made.unwrap().success());
    path
}

/// A program that says of itself what ours does, and then does this in its place.
fn impostor(scene: &Scene, name: &str, does: &str) -> PathBuf {
    let asks = "if (argc > 1 && !strcmp(argv[1], \"succession\"))";
    compiled(
        scene,
        name,
        &format!("{asks} return execv(\"{QUAYFS}\", argv);\n{does}"),
    )
}

#[test]
fn a_daemon_is_replaced_while_programs_work() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let next = copy(&scene, "next");
        let m = Mounted::on(scene, "restart");
        let supervisor = parent(daemon(&m));
        fs::write(m.mnt().join("gone"), b"without a name").unwrap();
        let gone = File::open(m.mnt().join("gone")).unwrap();
        fs::remove_file(m.mnt().join("gone")).unwrap();
        under_load(&m, || {
            for n in 1..=4 {
                let old = daemon(&m);
                let said = match n % 2 {
                    1 => replace(&m, &["--binary", next.to_str().unwrap()]),
                    _ => replace(&m, &["--binary", QUAYFS]),
                };
                let said = said.ok();
                let version = env!("CARGO_PKG_VERSION");
                assert!(
                    said.contains(&format!("served by quayfs {version} (")),
                    "{said}"
                );
                let info = m.info();
                let new = daemon(&m);
                assert_ne!(new, old);
                assert_eq!((parent(new), runs(old)), (supervisor, false));
                assert_eq!(program_of(new) == next, n % 2 == 1);
                assert_eq!(
                    (&info["restarts"], &info["replaced"]),
                    (&n.into(), &n.into())
                );
                assert_eq!(info["last_death"], "replaced on request");
                assert_eq!(info["version"], version);
                eventually("the pause is known", || m.info()["last_pause_ms"].is_u64());
            }
        });
        let mut content = [0; 14];
        gone.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"without a name");
        drop(gone);
        restart(&m);
        let info = m.info();
        assert_eq!(
            (&info["restarts"], &info["replaced"]),
            (&5.into(), &4.into())
        );
        assert_eq!(info["last_death"], "ended by signal 9");
        m.umount();
        eventually("the supervisor ends", || !runs(supervisor));
        m.fsck();
    }
}

/// As an upgrade of a package does it: the new file has the name of the old one.
#[test]
fn the_program_is_the_one_that_lies_there_now() {
    if !can_mount() {
        return;
    }
    let scene = Scene::in_memory();
    let program = copy(&scene, "quayfs");
    let (vol, mnt) = (scene.vol(), scene.mnt());
    named(
        &program,
        [
            "mount".as_ref(),
            "-orestart".as_ref(),
            vol.as_os_str(),
            mnt.as_os_str(),
        ],
    )
    .ok();
    let m = Mounted(scene);
    for _ in 0..2 {
        fs::rename(copy(&m.0, "quayfs.new"), &program).unwrap();
        assert_ne!(program_of(daemon(&m)), program);
        replace(&m, &[]).ok();
        assert_eq!(program_of(daemon(&m)), program);
    }
    // What dies is started again from what it was, gone or not.
    fs::remove_file(&program).unwrap();
    restart(&m);
    let old = daemon(&m);
    replace(&m, &[]).fails(1, "No such file");
    assert_eq!(daemon(&m), old);
    replace(&m, &["--binary", QUAYFS]).ok();
    m.umount();
    m.fsck();
}

#[test]
fn what_cannot_take_over_is_refused_beforehand() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let old = daemon(&m);
    let text = m.0.dir().join("text");
    fs::write(&text, b"no program").unwrap();
    let other =
        |name: &str, says: &str| compiled(&m.0, name, &format!("puts(\"{says}\"); return 0;"));
    let can = quayfs(["succession", "-o", "restart"]).ok();
    let changed = |key: &str| -> String {
        let words = can.split_whitespace();
        let words = words.map(|word| match word.split_once('=') {
            Some((k, _)) if k == key => format!("{k}=80"),
            _ => word.to_string(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let cases = [
        (PathBuf::from("/bin/true"), "no QuayFS"),
        (text, "cannot be started"),
        (m.0.dir().to_path_buf(), "Exec format error"),
        (m.0.dir().join("nothing"), "No such file"),
        (
            other("handover", &changed("handover")),
            "something else (version 128, not 1)",
        ),
        (other("format", &changed("format")), "format 128"),
        (other("features", &changed("features")), "features"),
        (
            other("wanted", &changed("wanted")),
            "agree with the kernel on something else",
        ),
        (other("silent", ""), "no QuayFS"),
    ];
    for (program, about) in cases {
        replace(&m, &["--binary", program.to_str().unwrap()]).fails(1, about);
        assert_eq!(daemon(&m), old, "{about}");
    }
    assert_eq!(m.info()["restarts"], 0);
    m.umount();
}

#[test]
fn where_the_new_daemon_does_not_serve_the_old_program_does() {
    if !can_mount() {
        return;
    }
    let scene = Scene::in_memory();
    let program = copy(&scene, "quayfs");
    let fails = [
        (
            "ends",
            "return 5;",
            "ended before it served (exit status: 5)",
        ),
        (
            "well",
            "return 0;",
            "ended before it served (exit status: 0)",
        ),
        (
            "says",
            "puts(\"failed 32 that is why\"); return 32;",
            "that is why",
        ),
        (
            "dies",
            "raise(SIGKILL);",
            "ended before it served (signal: 9 (SIGKILL))",
        ),
        ("hangs", "for (;;) pause();", "answered nothing within 1s"),
        // It is believed to serve, and does not answer.
        (
            "lies",
            "send(3, \"READY=1\", 7, 0); for (;;) pause();",
            "answered nothing within 1s",
        ),
    ];
    let (vol, mnt) = (scene.vol(), scene.mnt());
    named(
        &program,
        [
            "mount".as_ref(),
            "-orestart".as_ref(),
            vol.as_os_str(),
            mnt.as_os_str(),
        ],
    )
    .ok();
    let m = Mounted(scene);
    let was = program_of(daemon(&m));
    fs::remove_file(&program).unwrap();
    under_load(&m, || {
        for (n, (name, does, about)) in (1..).zip(fails) {
            let bad = impostor(&m.0, name, does);
            let bad = bad.to_str().unwrap();
            let said = replace(&m, &["--binary", bad, "--within", "1"]);
            assert!(said.err.contains("a daemon of the old program"), "{said:?}");
            said.fails(1, about);
            let gone = program_of(daemon(&m));
            assert!(
                gone.to_str().unwrap().starts_with(was.to_str().unwrap()),
                "{gone:?}"
            );
            assert_eq!(m.info()["restarts"], n);
        }
    });
    replace(&m, &["--binary", QUAYFS]).ok();
    m.umount();
    m.fsck();
}

#[test]
fn where_new_daemons_serve_and_die_the_old_program_goes_on() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fs::write(m.mnt().join("file"), b"content").unwrap();
    let flag = m.0.dir().join("flag");
    let turns_bad = impostor(
        &m.0,
        "turns-bad",
        &format!(
            "if (!access(\"{}\", F_OK)) raise(SIGKILL);\nreturn execv(\"{QUAYFS}\", argv);",
            flag.to_str().unwrap()
        ),
    );
    replace(&m, &["--binary", turns_bad.to_str().unwrap()]).ok();
    fs::write(&flag, b"").unwrap();
    restart(&m);
    assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"content");
    // The replacement, the one that was killed here, and the five that died in vain.
    assert_eq!(m.info()["restarts"], 1 + 1 + 5);
    m.umount();
    m.fsck();
}

#[test]
fn one_replacement_at_a_time() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let hangs = impostor(&m.0, "hangs", "for (;;) pause();");
    let supervisor = parent(daemon(&m));
    thread::scope(|scope| {
        let first = scope.spawn(|| replace(&m, &["--binary", hangs.to_str().unwrap()]));
        let mut hanging = 0;
        eventually("the new program runs", || {
            // It may have ended by the time that it is looked at.
            let runs =
                |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p == hangs);
            hanging = children(supervisor).into_iter().find(runs).unwrap_or(0);
            hanging != 0
        });
        kill(hanging, "KILL");
        first.join().unwrap().fails(1, "signal: 9");
    });
    // Asked by a signal, it is the same program again.
    let old = daemon(&m);
    kill(old, "USR2");
    eventually("it is replaced", || daemon(&m) != old);
    assert_eq!(m.info()["replaced"], 2);
    assert_eq!(program_of(daemon(&m)), Path::new(QUAYFS));
    m.umount();
    m.fsck();
}

#[test]
fn what_is_no_such_mount_is_left_alone() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "norestart,allow_other");
    let old = daemon(&m);
    replace(&m, &[]).fails(1, "since norestart");
    assert_eq!(daemon(&m), old);
    m.umount();
    replace(&m, &[]).fails(1, "not a mount point");
    quayfs(["restart", "/proc"]).fails(1, "/proc is proc, not QuayFS");
    m.mount("restart,allow_other");
    let old = daemon(&m);
    let program = copy(&m.0, "quayfs");
    let mnt = m.mnt();
    as_user(65534, || {
        named(&program, ["restart".as_ref(), mnt.as_os_str()])
    })
    .fails(1, "permission denied");
    assert_eq!(daemon(&m), old);
    m.umount();
}

/// Another daemon that cannot open the volume ends the mount, so none is asked for.
#[test]
fn a_daemon_without_a_possible_successor_stays() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let old = daemon(&m);
    let (vol, away) = (m.0.vol(), m.0.dir().join("away"));
    let region = vol.join("pmem");
    let stays = |about: &str| {
        let mnt = m.mnt();
        let resized = quayfs(["resize", mnt.to_str().unwrap(), "--data", "96M"]);
        for run in [replace(&m, &[]), resized] {
            run.fails(1, about);
        }
        assert_eq!(daemon(&m), old);
    };
    fs::rename(&vol, &away).unwrap();
    stays("there is nothing at");
    fs::rename(&away, &vol).unwrap();
    fs::set_permissions(&region, fs::Permissions::from_mode(0o666)).unwrap();
    stays("mode 0666");
    fs::set_permissions(&region, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::File::options().read(true).write(true).open(&region);
    let (file, mut table) = (file.unwrap(), vec![0; 4096]);
    file.read_exact_at(&mut table, 0).unwrap();
    file.write_all_at(&[b"XFSB".as_slice(), &[0; 4092]].concat(), 0)
        .unwrap();
    stays("xfs");
    file.write_all_at(&table, 0).unwrap();
    assert_eq!(m.info()["restarts"], 0);
    replace(&m, &[]).ok();
    m.umount();
}

/// Then the mount waits for a daemon of the old program, and the command does not.
#[test]
fn a_program_that_leaves_nothing_to_go_back_to_is_told_of_at_once() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fs::write(m.mnt().join("file"), "not on any disk yet").unwrap();
    let (vol, away) = (m.0.vol(), m.0.dir().join("away"));
    let takes = format!(
        "rename(\"{}\", \"{}\"); return 1;",
        vol.display(),
        away.display()
    );
    let thief = impostor(&m.0, "thief", &takes);
    let run = replace(&m, &["--binary", thief.to_str().unwrap()]);
    run.fails(1, "nor can one of the old program go on");
    fs::rename(&away, &vol).unwrap();
    let content = fs::read_to_string(m.mnt().join("file")).unwrap();
    assert_eq!(content, "not on any disk yet");
    m.umount();
}

/// The mount is where it is, whatever has become of the path that it was made by.
#[test]
fn a_mount_below_a_renamed_directory_goes_on() {
    if !can_be_root() {
        return;
    }
    let m = Mounted(Scene::in_memory());
    let (before, after) = (m.0.dir().join("before"), m.0.dir().join("after"));
    fs::create_dir_all(before.join("mnt")).unwrap();
    let run = |command: &str, args: &[&Path]| {
        let args = args.iter().map(|path| path.as_os_str());
        quayfs(std::iter::once(command.as_ref()).chain(args)).ok()
    };
    run("mount", &[&m.0.vol(), &before.join("mnt")]);
    fs::write(before.join("mnt/file"), "not on any disk yet").unwrap();
    fs::rename(&before, &after).unwrap();
    let mnt = after.join("mnt");
    run("restart", &[&mnt]);
    let content = fs::read_to_string(mnt.join("file")).unwrap();
    assert_eq!(content, "not on any disk yet");
    run("umount", &[&mnt]);
}
