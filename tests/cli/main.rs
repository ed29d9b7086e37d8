//! The command line without a mount: help, errors of one line, exit codes, what machines read.

mod changing;
mod copies;
mod copies_believed;
mod lost;
#[path = "../program/mod.rs"]
mod program;
mod words;

use program::{QUAYFS, Scene, Start as _, named, quayfs};
use quayfs_background::digest;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::ROOT;
use quayfs_layout::node::{self, NodeKind};
use quayfs_options::MountOptions;
use quayfs_store::error::FsError;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn help_teaches() {
    let text = quayfs(["--help"]).ok();
    for word in [
        "mkfs",
        "mount",
        "umount",
        "fsck",
        "scrub",
        "quota",
        "tune",
        "resize",
        "migrate",
        "dump",
        "status",
        "info",
        "restart",
        "Examples:",
        "quayfs mkfs /srv/vol",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for (command, words) in [
        (
            "mkfs",
            ["--pmem-size", "--sparse", "Examples:", "Exit codes: 0"],
        ),
        (
            "mount",
            [
                "durability=",
                "/etc/fstab",
                "Examples:",
                "Exit codes, as of mount(8): 0",
            ],
        ),
        ("umount", ["MOUNTPOINT", "data device", "0 unmounted", "32"]),
        (
            "fsck",
            ["--json", "Exit codes, as of fsck(8): 0", "4 damage", "16"],
        ),
        ("info", ["--json", "Examples:", "MOUNT", "Exit codes: 0"]),
        (
            "status",
            ["--json", "degraded", "2 failed", "Exit codes: 0"],
        ),
        ("scrub", ["--rate", "--json", "4 damage", "Exit codes: 0"]),
        (
            "stats",
            ["--openmetrics", "--listen", "Examples:", "Exit codes: 0"],
        ),
        (
            "top",
            ["MOUNTPOINT", "Ctrl-C", "Examples:", "Exit codes: 0"],
        ),
        (
            "trace",
            ["--slower", "Ctrl-C", "Examples:", "Exit codes: 0"],
        ),
        (
            "doctor",
            ["PLACE", "2 problems", "Examples:", "Exit codes: 0"],
        ),
        ("quota", ["--user", "--project", "EDQUOT", "Exit codes: 0"]),
        (
            "dump",
            ["page-table", "--first", "Examples:", "Exit codes: 0"],
        ),
        (
            "resize",
            ["--data", "unmounted", "Examples:", "Exit codes: 0"],
        ),
        (
            "migrate",
            ["--pmem", "--data", "Examples:", "Exit codes: 0"],
        ),
        (
            "tune",
            ["--label", "--options", "Examples:", "Exit codes: 0"],
        ),
        (
            "restart",
            ["--binary", "--within", "Examples:", "Exit codes: 0"],
        ),
    ] {
        let text = quayfs([command, "--help"]).ok();
        for word in words {
            let found = text.to_uppercase().contains(&word.to_uppercase());
            assert!(found, "{command}: {word}: {text}");
        }
        assert_eq!(quayfs([command, "-h"]).code, 0);
    }
    assert!(quayfs(["--version"]).ok().starts_with("quayfs "));
}

#[test]
fn wrong_usage_is_one_line_that_names_the_help() {
    for (line, code, about) in [
        ("", 2, "quayfs --help"),
        ("frobnicate", 2, "'frobnicate'"),
        ("mkfs", 2, "quayfs mkfs --help"),
        ("mkfs v --pmem-size 1X", 2, "powers of 1024"),
        (
            "mkfs v --data-size 99999999999T",
            2,
            "larger than any device",
        ),
        ("mkfs v --buffers 17", 2, "quayfs mkfs --help"),
        ("mount v", 1, "<MOUNTPOINT>"),
        ("mount v m --turbo", 1, "--turbo"),
        ("umount", 1, "quayfs umount --help"),
        ("fsck", 16, "quayfs fsck --help"),
        ("fsck v --mend", 16, "--mend"),
        ("info", 2, "quayfs info --help"),
        ("status --bad", 3, "quayfs status --help"),
        ("stats", 2, "quayfs stats --help"),
        ("stats m --json --openmetrics", 2, "quayfs stats --help"),
        ("doctor --cure", 3, "quayfs doctor --help"),
        ("tune", 2, "quayfs tune --help"),
        ("resize v", 2, "quayfs resize --help"),
        ("resize v --data 1X", 2, "powers of 1024"),
        ("migrate v", 2, "quayfs migrate --help"),
        ("migrate v --data a --pmem b", 2, "quayfs migrate --help"),
        ("dump", 2, "quayfs dump --help"),
        ("dump v everything", 2, "quayfs dump --help"),
        ("dump v inode", 2, "which one?"),
        ("dump v free 3", 2, "have a number"),
    ] {
        quayfs(line.split_whitespace()).fails(code, about);
    }
}

#[test]
fn mount_options_are_checked_before_anything_else() {
    for (options, about) in [
        ("turbo", "unknown mount option `turbo`"),
        ("data=fast", "journal or ordered or writeback"),
        ("data=ordered,durability=op", "contradict"),
        ("ablation=nodelog:ssd", "say durability=commit"),
        ("transport=pigeon", "auto or dev or uring"),
    ] {
        quayfs(["mount", "/no/such/volume", "/no/such/place", "-o", options]).fails(1, about);
    }
}

#[test]
fn the_doctor_says_what_is_and_what_to_do() {
    let scene = Scene::new();
    let run = quayfs(["doctor", scene.vol().to_str().unwrap()]);
    let grades = ["ok", "note", "problem"];
    let mut worst = 0;
    for line in run.out.lines().filter(|l| !l.starts_with("         -> ")) {
        let grade = grades
            .iter()
            .position(|g| line.starts_with(&format!("{g:<8} ")));
        worst = worst.max(grade.unwrap_or_else(|| panic!("{line}")));
    }
    assert_eq!(run.code, worst as i32, "{run:?}");
    assert!(run.out.contains("a volume, backend "), "{run:?}");
    assert!(run.out.contains("durability: "), "{run:?}");
    let gone = quayfs(["doctor", "/no/such/place"]);
    assert_eq!(gone.code, 2, "{gone:?}");
    assert!(gone.out.contains("problem  /no/such/place: "), "{gone:?}");
}

#[test]
fn missing_things_are_named() {
    let scene = Scene::new();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    let (vol, mnt) = (vol.to_str().unwrap(), mnt.to_str().unwrap());
    quayfs(["mount", "/no/such/volume", mnt]).fails(32, "there is no volume at");
    quayfs(["mount", mnt, mnt]).fails(32, "hide the volume");
    quayfs(["mount", vol, "/no/such/place"]).fails(32, "/no/such/place");
    quayfs(["mount", vol, scene.dir().to_str().unwrap()]).fails(32, "hide the volume");
    quayfs(["umount", mnt]).fails(32, "not a mount point");
    quayfs(["umount", "/proc"]).fails(32, "not QuayFS");
    quayfs(["fsck", "/no/such/volume"]).fails(8, "/no/such/volume");
    quayfs(["info", "/no/such/volume"]).fails(1, "/no/such/volume");
    quayfs(["info", mnt]).fails(1, "nothing is mounted");
    quayfs(["status", "/no/such/volume"]).fails(3, "/no/such/volume");
    quayfs(["stats", "/no/such/volume"]).fails(1, "/no/such/volume");
    quayfs(["stats", vol]).fails(1, "not mounted");
    quayfs(["top", vol]).fails(1, "not mounted");
}

#[test]
fn mkfs_says_what_it_made_and_keeps_what_is_there() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let size = ["--pmem-size", "32M", "--data-size", "128M", "--sparse"];
    quayfs([&["mkfs", vol][..], &size].concat()).fails(1, "--force");
    let forced = quayfs([&["mkfs", vol, "--force", "--label", "second"][..], &size].concat());
    assert!(forced.err.contains("--sparse"), "{forced:?}");
    let text = forced.ok();
    assert!(text.contains(&format!("quayfs mount {vol}")), "{text}");
    assert!(text.contains("32 MiB"), "{text}");
    assert!(quayfs(["info", vol]).ok().contains("second"));
}

