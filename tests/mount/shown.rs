//! Names that others have chosen, as the program shows them: nothing in them ends a line or moves a cursor.
//!
//! Most of it needs `/dev/fuse`; QUAYFS_SKIP_FUSE=1 does without.

use crate::program;

use program::{Mounted, Run, Scene, can_mount, quayfs};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A name that would forge a line, clear the screen, and is no UTF-8.
const RAW: &[u8] = b"a\nERROR forged\x1b[2J\xff";
const SHOWN: &str = "a\\nERROR forged\\x1b[2J\\xff";

fn raw(dir: &Path) -> PathBuf {
    dir.join(OsStr::from_bytes(RAW))
}

fn run(command: &str, more: &[&OsStr]) -> Run {
    quayfs([OsStr::new(command)].iter().chain(more))
}

/// Asserts that it has nothing but lines of text.
#[track_caller]
fn assert_plain(text: &str) {
    let odd = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(odd), "{text:?}");
    assert!(!text.lines().any(|l| l.starts_with("ERROR")), "{text}");
}

#[test]
fn messages_and_listings_of_a_volume_at_rest() {
    let scene = Scene::new();
    let vol = raw(scene.dir());
    fs::create_dir(&vol).unwrap();
    let sizes = ["--pmem-size", "32M", "--data-size", "64M", "--sparse"];
    let label = ["--label", "x\nERROR forged\x1b[2J"];
    let words = sizes.iter().chain(&label).map(OsStr::new);
    let words: Vec<_> = [vol.as_os_str()].into_iter().chain(words).collect();
    let made = run("mkfs", &words).ok();
    assert!(made.contains(SHOWN), "{made}");
    assert_plain(&made);
    for command in ["info", "fsck", "scrub", "quota"] {
        let said = run(command, &[vol.as_os_str()]);
        assert_plain(&said.out);
        assert_plain(&said.err);
        assert_eq!(said.code, 0, "{command}: {said:?}");
    }
    let info = run("info", &[vol.as_os_str(), OsStr::new("--json")]).ok();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["label"], label[1]);

    let none = raw(&vol);
    for command in ["info", "fsck", "scrub", "quota", "umount"] {
        let said = run(command, &[none.as_os_str()]);
        assert_eq!(said.err.lines().count(), 1, "{command}: {said:?}");
        assert_plain(&said.err);
        assert_ne!(said.code, 0);
    }
}

/// A mount of such a volume is found by it, and neither the table nor the log have its name as it is.
#[test]
fn the_mount_table_and_the_log() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = (raw(m.0.dir()), m.mnt());
    fs::rename(m.0.vol(), &vol).unwrap();
    let said = run("mount", &[vol.as_os_str(), mnt.as_os_str()]).ok();
    assert!(said.contains(SHOWN), "{said}");
    let json = run("info", &[mnt.as_os_str(), "--json".as_ref()]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["volume"].as_str().unwrap().contains("a\nERROR"));
    assert_plain(&said);
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let line = (table.split(|b| *b == b'\n'))
        .find(|l| String::from_utf8_lossy(l).split(' ').nth(4) == mnt.to_str())
        .unwrap();
    // The kernel spells backslashes out.
    let source = SHOWN.replace('\\', "\\134").replace(' ', "\\040");
    let line = std::str::from_utf8(line).unwrap();
    assert!(line.contains(&source), "{line:?}");
    for text in [
        run("info", &[vol.as_os_str()]).ok(),
        run("mount", &[vol.as_os_str(), mnt.as_os_str()]).err,
    ] {
        assert!(text.contains("mnt"), "{text}");
        assert_plain(&text);
    }
    m.umount();
    let log = fs::read_to_string(vol.join("quayfs.log")).unwrap();
    assert!(log.contains(SHOWN), "{log}");
    assert_plain(&log);
    for option in ["fsname=a\u{1b}[2J", "subtype=a\nb"] {
        let words = [vol.as_os_str(), mnt.as_os_str(), OsStr::new("-o")];
        let said = run("mount", &[&words[..], &[OsStr::new(option)]].concat());
        said.fails(1, "a name without control characters");
    }
}

/// Any user who may make files names them, and root reads the listing.
#[test]
fn damaged_files() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rw");
    let mnt = m.mnt();
    let name = raw(&mnt);
    fs::write(&name, vec![7; 64 << 10]).unwrap();
    m.umount();
    let data = m.0.vol().join("data");
    let data = File::options().write(true).open(data).unwrap();
    for block in 20..data.metadata().unwrap().len() / 4096 {
        data.write_all_at(b"spoilt", block * 4096 + 100).unwrap();
    }
    m.mount("rw");
    let listed = run("scrub", &[mnt.as_os_str()]);
    assert_eq!(listed.code, 4, "{listed:?}");
    let shown = &SHOWN[..SHOWN.len() - "\\xff".len()];
    assert!(listed.out.contains(shown), "{}", listed.out);
    m.umount();
    assert!(m.log().contains(shown), "{}", m.log());
    let vol = m.0.vol();
    assert_plain(&listed.out);
    assert_plain(&m.log());
    let json: OsString = "--json".into();
    let checked = run("scrub", &[vol.as_os_str(), &json]).out;
    assert!(serde_json::from_str::<serde_json::Value>(&checked).is_ok());
}
