//! The command line without a mount: help, errors of one line, exit codes, what machines read.

mod program;

use program::{QUAYFS, Scene, named, quayfs};
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
    quayfs(["mount", "/no/such/volume", mnt]).fails(32, "quayfs mkfs");
    quayfs(["mount", mnt, mnt]).fails(32, "hide the volume");
    quayfs(["mount", vol, "/no/such/place"]).fails(32, "/no/such/place");
    quayfs(["mount", vol, scene.dir().to_str().unwrap()]).fails(32, "hide the volume");
    quayfs(["umount", mnt]).fails(32, "not a mount point");
    quayfs(["umount", "/proc"]).fails(32, "not QuayFS");
    quayfs(["fsck", "/no/such/volume"]).fails(8, "/no/such/volume");
    quayfs(["info", "/no/such/volume"]).fails(1, "/no/such/volume");
    quayfs(["info", mnt]).fails(1, "quayfs mkfs");
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
    // The epoch: nothing else tells it.
    pmem.write_all_at(&[0xff; 8], 8192).unwrap();
    let run = quayfs(["fsck", "--repair", vol]);
    assert_eq!(run.code, 4, "{run:?}");
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    pmem.write_all_at(&[0xff; 64], 4096 + 512).unwrap();
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
        named(&helper, ["/no/such/volume", mnt, "-o", "rw"]).fails(32, "quayfs mkfs");
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
    named(&mkfs, ["-Z", made]).fails(1, "quayfs mkfs --help");

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

#[test]
fn a_volume_is_tuned() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let shown = quayfs(["tune", vol]).ok();
    assert!(shown.contains("label           -"), "{shown}");
    assert!(shown.contains("stored options  -"), "{shown}");
    let tuned = quayfs(["tune", vol, "-L", "photos", "-o", "commit=30,noatime"]).ok();
    assert!(tuned.contains("label           photos"), "{tuned}");
    assert_eq!(quayfs(["tune", vol]).ok(), tuned);
    let info: Value = serde_json::from_str(&quayfs(["info", vol, "--json"]).ok()).unwrap();
    assert_eq!(info["label"], "photos");
    assert_eq!(info["stored_options"], "commit=30,noatime");
    assert!(quayfs(["info", vol]).ok().contains("commit=30,noatime"));
    // One of the two at a time; the other stays.
    quayfs(["tune", vol, "--label", ""]).ok();
    let info: Value = serde_json::from_str(&quayfs(["info", vol, "--json"]).ok()).unwrap();
    assert_eq!(
        (&info["label"], &info["stored_options"]),
        (&"".into(), &"commit=30,noatime".into())
    );
    quayfs(["tune", vol, "--options", ""]).ok();
    assert!(!quayfs(["info", vol]).ok().contains("stored"));
    assert!(quayfs(["fsck", vol]).ok().contains("no damage"));
    for (option, value, about) in [
        ("-L", &"x".repeat(65)[..], "at most 64 bytes, this has 65"),
        (
            "-o",
            &"noatime,".repeat(129),
            "at most 1024 bytes, this has 1032",
        ),
        ("-o", "turbo", "unknown mount option `turbo`"),
        ("-o", "commit=0", "`commit` cannot be `0`"),
        ("-o", "noatime,allow_other", "not who may use it"),
        ("-o", "data=ordered,durability=op", "contradict"),
    ] {
        quayfs(["tune", vol, option, value]).fails(2, about);
    }
    let held = Volume::open(&scene.vol(), Access::ReadOnly, Duration::ZERO).unwrap();
    quayfs(["tune", vol, "-L", "x"]).fails(1, "in use");
    drop(held);
    quayfs(["tune", "/no/such/volume"]).fails(1, "/no/such/volume");
}

