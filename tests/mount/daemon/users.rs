//! How mount(8), fstab and users without privileges come to a mount, and out of it.

use super::*;

#[test]
fn the_helpers_of_mount8_mount_remount_and_unmount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let helper = m.0.helper("mount.quayfs");
    assert_eq!(named(&helper, [&vol, &mnt, "-o", "rw,_netdev"]).ok(), "");
    fs::write(m.0.mnt().join("file"), b"1").unwrap();
    named(&helper, [&vol, &mnt, "-o", "remount,ro"]).ok();
    assert!(fs::write(m.0.mnt().join("file"), b"2").is_err());
    named(&helper, [&vol, &mnt, "-o", "remount,rw,nodev"]).ok();
    fs::write(m.0.mnt().join("file"), b"3").unwrap();
    assert!(m.table().unwrap().contains("nodev"));
    let pid = m.pid();
    named(&m.0.helper("umount.fuse.quayfs"), [&*mnt, "-n"]).ok();
    assert!(!runs(pid));
    assert!(named(&helper, [&vol, &mnt, "-v"]).ok().contains("mounted"));
    m.umount().ok();
}

/// mount(8), umount(8) and fsck(8) themselves, by an fstab, in a mount namespace whose `/sbin` has the helpers.
#[test]
fn fstab_mounts_and_checks() {
    if !can_be_root() {
        return;
    }
    let m = Mounted(Scene::in_memory());
    let (vol, mnt) = m.paths();
    fs::create_dir(m.0.dir().join("sbin")).unwrap();
    for name in ["mount.quayfs", "umount.quayfs", "fsck.quayfs"] {
        m.0.helper(&format!("sbin/{name}"));
    }
    let script = "mount -t overlay none -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin";
    let shell = Namespace::new(m.0.dir(), Path::new(""), script);
    let fstab = m.0.dir().join("fstab");
    let fstab = fstab.to_str().unwrap();
    let pid = || {
        let info = shell.run(&[QUAYFS, "info", &mnt, "--json"]).ok();
        serde_json::from_str::<Value>(&info).unwrap()["pid"].clone()
    };
    for (options, says_so) in [
        (
            "defaults,nofail,_netdev,x-systemd.device-timeout=5,relatime",
            false,
        ),
        // The mount table shows another name then, so that mount(8) does not know.
        ("noatime,fsname=disk", true),
    ] {
        fs::write(fstab, format!("{vol} {mnt} quayfs {options} 0 2\n")).unwrap();
        shell.run(&["mount", "-a", "-T", fstab]).ok();
        let daemon = pid();
        let again = shell.run(&["mount", "-a", "-T", fstab]);
        assert_eq!(
            again.err.contains("already: nothing is done"),
            says_so,
            "{again:?}"
        );
        again.ok();
        assert_eq!(pid(), daemon);
        // It is left alone while it is mounted.
        let fsck = [
            "env",
            &format!("FSTAB_FILE={fstab}"),
            "fsck",
            "-A",
            "-T",
            "-M",
            "-a",
        ];
        if !says_so {
            assert_eq!(shell.run(&fsck).code, 0);
        }
        shell.run(&["umount", &mnt]).ok();
    }
    let fsck = || {
        let fstab = format!("FSTAB_FILE={fstab}");
        shell.run(&["env", &fstab, "fsck", "-A", "-T", "-a"])
    };
    assert_eq!(fsck().code, 0);
    let pmem = fs::File::options().write(true).open(m.0.vol().join("pmem"));
    pmem.unwrap().write_all_at(&[0xff; 64], 512).unwrap();
    assert_eq!(fsck().code, 1, "repaired");
    assert_eq!(fsck().code, 0);
    fs::write(fstab, format!("{vol} {mnt} quayfs defaults,discard 0 0\n")).unwrap();
    let refused = shell.run(&["mount", "-a", "-T", fstab]);
    assert!(
        refused.code != 0 && refused.err.contains("fstrim(8)"),
        "{refused:?}"
    );
}

/// Runs the program as a user without the right to call mount(2). If the tests run as root that is user 65534, in
/// a mount namespace where the device is open to every user, as it is on most systems.
struct Unprivileged {
    program: PathBuf,
    namespace: Option<Namespace>,
}

