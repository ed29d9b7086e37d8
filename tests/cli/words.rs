//! What commands say: how much is missing, what is meant, and what to do next.

use super::*;

#[test]
fn what_there_is_no_room_for_is_told_with_what_is_free() {
    let scene = Scene::new();
    let file = scene.dir().join("large");
    let run = quayfs(["mkfs", file.to_str().unwrap(), "--size", "1P"]);
    assert!(run.err.contains(" are free on its file system"), "{run:?}");
    run.fails(1, "no space left: 1 PiB are needed, and ");
    assert!(!file.exists());
}

#[test]
fn wrong_values_are_answered_with_what_is_wanted() {
    for (line, about) in [
        (
            "scrub v --rate 100",
            "100 B a second are too few, the least is 64K: write the unit too, as in 100M",
        ),
        (
            "trace v --op writ",
            "there is no such operation; write may be meant: see `quayfs trace --help`",
        ),
        ("trace v --pid bash", "the number of a process is wanted"),
        ("help frobnicate", "'frobnicate': see `quayfs --help`"),
    ] {
        quayfs(line.split(' ')).fails(2, about);
    }
}

#[test]
fn help_is_a_command_too() {
    let said = quayfs(["mount", "--help"]).ok();
    assert_eq!(quayfs(["help", "mount"]).ok(), said);
}

#[test]
fn all_of_a_file_is_what_the_data_have_already() {
    let scene = Scene::new();
    let vol = scene.vol();
    let told = quayfs(["resize", vol.to_str().unwrap(), "--data", "max"]).ok();
    assert!(told.contains("the data have 128 MiB already: "), "{told}");
    let why = "is a file: `max` is its length; `--data SIZE` makes it longer";
    assert!(told.trim_end().ends_with(why), "{told}");
}

/// A file whose content has a mark, and where that lies.
fn marked(scene: &Scene) -> (std::fs::File, u64) {
    let volume = Volume::open(&scene.vol(), Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    let me = Caller::default();
    let file = fs.mknod(me, ROOT, b"file", 0o100_600, 0).unwrap().ino;
    fs.write(file, 0, &[0xa7; BLOCK], false).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let path = scene.vol().join("data");
    let content = std::fs::read(&path).unwrap();
    let at = content.chunks(BLOCK).position(|b| b == [0xa7; BLOCK]);
    let data = std::fs::File::options().write(true).open(path).unwrap();
    (data, at.unwrap() as u64 * BLOCK as u64)
}

#[test]
fn damage_comes_with_what_to_do_and_is_not_forgotten() {
    let scene = Scene::new();
    let (data, at) = marked(&scene);
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    data.write_all_at(&[7; 64], at).unwrap();
    let run = quayfs(["scrub", vol]);
    let last = run.out.lines().last().unwrap();
    let repair = format!("1 block or page damaged: `quayfs fsck --repair --data {vol}`, unmounted");
    assert!(run.code == 4 && last.contains(&repair), "{run:?}");
    // A check that does not read it.
    let said = quayfs(["fsck", vol]).ok();
    let known = "what is in files was not read: that takes --data; the log says that the last \
                 scrub or check of it found 1 damaged block or page";
    assert_eq!(said.lines().last(), Some(known), "{said}");
    let run = quayfs(["fsck", "--data", vol]);
    let lines: Vec<_> = run.out.lines().rev().take(2).collect();
    let repair = format!("`quayfs fsck --repair --data {vol}` heals blocks of which one bit has");
    assert!(lines[0].starts_with(&repair), "{run:?}");
    assert!(
        lines[0].ends_with("from a backup, or remove them"),
        "{run:?}"
    );
    assert_eq!((run.code, lines[1]), (4, "1 finding"));
}

#[test]
fn what_a_mount_puts_right_is_not_left_to_status() {
    let scene = Scene::new();
    let region = scene.vol().join("pmem");
    let region = std::fs::File::options().read(true).write(true).open(region);
    let region = region.unwrap();
    region.write_all_at(&[0xff; 8], BLOCK as u64 + 100).unwrap();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let run = quayfs(["fsck", vol]);
    let last = run.out.lines().last();
    let advice = format!(
        "the next mount puts that right, if it may write, and so does `quayfs fsck --repair {vol}`"
    );
    assert_eq!((run.code, last), (4, Some(&*advice)), "{run:?}");
    let status = quayfs(["status", vol]);
    assert!(!status.out.contains("the last check"), "{status:?}");
    // Unless there is something else by now.
    let mut intact = vec![0; BLOCK];
    region.read_exact_at(&mut intact, 0).unwrap();
    region.write_all_at(&intact, BLOCK as u64).unwrap();
    region.write_all_at(b"XFSB", 0).unwrap();
    let run = quayfs(["fsck", vol]);
    let last = run.out.lines().last().unwrap_or_default();
    let refused = "neither a mount nor a repair puts that right: ";
    assert!(run.code == 4 && last.starts_with(refused), "{run:?}");
    assert!(last.contains("wipefs"), "{last}");
}

/// Blocks and pages are not all that a mount needs.
#[test]
fn a_scrub_does_not_call_whole_what_no_mount_accepts() {
    let scene = Scene::new();
    let vol = scene.vol();
    let vol = vol.to_str().unwrap();
    let dump: Value = serde_json::from_str(&quayfs(["dump", vol, "--json"]).ok()).unwrap();
    let log = dump["geometry"]["l2p_log_off"].as_u64().unwrap();
    let region = std::fs::File::options()
        .write(true)
        .open(scene.vol().join("pmem"));
    region
        .unwrap()
        .write_all_at(&[0xa5; 64 << 10], log)
        .unwrap();
    let scrub = quayfs(["scrub", vol]);
    assert!(
        scrub.code == 4 && scrub.out.contains("fsck --repair"),
        "{scrub:?}"
    );
}

#[test]
fn a_repair_tells_its_total_once_and_nothing_of_recovery() {
    let scene = Scene::new();
    let vol = scene.vol();
    let pmem = std::fs::File::options()
        .write(true)
        .open(vol.join("pmem"))
        .unwrap();
    let vol = vol.to_str().unwrap();
    // The state of the volume, and one of the two tables: after that it counts as not unmounted.
    pmem.write_all_at(&[0xff; 8], 8192).unwrap();
    pmem.write_all_at(&[0xff; 64], 512).unwrap();
    let run = quayfs(["fsck", vol]);
    assert!(!run.out.contains("recovers"), "{run:?}");
    let run = quayfs(["fsck", "--repair", vol]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.out.contains("repaired; it can be mounted\n"), "{run:?}");
    assert_eq!(run.out.matches(" all repaired").count(), 1, "{run:?}");
    assert!(!run.out.contains("recovers"), "{run:?}");
    assert!(!run.out.contains("no damage found"), "{run:?}");
    // Beyond repair: the words of the superblock, and their copy.
    let data = std::fs::File::options()
        .write(true)
        .open(scene.vol().join("data"))
        .unwrap();
    data.write_all_at(&[0xff; BLOCK], 129 * BLOCK as u64)
        .unwrap();
    pmem.write_all_at(&[0xff; 8], 8192).unwrap();
    let run = quayfs(["fsck", "--repair", vol]);
    let totals = run.out.lines().filter(|l| l.contains(" finding"));
    assert_eq!((run.code, totals.count()), (4, 1), "{run:?}");
}