#[test]
fn machines_read_json() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let info: Value = serde_json::from_str(&quayfs(["info", vol, "--json"]).ok()).unwrap();
    assert_eq!(info["pmem_bytes"], 32 << 20);
    assert_eq!(info["data_bytes"], 128 << 20);
    assert_eq!(info["mountpoint"], Value::Null);
    assert_eq!(info["uuid"].as_str().unwrap().len(), 36);
    let fsck: Value = serde_json::from_str(&quayfs(["fsck", vol, "--json"]).ok()).unwrap();
    assert_eq!(fsck["uuid"], info["uuid"]);
}

#[test]
fn what_is_no_volume_is_told_from_one_that_cannot_be_mounted() {
    let scene = Scene::new();
    let vol = scene.vol();
    quayfs(["status", "LABEL=x"]).fails(3, "/dev/disk/by-label/x");
    let empty = scene.vol().with_file_name("empty");
    std::fs::create_dir(&empty).unwrap();
    quayfs(["status", empty.to_str().unwrap()]).fails(3, "nothing is mounted");
    let data = vol.join("data");
    let data = std::fs::File::options().write(true).open(data).unwrap();
    data.set_len(1 << 20).unwrap();
    let run = quayfs(["status", vol.to_str().unwrap()]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.out.contains("truncated: 1048576"), "{run:?}");
}

