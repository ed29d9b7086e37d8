use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A device number that no file system has, nor another process that runs these tests.
fn number(n: u32) -> String {
    format!("0:{n}-{}", std::process::id())
}

fn entry(device: &str) -> Entry {
    let me = rustix::process::geteuid().as_raw();
    Entry {
        id: 1,
        parent: 0,
        device: device.into(),
        root: "/".into(),
        target: PathBuf::from("/no/such/place"),
        options: "rw".into(),
        fstype: "fuse.quayfs".into(),
        source: "/no/such/volume".into(),
        superblock: format!("rw,user_id={me},group_id={me}"),
    }
}

#[test]
fn a_daemon_is_found_and_says_how_it_ended() {
    for ending in [
        Ending::Closed,
        Ending::Staged(5),
        Ending::Damaged("cut short".into()),
        Ending::ShutDown,
        Ending::Left("no room: make some".into()),
    ] {
        let desk = Desk::open(&number(70)).unwrap();
        let server = Server::of(&entry(&number(70))).unwrap();
        assert_eq!(server.pid(), Some(std::process::id() as i32));
        assert!(!server.ends_within(Duration::ZERO).unwrap());
        assert_eq!(server.ending(), None);
        let callers = desk.close();
        assert!(Server::of(&entry(&number(70))).is_none());
        callers.tell(&ending);
        assert_eq!(server.ending(), Some(ending));
    }
}

#[test]
fn a_daemon_that_ends_without_a_word_says_nothing() {
    let desk = Desk::open(&number(71)).unwrap();
    let server = Server::of(&entry(&number(71))).unwrap();
    drop(desk);
    assert_eq!(server.ending(), None);
}

#[test]
fn a_long_reason_is_cut_to_what_is_read() {
    let desk = Desk::open(&number(72)).unwrap();
    let server = Server::of(&entry(&number(72))).unwrap();
    desk.close()
        .tell(&Ending::Left("ä\n".repeat(words::LINE_MAX)));
    let Some(Ending::Left(why)) = server.ending() else {
        panic!("no ending")
    };
    assert!(why.starts_with("ä ä ") && why.len() > words::LINE_MAX - 16);
}

/// Names are free for all, so another user's process may listen there.
#[test]
fn only_the_user_who_mounted_is_believed() {
    let _desk = Desk::open(&number(73)).unwrap();
    let mut entry = entry(&number(73));
    entry.superblock = "rw,user_id=12345,group_id=0".into();
    assert!(Server::of(&entry).is_none());
}

#[test]
fn names_are_picked_out_of_the_kernels_list() {
    let list = b"Num RefCount Protocol Flags Type St Inode Path\n\
        0: 2 0 10000 1 1 7 @quayfs/0:45/0/12\n\
        0: 2 0 10000 1 1 8 /run/@quayfs/0:45/0/13\n\
        0: 2 0 10000 1 1 9 @quayfs/0:4/0/14\n\
        0: 2 0 10000 1 1 9\n@quayfs/0:45/0/15";
    let found = names(list, "quayfs/0:45/0/");
    let found: Vec<_> = found.iter().map(|n| String::from_utf8_lossy(n)).collect();
    // The second is a file; to connect to such a name is in vain.
    assert_eq!(
        found,
        ["quayfs/0:45/0/12", "quayfs/0:45/0/13", "quayfs/0:45/0/15"]
    );
}

#[test]
fn a_daemon_is_found_by_its_status() {
    let me = format!("{{\"pid\": {}, \"more\": []}}", std::process::id());
    assert!(Server::of_status(&me).is_some());
    for status in [
        "",
        "{}",
        "{\"pid\": 0}",
        "{\"pid\": -1}",
        "{\"pid\": \"1\"}",
        "[1]",
    ] {
        assert!(Server::of_status(status).is_none(), "{status}");
    }
}

#[test]
fn waiting_ends_with_the_process() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let server = Server::new(Some(pid), None);
    // It stays a zombie until it is waited for, so its number is its own.
    assert!(server.ends_within(Duration::from_secs(600)).unwrap());
    assert!(child.wait().unwrap().success());
    assert_eq!(server.ending(), None);
}