#[test]
fn structures_are_dumped() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let shown = quayfs(["dump", vol]).ok();
    for words in ["configuration:", "geometry:", "  jsb_off", "journal:"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for structure in [
        "records",
        "slots",
        "batches",
        "table-log",
        "page-table",
        "nodes",
        "free",
    ] {
        quayfs(["dump", vol, structure]).ok();
    }
    let dumped = |args: &[&str]| -> Value {
        let run = quayfs([&["dump", vol, "--json"][..], args].concat());
        serde_json::from_str(&run.ok()).unwrap()
    };
    let root = dumped(&["inode", "1"]);
    assert_eq!(
        (&root["mode"], &root["links"]),
        (&"040755".into(), &2.into())
    );
    assert_eq!(dumped(&["directory", "1"])["entries"], 0);
    let table = dumped(&["page-table", "--first", "10", "--lines", "1"]);
    assert_eq!(table["entries"][0]["lbn"], 10);
    let node = dumped(&["nodes", "--lines", "1"]);
    let id = node["nodes"][0]["node"].to_string();
    assert_eq!(node["next"].as_u64().map(|next| next > 0), Some(true));
    assert_eq!(dumped(&["node", &id])["kind"], node["nodes"][0]["kind"]);
    // Damage, and both ways to be of no use.
    let pmem = scene.vol().join("pmem");
    let pmem = std::fs::File::options().write(true).open(pmem).unwrap();
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    assert!(quayfs(["dump", vol]).ok().contains("checksum mismatch"));
    let held = Volume::open(&scene.vol(), Access::ReadWrite, Duration::ZERO).unwrap();
    quayfs(["dump", vol]).fails(1, "in use");
    drop(held);
    quayfs(["dump", "/no/such/volume"]).fails(1, "/no/such/volume");
}

#[test]
fn data_get_more_and_less_room() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let data = || std::fs::metadata(scene.vol().join("data")).unwrap().len();
    let info = || -> Value { serde_json::from_str(&quayfs(["info", vol, "--json"]).ok()).unwrap() };
    let room = info()["capacity_bytes"].as_u64().unwrap();
    let told = quayfs(["resize", vol, "--data", "192M"]).ok();
    assert!(
        told.contains("data device  192 MiB, before 128 MiB"),
        "{told}"
    );
    assert_eq!(
        (data(), &info()["data_bytes"]),
        (192 << 20, &(192 << 20).into())
    );
    // All of what is more, but for the spare pool, which is a 64th.
    let more = info()["capacity_bytes"].as_u64().unwrap() - room;
    assert_eq!(more, (64 << 20) / 64 * 63);
    assert!(quayfs(["fsck", "--data", vol]).ok().contains("no damage"));
    let again = quayfs(["resize", vol, "--data", "192M"]).ok();
    assert!(again.contains("192 MiB, as before"), "{again}");
    quayfs(["resize", vol, "--data", "1T"]).fails(1, "quayfs resize --pmem");
    quayfs(["resize", vol, "--data", "1M"]).fails(1, "too few");
    assert_eq!(data(), 192 << 20);
    let told = quayfs(["resize", vol, "--data", "64M"]).ok();
    assert!(
        told.contains("data device  64 MiB, before 192 MiB"),
        "{told}"
    );
    assert_eq!(data(), 64 << 20);
    // A file that was made longer by hand.
    let file = std::fs::File::options()
        .write(true)
        .open(scene.vol().join("data"));
    file.unwrap().set_len(100 << 20).unwrap();
    quayfs(["resize", vol, "--data", "max"]).ok();
    assert_eq!(info()["data_bytes"], 100 << 20);
    assert!(quayfs(["fsck", vol]).ok().contains("no damage"));
    let held = Volume::open(&scene.vol(), Access::ReadOnly, Duration::ZERO).unwrap();
    quayfs(["resize", vol, "--data", "128M"]).fails(1, "in use");
    drop(held);
    quayfs(["resize", "/no/such/volume", "--data", "1G"]).fails(1, "/no/such/volume");
}