#[test]
fn fsck_tells_damage_from_health() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    assert!(quayfs(["fsck", vol]).ok().contains("no damage"));
    // One of the two copies of the configuration table.
    let pmem = scene.vol().join("pmem");
    let pmem = std::fs::File::options().write(true).open(pmem).unwrap();
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    let run = quayfs(["fsck", vol]);
    assert_eq!(run.code, 4, "{run:?}");
    let json = quayfs(["fsck", "--repair", "--json", vol]);
    assert_eq!((json.code, &json.err[..]), (1, ""), "{json:?}");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["outcome"], &json["found"]),
        (&"repaired".into(), &1.into())
    );
    assert_eq!(json["done"][0]["area"], "config");
    assert_eq!(json["check"]["findings"], Value::Array(Vec::new()));
    assert!(quayfs(["fsck", "--repair", vol]).ok().contains("no damage"));
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    let run = quayfs(["fsck", "--repair", "--data", vol]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.out.starts_with("repaired: config: copy 0 "), "{run:?}");
    assert!(run.out.contains("1 finding, all repaired"), "{run:?}");
    // Not while the volume is in use.
    let held = Volume::open(&scene.vol(), Access::ReadOnly, Duration::ZERO).unwrap();
    quayfs(["fsck", "--repair", vol]).fails(8, "in use");
    drop(held);
    // Epoch and tables: nothing tells them but their copies, and then nothing does.
    let data = scene.vol().join("data");
    let data = std::fs::File::options().write(true).open(data).unwrap();
    let lose = |at: u64| pmem.write_all_at(&[0xff; 8], at).unwrap();
    lose(8192);
    assert_eq!(quayfs(["fsck", "--repair", vol]).code, 1);
    data.write_all_at(&[0xff; BLOCK], 129 * BLOCK as u64)
        .unwrap();
    lose(8192);
    assert_eq!(quayfs(["fsck", "--repair", vol]).code, 4);
    [512, 4096 + 512].into_iter().for_each(lose);
    assert_eq!(quayfs(["fsck", vol]).code, 4);
    data.write_all_at(&[0xff; BLOCK], 128 * BLOCK as u64)
        .unwrap();
    assert_eq!(quayfs(["fsck", vol]).code, 8);
}

/// A volume full of directories that have all lost their names: a repair has to write nearly all
/// that there is again, and has no room.
#[test]
fn a_repair_without_room_says_so() {
    let scene = Scene::new();
    let volume = Volume::open(&scene.vol(), Access::ReadWrite, Duration::ZERO).unwrap();
    let g = volume.config().geometry;
    let options = MountOptions::parse(&["noatime"]).unwrap();
    let fs = Fs::mount_quiet(volume, &options).unwrap();
    let mut made = 0;
    loop {
        let name = format!("{made}");
        match fs.mkdir(Caller::default(), ROOT, name.as_bytes(), 0o755) {
            Ok(_) => made += 1,
            Err(FsError::NoSpace) => break,
            Err(e) => panic!("{name}: {e}"),
        }
        if made % 500 == 0 {
            digest::digest_all(&fs.e).unwrap();
        }
    }
    fs.shutdown().unwrap();
    drop(fs);
    let pmem = std::fs::File::options()
        .read(true)
        .write(true)
        .open(scene.vol().join("pmem"))
        .unwrap();
    let mut page = vec![0; BLOCK];
    let mut leaves = 0;
    for n in 0..g.node_pages {
        pmem.read_exact_at(&mut page, g.node_page(n)).unwrap();
        if node::kind(&page) == Some(NodeKind::DirLeaf) && node::owner(&page) == ROOT {
            pmem.write_all_at(&[0x5a; BLOCK], g.node_page(n)).unwrap();
            leaves += 1;
        }
    }
    assert!(leaves > made / 200, "{leaves} leaves, {made} directories");
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    for _ in 0..2 {
        quayfs(["fsck", "--repair", vol]).fails(8, "node pages are needed");
        assert_eq!(quayfs(["fsck", vol]).code, 4);
    }
}

