//! Volumes that are tuned, shown, resized and moved while they are not mounted.

use super::*;

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
        told.contains("data device  192 MiB, larger than 128 MiB"),
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
    quayfs(["resize", vol, "--data", "1M"]).fails(1, "too little for data");
    assert_eq!(data(), 192 << 20);
    let told = quayfs(["resize", vol, "--data", "64M"]).ok();
    assert!(
        told.contains("data device  64 MiB, smaller than 192 MiB"),
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
        told.contains("data device  256 MiB, larger than 136 MiB"),
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
    // Programs that tests beside this one start have its lock until they are executed.
    let patience = Duration::from_secs(10);
    let volume = Volume::open(vol, Access::ReadOnly, patience).unwrap();
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
        for (size, mib, how) in [
            ("256M", 256, "larger"),
            ("40M", 40, "smaller"),
            ("96M", 96, "larger"),
        ] {
            let old = std::fs::File::open(&pmem).unwrap();
            // What a crash has left.
            let left =
                pmem.with_file_name(format!("{}.resizing", pmem.file_name().unwrap().display()));
            std::fs::write(&left, "half of a region").unwrap();
            let told = quayfs(["resize", vol_name, "--pmem", size]).ok();
            let line = format!("pmem region  {mib} MiB, {how} than ");
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
                fsck.contains("unmounted, nothing to recover") && fsck.contains("no damage"),
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
        assert!(told.contains("data device  20 GiB, larger than "), "{told}");
        let told = quayfs(["resize", vol_name, "--data", "128M", "--pmem", "64M"]).ok();
        assert!(
            told.contains("pmem region  64 MiB, smaller than 256 MiB"),
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
        fsck.contains("unmounted, nothing to recover") && fsck.contains("no damage"),
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