#[test]
fn a_volume_in_one_file_gets_more_and_less_room() {
    let scene = Scene::new();
    let file = scene.dir().join("one");
    let one = file.to_str().unwrap();
    quayfs([
        "mkfs",
        one,
        "--size",
        "200M",
        "--pmem-size",
        "64M",
        "--sparse",
    ])
    .ok();
    let len = || std::fs::metadata(&file).unwrap().len();
    let told = quayfs(["resize", one, "--data", "256M"]).ok();
    assert!(
        told.contains("data device  256 MiB, before 136 MiB"),
        "{told}"
    );
    assert_eq!(len(), 320 << 20);
    assert!(quayfs(["fsck", one]).ok().contains("no damage"));
    quayfs(["resize", one, "--data", "64M"]).ok();
    assert_eq!(len(), 128 << 20);
    let info: Value = serde_json::from_str(&quayfs(["info", one, "--json"]).ok()).unwrap();
    assert_eq!(
        (&info["pmem_bytes"], &info["data_bytes"]),
        (&(64 << 20).into(), &(64 << 20).into())
    );
    assert!(quayfs(["fsck", one]).ok().contains("no damage"));
}

/// Directories with files, and names without a page of their own.
fn fill_volume(vol: &Path) -> quayfs_oracle::dump::Tree {
    let volume = Volume::open(vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    let me = Caller::default();
    for d in 0..5 {
        let dir = fs
            .mkdir(me, ROOT, format!("dir{d}").as_bytes(), 0o755)
            .unwrap()
            .ino;
        for n in 0..200u64 {
            let name = format!("file {n}");
            let file = fs
                .mknod(me, dir, name.as_bytes(), 0o100_600, 0)
                .unwrap()
                .ino;
            let content = quayfs_oracle::rng::bytes(n, (n * 37) as usize);
            fs.write(file, n % 3 * 10_000, &content, false).unwrap();
            if n % 4 == d {
                fs.unlink(dir, name.as_bytes()).unwrap();
            }
            fs.forget(file, 1);
        }
    }
    fs.shutdown().unwrap();
    drop(fs);
    files_of(vol)
}

fn files_of(vol: &Path) -> quayfs_oracle::dump::Tree {
    let volume = Volume::open(vol, Access::ReadOnly, Duration::ZERO).unwrap();
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Fs::mount_quiet(volume, &options).unwrap();
    quayfs_oracle::dump::dump(&fs, ROOT).unwrap()
}

#[test]
fn a_region_gets_larger_and_smaller() {
    let scene = Scene::new();
    let one = scene.dir().join("one");
    let words = ["--size", "200M", "--pmem-size", "64M", "--sparse"];
    quayfs(["mkfs", one.to_str().unwrap()].into_iter().chain(words)).ok();
    for (vol, pmem, behind, first) in [
        (scene.vol(), scene.vol().join("pmem"), 0, 32),
        (one.clone(), one, 136 << 20, 64),
    ] {
        let files = fill_volume(&vol);
        let vol_name = vol.to_str().unwrap();
        let pages = || -> Value {
            let text = quayfs(["dump", vol_name, "--json"]).ok();
            serde_json::from_str::<Value>(&text).unwrap()["geometry"]["node_pages"].clone()
        };
        let before = pages().as_u64().unwrap();
        for (size, mib) in [("256M", 256), ("40M", 40), ("96M", 96)] {
            let old = std::fs::File::open(&pmem).unwrap();
            // What a crash has left.
            let left =
                pmem.with_file_name(format!("{}.resizing", pmem.file_name().unwrap().display()));
            std::fs::write(&left, "half of a region").unwrap();
            let told = quayfs(["resize", vol_name, "--pmem", size]).ok();
            let line = format!("pmem region  {mib} MiB, before ");
            assert!(told.contains(&line), "{told}");
            assert_eq!(
                std::fs::metadata(&pmem).unwrap().len(),
                (mib << 20) + behind
            );
            assert!(!left.exists());
            // What has the old one open has no volume.
            let mut table = [7; 8192];
            old.read_exact_at(&mut table, 0).unwrap();
            assert!(table == [0; 8192]);
            let fsck = quayfs(["fsck", "--data", vol_name]).ok();
            assert!(
                fsck.contains("unmounted cleanly") && fsck.contains("no damage"),
                "{fsck}"
            );
            assert!(files_of(&vol) == files);
            assert_eq!(pages().as_u64().unwrap() > before, mib > first, "{size}");
        }
        // More files than there was room for, and what they take given back.
        let again = fill_again(&vol);
        assert!(
            quayfs(["fsck", "--data", vol_name])
                .ok()
                .contains("no damage")
        );
        assert!(files_of(&vol) == again);
        let same = quayfs(["resize", vol_name, "--pmem", "96M"]).ok();
        assert!(same.contains("pmem region  96 MiB, as before"), "{same}");
        quayfs(["resize", vol_name, "--pmem", "1M"]).fails(1, "is too small");
        // Both: more of the one makes room for the other.
        let told = quayfs(["resize", vol_name, "--data", "20G", "--pmem", "256M"]).ok();
        assert!(told.contains("data device  20 GiB, before "), "{told}");
        let told = quayfs(["resize", vol_name, "--data", "128M", "--pmem", "64M"]).ok();
        assert!(
            told.contains("pmem region  64 MiB, before 256 MiB"),
            "{told}"
        );
        assert!(
            quayfs(["fsck", "--data", vol_name])
                .ok()
                .contains("no damage")
        );
        assert!(files_of(&vol) == again);
    }
}

/// Uses what is free, so that all kinds of pages come and go.
fn fill_again(vol: &Path) -> quayfs_oracle::dump::Tree {
    let volume = Volume::open(vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    let me = Caller::default();
    let dir = fs.lookup(ROOT, b"dir3").unwrap().ino;
    for n in 0..3000u64 {
        let name = format!("more {n}");
        let file = fs
            .mknod(me, dir, name.as_bytes(), 0o100_600, 0)
            .unwrap()
            .ino;
        fs.write(file, 0, &[n as u8; 100], false).unwrap();
        if n % 2 == 0 {
            fs.unlink(dir, name.as_bytes()).unwrap();
        }
        fs.forget(file, 1);
    }
    fs.shutdown().unwrap();
    drop(fs);
    files_of(vol)
}

#[test]
fn a_region_that_cannot_be_replaced_is_refused() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol_name = vol.to_str().unwrap();
    std::fs::hard_link(vol.join("pmem"), scene.dir().join("other")).unwrap();
    quayfs(["resize", vol_name, "--pmem", "64M"]).fails(1, "hard link");
    std::fs::remove_file(scene.dir().join("other")).unwrap();
    // No room for it.
    let words = format!("ulimit -f 40000; exec {QUAYFS} resize {vol_name} --pmem 256M");
    let run = named(Path::new("sh"), ["-c", &words]);
    run.fails(1, "pmem.resizing: ");
    assert_eq!(std::fs::metadata(vol.join("pmem")).unwrap().len(), 32 << 20);
    assert!(!vol.join("pmem.resizing").exists());
    assert!(quayfs(["fsck", vol_name]).ok().contains("no damage"));
    // A link leads to where it lies.
    std::fs::rename(vol.join("pmem"), scene.dir().join("region")).unwrap();
    std::os::unix::fs::symlink("../region", vol.join("pmem")).unwrap();
    quayfs(["resize", vol_name, "--pmem", "48M"]).ok();
    assert_eq!(
        std::fs::metadata(scene.dir().join("region")).unwrap().len(),
        48 << 20
    );
    assert!(
        std::fs::symlink_metadata(vol.join("pmem"))
            .unwrap()
            .is_symlink()
    );
    assert!(quayfs(["fsck", vol_name]).ok().contains("no damage"));
    quayfs(["resize", vol_name]).fails(2, "quayfs resize --help");
}

#[test]
fn parts_of_a_volume_go_elsewhere() {
    let scene = Scene::new();
    let (vol, dir) = (scene.vol(), scene.dir().canonicalize().unwrap());
    let migrate = |part: &str, new: &Path| {
        let part = OsStr::new(part);
        quayfs(["migrate".as_ref(), vol.as_os_str(), part, new.as_os_str()])
    };
    let place = |part: &str| vol.join(part).canonicalize().unwrap();
    let sound = || {
        let fsck = quayfs(["fsck".as_ref(), vol.as_os_str(), "--data".as_ref()]).ok();
        assert!(fsck.contains("no damage"), "{fsck}");
    };
    // What a dead daemon has left.
    let volume = Volume::open(&vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    let me = Caller::default();
    let file = fs.mknod(me, ROOT, b"file", 0o100_600, 0).unwrap().ino;
    fs.write(file, 0, &[7; 9000], true).unwrap();
    fs.fsync(file).unwrap();
    fs.abandon();
    drop(fs);
    let told = migrate("--data", &dir.join("data")).ok();
    assert!(
        told.contains("128 MiB") && told.contains("is gone"),
        "{told}"
    );
    assert_eq!(place("data"), dir.join("data"));
    // Another kind of medium, and back into the directory.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let warned = migrate("--pmem", &memory.path().join("region"));
    assert!(warned.err.contains("LOST"), "{warned:?}");
    assert!(warned.ok().contains("32 MiB"));
    sound();
    migrate("--pmem", &vol.join("region")).ok();
    assert_eq!(
        std::fs::read_link(vol.join("pmem")).unwrap(),
        Path::new("region")
    );
    sound();
    let volume = Volume::open(&vol, Access::ReadOnly, Duration::ZERO).unwrap();
    migrate("--data", &dir.join("other")).fails(1, "in use");
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Fs::mount_quiet(volume, &options).unwrap();
    assert_eq!(fs.read(file, 0, 9000).unwrap(), vec![7; 9000]);
    drop(fs);
    // What is there is not overwritten by mistake, and goes on being what it was.
    migrate("--data", &dir.join("data")).fails(1, "lies already");
    migrate("--data", &vol.join("region")).fails(1, "the region of the volume lies already");
    std::fs::write(dir.join("text"), "text").unwrap();
    migrate("--data", &dir.join("text")).fails(1, "--force overwrites it");
    assert_eq!(std::fs::read(dir.join("text")).unwrap(), b"text");
    migrate("--data", &dir).fails(1, "no regular file");
    migrate("--data", &dir.join("no/such/directory")).fails(1, "No such file");
    migrate("--data", Path::new("/dev/no-such-device")).fails(1, "No such file");
    assert!(!dir.join("other").exists());
    sound();
    let one = dir.join("one");
    let sizes = ["--size", "200M", "--pmem-size", "64M", "--sparse"].map(OsStr::new);
    quayfs(["mkfs".as_ref(), one.as_os_str()].into_iter().chain(sizes)).ok();
    let refused = quayfs([
        "migrate".as_ref(),
        one.as_os_str(),
        "--data".as_ref(),
        "x".as_ref(),
    ]);
    refused.fails(1, "holds both parts");
}

#[test]
fn what_a_dead_daemon_left_is_closed_before_a_resize() {
    closed_before_a_resize(|fs| fs.abandon());
}

#[test]
fn what_was_left_staged_is_drained_before_a_resize() {
    closed_before_a_resize(|fs| assert_eq!(fs.shutdown_leaving_staged(), Ok(true)));
}

fn closed_before_a_resize(end: impl FnOnce(&Fs)) {
    let scene = Scene::new();
    let vol = scene.vol();
    let volume = Volume::open(&vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    let me = Caller::default();
    let file = fs.mknod(me, ROOT, b"file", 0o100_600, 0).unwrap().ino;
    fs.write(file, 0, &[7; 9000], true).unwrap();
    fs.fsync(file).unwrap();
    end(&fs);
    drop(fs);
    let vol = vol.to_str().unwrap();
    quayfs(["resize", vol, "--data", "150M"]).ok();
    let fsck = quayfs(["fsck", "--data", vol]).ok();
    assert!(
        fsck.contains("unmounted cleanly") && fsck.contains("no damage"),
        "{fsck}"
    );
    let volume = Volume::open(&scene.vol(), Access::ReadOnly, Duration::ZERO).unwrap();
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Fs::mount_quiet(volume, &options).unwrap();
    let file = fs.lookup(ROOT, b"file").unwrap().ino;
    assert_eq!(fs.read(file, 0, 10_000).unwrap(), [7; 9000]);
}