#[test]
fn mount8_can_call_it() {
    let scene = Scene::new();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    let (vol, mnt) = (vol.to_str().unwrap(), mnt.to_str().unwrap());
    for name in ["mount.quayfs", "mount.fuse.quayfs"] {
        let helper = scene.helper(name);
        named(&helper, [vol]).fails(1, "mount.quayfs VOLUME MOUNTPOINT");
        named(&helper, [vol, mnt, "-o", "turbo"]).fails(1, "turbo");
        named(&helper, ["/no/such/volume", mnt, "-o", "rw"]).fails(32, "there is no volume at");
        // -f checks all of it and mounts nothing; -s tolerates what it does not know.
        named(&helper, [vol, mnt, "-f", "-s", "-o", "rw,turbo,_netdev"]).ok();
        let fstab =
            "defaults,nofail,noauto,user,_netdev,x-systemd.automount,relatime,nodiscard,sync";
        named(&helper, [vol, mnt, "-f", "-o", fstab]).ok();
        for (other, about) in [("discard", "fstrim(8)"), ("usrjquota", "usrquota")] {
            named(&helper, [vol, mnt, "-f", "-o", other]).fails(1, about);
        }
    }
    let helper = scene.helper("umount.quayfs");
    named(&helper, [mnt]).fails(32, "not a mount point");
    named(&helper, ["-n"]).fails(1, "umount.quayfs MOUNTPOINT");
}

#[test]
fn fsck8_and_mkfs8_can_call_it() {
    let scene = Scene::new();
    let (vol, made) = (scene.vol(), scene.dir().join("made"));
    let (vol, made) = (vol.to_str().unwrap(), made.to_str().unwrap());
    let fsck = scene.helper("fsck.quayfs");
    let mkfs = scene.helper("mkfs.quayfs");
    let small = ["--pmem-size", "32M", "--sparse"];
    let run = named(
        &mkfs,
        [&["-q", "-L", "third"][..], &small, &[made, "65536"]].concat(),
    );
    assert!(run.err.contains("--sparse"), "{run:?}");
    assert_eq!(run.ok(), "");
    let info: Value = serde_json::from_str(&quayfs(["info", made, "--json"]).ok()).unwrap();
    assert_eq!(
        (&info["label"], &info["data_bytes"]),
        (&"third".into(), &(64 << 20).into())
    );
    named(&mkfs, [&small[..], &[made, "64M"]].concat()).fails(1, "--force");
    named(&mkfs, [&["-F"][..], &small, &[made, "64M"]].concat()).ok();
    named(&mkfs, ["-Z", made]).fails(2, "quayfs mkfs --help");

    assert!(named(&fsck, ["-n", vol]).ok().contains("no damage"));
    let pmem = std::fs::File::options()
        .write(true)
        .open(scene.vol().join("pmem"))
        .unwrap();
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    assert_eq!(named(&fsck, ["-fn", vol]).code, 4);
    assert_eq!(named(&fsck, ["-a", "-C0", vol]).code, 1);
    assert_eq!(named(&fsck, ["-a", vol]).code, 0);
    named(&fsck, ["-a", "/no/such/volume"]).fails(8, "/no/such/volume");
    for line in [&["-r", vol][..], &["-n", "-y", vol], &[]] {
        named(&fsck, line).fails(16, "quayfs fsck --help");
    }
    for helper in [fsck, mkfs] {
        assert!(
            named(&helper, ["-V"])
                .ok()
                .contains(env!("CARGO_PKG_VERSION"))
        );
    }
}