/// The device number of a file system that is gone goes to the next one.
#[test]
fn file_systems_are_told_apart_by_more_than_their_device_numbers() {
    let mut seen = std::collections::BTreeSet::new();
    for bdi in std::fs::read_dir("/sys/class/bdi")
        .into_iter()
        .flatten()
        .flatten()
    {
        let device = bdi.file_name().into_string().unwrap();
        let name = prefix(&device);
        let node = name.strip_prefix(&format!("quayfs/{device}/")).unwrap();
        assert!(node != "0/" && seen.insert(node.to_string()), "{name}");
    }
    assert_eq!(prefix("0:1048570"), "quayfs/0:1048570/0/");
}

#[test]
fn a_wish_counts_as_long_as_its_process_is_there() {
    let desk = Desk::open(&number(74)).unwrap();
    let gone = Server::of(&entry(&number(74))).unwrap();
    assert!(gone.ask_for(NO_DRAIN));
    drop(gone);
    let silent = Server::of(&entry(&number(74))).unwrap();
    let mut callers = desk.close();
    assert!(!callers.want_no_drain());
    callers.tell(&Ending::Closed);
    assert_eq!(silent.ending(), Some(Ending::Closed));

    let desk = Desk::open(&number(74)).unwrap();
    let there = Server::of(&entry(&number(74))).unwrap();
    assert!(there.ask_for(NO_DRAIN));
    let mut callers = desk.close();
    assert!(callers.want_no_drain());
    callers.tell(&Ending::Staged(5));
    assert_eq!(there.ending(), Some(Ending::Staged(5)));
}

#[test]
fn how_far_it_is_hears_who_has_asked() {
    let desk = Desk::open(&number(75)).unwrap();
    let find = || Server::of(&entry(&number(75))).unwrap();
    let (asks, silent) = (find(), find());
    assert!(asks.ask_for(PROGRESS));
    let mut callers = desk.close();
    let left = Left { bytes: 9, rate: 3 };
    callers.tell_left(Path::new("/a b"), Left::default());
    callers.tell_left(Path::new("/a b"), left);
    assert_eq!((asks.left(), silent.left()), (Some(left), None));
    callers.tell(&Ending::Closed);
    for server in [asks, silent] {
        assert_eq!(server.ending(), Some(Ending::Closed));
    }
}

#[test]
fn a_daemon_that_closes_a_volume_is_found_by_the_volume() {
    let me = rustix::process::geteuid().as_raw();
    let uuid = format!("none-{}", std::process::id());
    assert!(Server::closing(&uuid, me).is_none());
    let desk = Desk::closing(&uuid).unwrap();
    let Closer { server, .. } = Server::closing(&uuid, me).unwrap();
    assert_eq!(server.pid(), Some(std::process::id() as i32));
    assert!(server.ask_for(PROGRESS));
    let mut callers = Callers::default();
    desk.admit(&mut callers);
    callers.tell_left(Path::new("/a b"), Left { bytes: 1, rate: 1 });
    assert!(server.speaks_within(Duration::from_secs(600)).unwrap());
    assert_eq!(server.left().unwrap().seconds(), Some(1));
    desk.admit(&mut callers);
    callers.tell(&Ending::Closed);
    assert_eq!(server.ending(), Some(Ending::Closed));
}

#[test]
fn all_daemons_that_close_volumes_are_found_with_their_volumes() {
    let uuids = ["one", "two"].map(|n| format!("{n}-{}", std::process::id()));
    let desks = uuids.each_ref().map(|uuid| Desk::closing(uuid).unwrap());
    let mut found = Server::all_closing();
    found.retain(|closer| uuids.contains(&closer.uuid));
    found.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    assert_eq!(found.len(), 2);
    let me = rustix::process::geteuid().as_raw();
    for ((closer, desk), volume) in found.iter().zip(&desks).zip(["/srv/one", "/srv/t w o"]) {
        assert_eq!((closer.user, closer.server.volume()), (me, None));
        assert!(closer.server.ask_for(VOLUME));
        let mut callers = Callers::default();
        desk.admit(&mut callers);
        callers.tell_left(Path::new(volume), Left::default());
        assert_eq!(closer.server.volume().as_deref(), Some(Path::new(volume)));
        // It has not asked how far that is.
        assert_eq!(closer.server.left(), None);
    }
}
