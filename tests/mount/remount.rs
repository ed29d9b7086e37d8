//! `-o remount`: what it changes, and that it refuses the rest.
//!
//! Needs `/dev/fuse` and root.

use crate::program;

use program::doomed::Doomed;
use program::{Mounted, QUAYFS, Run, Scene, can_be_root, eventually, named, quayfs};
use quayfs_options::remount::CHANGEABLE;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn remount(m: &Mounted, options: &str) -> Run {
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let (vol, mnt) = (vol.to_str().unwrap(), mnt.to_str().unwrap());
    let options = format!("remount,{options}");
    quayfs(["mount", vol, mnt, "-o", &options])
}

/// What the mount table says: flags of the mount, options of the file system.
fn table(target: &Path) -> (String, String) {
    // Others may mount what has a name of any bytes.
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let line = String::from_utf8_lossy(&table);
    let line = line
        .lines()
        .rfind(|l| l.split(' ').nth(4).map(Path::new) == Some(target))
        .unwrap();
    let words: Vec<_> = line.split(' ').collect();
    (words[5].into(), words.last().unwrap().to_string())
}

#[test]
fn flags_are_changed_and_the_others_kept() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "nosuid,noatime");
    let flags = || table(&m.mnt()).0;
    assert_eq!(flags(), "rw,nosuid,noatime");
    fs::write(m.mnt().join("file"), "").unwrap();
    symlink("file", m.mnt().join("link")).unwrap();
    for (said, found) in [
        ("nodev", "rw,nosuid,nodev,noatime"),
        ("noexec,dev", "rw,nosuid,noexec,noatime"),
        ("ro", "ro,nosuid,noexec,noatime"),
        ("suid,exec,nodev", "ro,nodev,noatime"),
        ("rw,dev", "rw,noatime"),
        ("nosymfollow", "rw,noatime,nosymfollow"),
        ("symfollow", "rw,noatime"),
    ] {
        remount(&m, said).ok();
        assert_eq!(flags(), found, "{said}");
        let wrote = fs::write(m.mnt().join("file"), said).is_ok();
        assert_eq!(wrote, found.starts_with("rw"), "{said}");
        let followed = fs::read(m.mnt().join("link")).is_ok();
        assert_eq!(followed, !found.contains("nosymfollow"), "{said}");
    }
    let held = fs::File::create(m.mnt().join("held")).unwrap();
    remount(&m, "ro").fails(32, "a file is open for writing");
    drop(held);
}

/// What mount(8) says is what the mount table says, and what fstab says is what it was mounted with.
#[test]
fn what_is_so_already_may_be_said() {
    if !can_be_root() {
        return;
    }
    let mounted = "durability=commit,commit=9,allow_other,noatime,noacl,errors=continue,threads=3";
    let m = Mounted::on(Scene::in_memory(), mounted);
    let (flags, options) = table(&m.mnt());
    let own = m.info()["options"].as_str().unwrap().to_string();
    for said in [
        &own,
        mounted,
        "rw,async,dirsync,nolazytime,nofail,_netdev,x-systemd.automount",
    ] {
        // A synchronous mount would be another one.
        let said = said.replace(",dirsync", "");
        remount(&m, &format!("{flags},{options},{said}")).ok();
    }
    assert_eq!(table(&m.mnt()), (flags, options));
    let helper = m.0.helper("mount.quayfs");
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let line = [vol.as_os_str(), mnt.as_os_str(), "-so".as_ref()];
    let turbo = ["remount,ro,turbo".as_ref()];
    named(&helper, line.into_iter().chain(turbo)).ok();
    assert!(table(&m.mnt()).0.starts_with("ro"));
}

#[test]
fn what_a_live_mount_cannot_change_is_refused() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "durability=commit");
    let before = (table(&m.mnt()), m.info()["options"].clone());
    let rings = before.1.as_str().unwrap().contains("transport=uring");
    let other = if rings {
        "transport=dev"
    } else {
        "transport=uring"
    };
    for said in [
        "data=ordered",
        "durability=op",
        "commit=9",
        "checkpoint=swap",
        "writeback",
        "atomic_writes",
        "open=elide",
        "permissions=owner",
        "noacl",
        "idmap",
        "errors=continue",
        "buffers=1",
        "threads=3",
        other,
        "idle=halt",
        "read_ahead=1M",
        "allow_other",
        "noatime",
        "strictatime",
        "nodiratime",
        "sync",
        "dirsync",
        "fsname=other",
        "subtype=none",
        "ablation=workers:1",
        "user_id=7",
        "max_read=4096",
    ] {
        let why = format!("`{said}` cannot be changed by `remount`");
        remount(&m, said).fails(32, &why);
        remount(&m, &format!("ro,{said},nosuid")).fails(32, &why);
    }
    remount(&m, "turbo").fails(1, "unknown mount option `turbo`");
    assert_eq!((table(&m.mnt()), m.info()["options"].clone()), before);
    m.umount();
    for (mounted, said) in [
        ("sync", "async"),
        ("strictatime", "nostrictatime"),
        ("noatime", "relatime"),
        ("permissions=owner", "default_permissions"),
        ("permissions=owner", "permissions=kernel"),
        ("noacl", "acl"),
    ] {
        m.mount(mounted);
        remount(&m, said).fails(32, &format!("`{said}` cannot be changed"));
        m.umount();
    }
}

#[test]
fn a_mount_that_only_reads_its_media_does_not_become_writable() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "ro");
    remount(&m, "rw").fails(32, "it was mounted with `ro`");
    remount(&m, "ro,nodev").ok();
    assert!(table(&m.mnt()).0.starts_with("ro,nodev"));
    m.umount();

    let doomed = Doomed::new();
    let m = &doomed.mounted;
    eventually("the mount has failed", || m.info()["read_only"] == true);
    remount(m, "rw").fails(32, "a failure has made it read-only");
    remount(m, "ro").ok();
}

#[test]
fn only_what_is_mounted_is_remounted() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    let (vol, mnt) = (vol.to_str().unwrap(), mnt.to_str().unwrap());
    quayfs(["mount", vol, mnt, "-o", "remount,ro"]).fails(32, "nothing is mounted on");
    quayfs(["mount", vol, "/proc", "-o", "remount,rw"]).fails(32, "not QuayFS");
}

/// Words in backticks.
fn quoted(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words.map(str::to_string).collect()
}

/// Between two pieces of text that are there.
#[track_caller]
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let at = text.find(from).unwrap_or_else(|| panic!("{from}")) + from.len();
    let rest = &text[at..];
    &rest[..rest.find(to).unwrap_or_else(|| panic!("{to}"))]
}

#[test]
fn the_documents_and_the_help_name_the_same_flags() {
    let flags: Vec<_> = CHANGEABLE.iter().map(|(on, _)| on.to_string()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let end = "and their opposites of";
    let readme = read("README.md");
    assert_eq!(
        quoted(between(&readme, "| `remount` | changes", end)),
        flags
    );
    let semantics = read("docs/semantics.md");
    assert_eq!(quoted(between(&semantics, "`remount` changes", end)), flags);
    let help = named(Path::new(QUAYFS), ["mount", "--help"]).ok();
    let words = between(&help, "remount                    change", end);
    let words: Vec<_> = words.split([',', ' ']).filter(|w| !w.is_empty()).collect();
    assert_eq!(words, flags);
}