/// Each name that is installed is one that the program knows.
#[test]
fn what_is_installed_is_understood() {
    let scene = Scene::new();
    let makefile = concat!(env!("CARGO_MANIFEST_DIR"), "/Makefile");
    let makefile = std::fs::read_to_string(makefile).unwrap();
    let list = makefile.lines().find_map(|l| l.strip_prefix("HELPERS := "));
    let names: Vec<_> = list.unwrap().split(' ').collect();
    for role in ["mount", "umount", "fsck", "mkfs"] {
        assert!(names.contains(&&*format!("{role}.quayfs")), "{names:?}");
    }
    for name in &names {
        let run = named(&scene.helper(name), [] as [&str; 0]);
        assert!(!run.err.contains("quayfs --help"), "{name}: {run:?}");
        assert_ne!(run.code, 0, "{name}: {run:?}");
    }
    for word in ["install:", "uninstall:"] {
        let (_, rest) = makefile.split_once(&format!("\n{word}")).unwrap();
        let rule = rest.split("\n\n").next().unwrap();
        assert!(rule.contains("for name in $(HELPERS)"), "{word}");
    }
    // Packages have the same names, and the version of the program.
    let read = |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(root.join(name)).unwrap()
    };
    let (deb, rpm) = (read("Cargo.toml"), read("packaging/quayfs.spec"));
    let mut linked: Vec<_> = deb
        .lines()
        .filter_map(|l| l.split_once("{ dest = \"usr/sbin/")?.1.split('"').next())
        .collect();
    linked.sort_unstable();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(linked, sorted);
    assert!(rpm.contains(&names.join(" ")), "{rpm}");
    let version = env!("CARGO_PKG_VERSION");
    let changes = read("packaging/debian/changelog");
    assert!(
        changes.starts_with(&format!("quayfs ({version}-1) ")),
        "{changes}"
    );
    assert!(
        rpm.contains(&format!("Version:        {version}\n")),
        "{rpm}"
    );
}

/// As `make install` does it, and `make uninstall`.
#[test]
fn an_installed_program_has_its_symbols_apart() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/split-debug");
    let split = |args: &[&str]| named(Path::new(script), args).ok();
    let program = dir.path().join("usr/bin/quayfs");
    let debug = || {
        let all = dir.path().join("usr/lib/debug/.build-id").read_dir();
        let folders = all.unwrap().map(|e| e.unwrap().path());
        let files = folders.flat_map(|f| f.read_dir().unwrap());
        files.map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    let sections =
        |of: &Path| named(Path::new("readelf"), [OsStr::new("-SW"), of.as_os_str()]).ok();
    // Twice: the second time it replaces what is there.
    for _ in 0..2 {
        split(&["install", program::QUAYFS, root, "usr/bin/quayfs"]);
        assert!(named(&program, ["--version"]).ok().starts_with("quayfs "));
        assert!(
            !sections(&program).contains(".debug_line"),
            "symbols are left"
        );
        let [debug] = &debug()[..] else {
            panic!("{:?}", debug())
        };
        assert!(sections(debug).contains(".debug_line"));
    }
    split(&["remove", root, "usr/bin/quayfs"]);
    assert!(!program.exists());
    assert!(debug().is_empty(), "{:?}", debug());
    assert_eq!(named(Path::new(script), ["install"]).code, 2);
}

/// As a timer meets it that writes figures to a file on a full disk; a reader that has seen enough is no failure.
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let run = |args: &[&str], out: Stdio| {
        let mut command = std::process::Command::new(QUAYFS);
        command.args(args).stdout(out).stderr(Stdio::piped());
        let output = command.start().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    for (args, code) in [
        (&["status", vol][..], 3),
        (&["info", vol, "--json"], 1),
        (&["fsck", vol], 8),
        (&["dump", vol], 1),
        (&["--help"], 1),
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let (is, said) = run(args, full.into());
        assert_eq!(is, Some(code), "{args:?}: {said}");
        assert!(
            said.contains("the output cannot be written: No space left"),
            "{args:?}: {said}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(
            run(args, writer.into()),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

/// Names are chosen by others, and commands in messages are pasted.
#[test]
fn names_in_commands_are_quoted_for_a_shell() {
    let scene = Scene::new();
    let dir = scene.dir().to_str().unwrap();
    for (name, shown) in [("a b", "a b"), ("x\nreboot", r"x\nreboot")] {
        let gone = scene.dir().join(name);
        let said = quayfs(["fsck".as_ref(), gone.as_os_str()]);
        let quoted = format!("there is no volume at '{dir}/{shown}': ");
        assert!(said.err.contains(&quoted), "{said:?}");
    }
}