impl Unprivileged {
    fn new(dir: &Path) -> Self {
        let program = dir.join("quayfs");
        copy_program(&program);
        let namespace = rustix::process::getuid().is_root().then(|| {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
            let script = "mkdir dev; mount -t tmpfs none dev; mknod -m 666 dev/fuse c 10 229; \
                          mount --bind dev/fuse /dev/fuse";
            Namespace::new(dir, Path::new(""), script)
        });
        Self { program, namespace }
    }

    /// Makes a path belong to the user.
    fn own(&self, path: &Path) {
        if self.namespace.is_some() {
            chown(path, Some(65534), Some(65534)).unwrap();
        }
    }

    fn run(&self, args: &[&str]) -> Run {
        self.command(args).capture().unwrap().into()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.namespace {
            None => Command::new(&self.program),
            Some(shell) => {
                let mut command = Command::new("nsenter");
                command.args([
                    "--mount",
                    "--target",
                    &shell.pid().to_string(),
                    "--",
                    "setpriv",
                ]);
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                command.arg(&self.program);
                command
            }
        };
        command.args(args);
        command
    }

    fn mounted(&self, what: &str) -> bool {
        let pid = self
            .namespace
            .as_ref()
            .map_or("self".into(), |shell| shell.pid().to_string());
        let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap();
        String::from_utf8_lossy(&table).contains(what)
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(shell) = &self.namespace {
            let _ = Command::new("nsenter")
                .args(["--mount", "--target", &shell.pid().to_string(), "--"])
                .args(["umount", "-i", "-l", "-a", "-t", "fuse.quayfs"])
                .capture();
        }
    }
}

#[test]
fn users_without_privileges_mount_through_fusermount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    // Root, if the tests run as root, has been there before and has left a log.
    m.mount(&[]).ok();
    m.umount().ok();
    let user = Unprivileged::new(m.0.dir());
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let entry = format!("{mnt} rw,nosuid,nodev");
    let pid = || {
        let info: Value = serde_json::from_str(&user.run(&["info", &vol, "--json"]).ok()).unwrap();
        info["pid"].as_i64().unwrap() as i32
    };
    assert!(!user.run(&["mount", &vol, &mnt]).ok().is_empty());
    assert!(user.mounted(&entry) && user.mounted(&format!("fuse.quayfs {vol}")));
    let log = fs::metadata(m.0.vol().join("quayfs.log")).unwrap();
    assert_eq!(log.uid(), fs::metadata(m.0.vol()).unwrap().uid());
    let daemon = pid();
    // What others have written is not for other processes of the same user.
    let memory = || fs::read_to_string(format!("/proc/{daemon}/maps")).map(drop);
    let memory = if rustix::process::getuid().is_root() {
        as_nobody(memory)
    } else {
        memory()
    };
    assert_eq!(memory.unwrap_err().kind(), ErrorKind::PermissionDenied);
    user.run(&["umount", &mnt]).ok();
    assert!(!user.mounted(&entry) && !runs(daemon));

    // Root may not enter, and yet finds the daemon and changes its mount.
    if let Some(namespace) = &user.namespace {
        user.run(&["mount", &vol, &mnt]).ok();
        let daemon = pid();
        namespace
            .run(&[QUAYFS, "mount", &vol, &mnt, "-o", "remount,ro"])
            .ok();
        assert!(user.mounted(&format!("{mnt} ro,nosuid,nodev")));
        let about = "`noatime` cannot be changed";
        let remount = ["mount", &vol, &mnt, "-o", "remount,noatime"];
        namespace
            .run(&[&[QUAYFS], &remount[..]].concat())
            .fails(32, about);
        namespace.run(&[QUAYFS, "umount", &mnt]).ok();
        assert!(!user.mounted(&mnt) && !runs(daemon));
    }

    user.run(&["mount", &vol, &mnt]).ok();
    let daemon = pid();
    signal(daemon, "TERM");
    eventually("the daemon ends", || !runs(daemon));
    assert!(!user.mounted(&entry));

    // Requests that do not say which user asks come from the owner of the mount all the same.
    user.run(&["mount", &vol, &mnt, "-o", "idmap"]).ok();
    user.run(&["quota", &mnt]).ok();
    user.run(&["umount", &mnt]).ok();

    user.run(&["mount", &vol, &mnt, "--log-file", "/no/such/log"])
        .fails(32, "--log-file");
    user.run(&["mount", &vol, "/usr"])
        .fails(32, "fusermount3: ");
}

