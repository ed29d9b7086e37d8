//! What is advised works, in its order.

use super::super::logged::Logged;
use super::super::next::without_tables;
use super::super::report::tests::sample;
use super::super::report::{Report, State};
use super::super::text::block;
use super::unanswered::not_closed;
use super::{Health, judge};
use std::path::{Path, PathBuf};

/// The first advice.
fn advice(r: &mut Report) -> String {
    judge(r);
    r.advice.clone().unwrap_or_default()
}

fn log(r: &mut Report, lines: &[&str]) {
    (r.scrub, r.log) = (None, Some(Logged::of(lines)));
}

/// A mount that has failed refuses to be scrubbed.
#[test]
fn a_scrub_is_advised_where_one_can_be_made() {
    let mut r = sample();
    (r.scrub, r.errors.reads) = (None, 1);
    assert!(advice(&mut r).starts_with("`quayfs scrub /mnt/q` names"));
    (r.has_failed, r.errors.damage) = (true, 1);
    r.read_only_reason = Some("damaged metadata: node 7".into());
    judge(&mut r);
    let todo: Vec<String> = r.todo.into_iter().flatten().collect();
    let scrub = "`quayfs umount /mnt/q`, then `quayfs scrub /srv/vol` names all damaged files";
    assert!(todo.iter().any(|todo| todo == scrub), "{todo:?}");
    assert!(!todo.iter().any(|todo| todo.contains("scrub /mnt/q")));
}

/// A repair without `--data` does nothing about the content of files.
#[test]
fn damaged_content_is_first_to_be_named() {
    let scrubbed = "INFO scrub: Finished after 9 bytes, damaged blocks and pages: 2";
    let repaired = "INFO fsck: structure: 0, blocks: at least 65";
    for found in [scrubbed, repaired] {
        let mut r = sample();
        log(&mut r, &[found]);
        let todo = advice(&mut r);
        assert!(todo.starts_with("`quayfs scrub /mnt/q` names"), "{todo}");
        (r.state, r.mountpoint) = (State::Unmounted, None);
        r.clean = Some(true);
        let todo = advice(&mut r);
        assert!(todo.starts_with("`quayfs scrub /srv/vol` names"), "{todo}");
        assert!(todo.contains("--repair --data"), "{todo}");
    }
}

/// What the daemon has in memory goes first: after the unmount it is nowhere.
#[test]
fn tables_are_written_again_while_they_are_in_memory() {
    let why = without_tables(Path::new("/srv/vol"));
    let taken = format!("{why}, and what is there now is ext4 data");
    for (why, is_taken) in [(why, false), (taken, true)] {
        let mut r = sample();
        r.hindrance = Some(why);
        let todo = advice(&mut r);
        assert!(
            todo.starts_with("`quayfs scrub /mnt/q` writes the tables"),
            "{todo}"
        );
        let places = ["scrub", "copy what", "umount", "wipefs", "fsck --repair"];
        let places = places.map(|word| todo.find(word));
        assert_eq!(places[3].is_some(), is_taken, "{todo}");
        assert!(places.iter().flatten().is_sorted(), "{todo}");
        // Of another region nothing else is in memory.
        r.backend = Some("dax".into());
        assert!(advice(&mut r).starts_with("copy what is on /mnt/q"));
    }
}

#[test]
fn a_device_that_cannot_be_written_is_told_before_a_mount_that_recovers() {
    let mut r = sample();
    (r.state, r.mountpoint, r.clean) = (State::Unmounted, None, Some(false));
    let protected = not_closed(&r, Some(PathBuf::from("/dev/loop7")));
    assert!(protected.2.contains("/dev/loop7 is write-protected"));
    let todo = protected.3.unwrap();
    assert!(
        todo.contains("`blockdev --setrw /dev/loop7`), then mount it"),
        "{todo}"
    );
    assert!(not_closed(&r, None).3.unwrap().starts_with("mount it"));
}

#[test]
fn a_log_that_cannot_be_used_is_told() {
    let mut r = sample();
    let log = Logged {
        is_others_file: true,
        ..Logged::default()
    };
    (r.scrub, r.log) = (None, Some(log));
    judge(&mut r);
    assert_eq!(r.health, Health::Degraded);
    assert!(r.reasons[0].contains("belongs to another user"));
    // A log that this user cannot read says nothing of scrubs.
    let dir = tempfile::tempdir().unwrap();
    let mut r = sample();
    r.scrub = None;
    r.log = Some(Logged::read(dir.path(), None));
    let text = block(&r);
    assert!(
        text.contains("scrub       unknown: the log cannot be read"),
        "{text}"
    );
    assert!(!text.contains("no log"), "{text}");
    r.log = Some(Logged::read(&dir.path().join("none"), None));
    assert!(block(&r).contains("as far as the log goes"));
}