/// The directory above has been moved, and another mount is where its path leads by now.
#[test]
fn a_signal_ends_the_mount_of_its_daemon_and_no_other() {
    if !can_mount() {
        return;
    }
    let (m, other) = (Mounted(Scene::new()), Scene::new());
    let user = Unprivileged::new(m.0.dir());
    let at = |name: &str| m.0.dir().canonicalize().unwrap().join(name);
    let (above, moved, second) = (at("above"), at("moved"), at("second"));
    fs::rename(other.vol(), &second).unwrap();
    for volume in [m.0.vol(), second.clone()] {
        for path in [volume.clone(), volume.join("pmem"), volume.join("data")] {
            user.own(&path);
        }
    }
    let mount = |volume: &Path| {
        let mnt = above.join("mnt");
        fs::create_dir_all(&mnt).unwrap();
        user.own(&mnt);
        let (volume, mnt) = (volume.to_str().unwrap(), mnt.to_str().unwrap());
        user.run(&["mount", volume, mnt]).ok();
        let info: Value = serde_json::from_str(&user.run(&["info", mnt, "--json"]).ok()).unwrap();
        info["pid"].as_i64().unwrap() as i32
    };
    let first = mount(&m.0.vol());
    fs::rename(&above, &moved).unwrap();
    let other = mount(&second);
    signal(first, "TERM");
    eventually("the first one ends", || !runs(first));
    let is_mounted = |dir: &Path| user.mounted(&format!(" {} ", dir.join("mnt").display()));
    assert!(!is_mounted(&moved) && is_mounted(&above) && runs(other));
    let mnt = above.join("mnt");
    user.run(&["umount", mnt.to_str().unwrap()]).ok();
}

/// The source in the mount table is what the mounting user said. A mount that claims to be another user's volume
/// does not keep that volume from being mounted, and is not asked about it.
#[test]
fn who_mounts_under_the_name_of_a_volume_does_not_stand_in_for_it() {
    if !can_mount() {
        return;
    }
    let (m, other) = (Mounted(Scene::new()), Scene::new());
    let (vol, mnt) = m.paths();
    let user = Unprivileged::new(m.0.dir());
    let Some(namespace) = &user.namespace else {
        return;
    };
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let theirs = other.vol().canonicalize().unwrap();
    let theirs = theirs.to_str().unwrap();
    user.run(&["mount", &vol, &mnt, "-o", &format!("fsname={theirs}")])
        .ok();
    assert!(user.mounted(&format!("fuse.quayfs {theirs}")));
    let run = |args: &[&str]| namespace.run(&[&[QUAYFS], args].concat());
    let info: Value = serde_json::from_str(&run(&["info", theirs, "--json"]).ok()).unwrap();
    assert_eq!(info["mountpoint"], Value::Null);
    let at = other.mnt();
    let at = at.to_str().unwrap();
    run(&["mount", theirs, at]).ok();
    let info: Value = serde_json::from_str(&run(&["info", theirs, "--json"]).ok()).unwrap();
    assert_eq!(info["mountpoint"].as_str(), Some(at));
    run(&["umount", at]).ok();
    user.run(&["umount", &mnt]).ok();
}

/// A daemon that is killed when `fusermount3` has just mounted for it can take nothing away any more; the command that
/// started it does.
#[test]
fn a_daemon_that_is_killed_while_mounting_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let user = Unprivileged::new(m.0.dir());
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let helper = m.0.dir().join("bin/fusermount3");
    fs::create_dir(helper.parent().unwrap()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nPATH='{path}' fusermount3 \"$@\"; code=$?\n\
         if [ \"$1\" = -o ]; then kill -KILL $PPID; fi\nexit $code\n"
    );
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{path}", helper.parent().unwrap().display());
    for options in ["norestart", "restart"] {
        let run: Run = user
            .command(&["mount", &vol, &mnt, "-o", options])
            .env("PATH", &path)
            .capture()
            .unwrap()
            .into();
        assert!(!user.mounted(&mnt), "{options}: {run:?}");
        run.fails(32, "signal: 9");
    }
    user.run(&["mount", &vol, &mnt]).ok();
    user.run(&["umount", &mnt]).ok();
}
