use super::super::full::Obstacle;
use super::super::logged::Logged;
use super::super::report::State;
use super::super::report::tests::sample;
use super::*;

#[test]
fn a_volume_in_use_is_well() {
    let mut r = sample();
    judge(&mut r);
    assert_eq!((r.health, r.reasons.len()), (Health::Ok, 0));
}

/// A change, what it makes of the health, and what it is about.
type Case = (fn(&mut Report), Health, &'static str);

const COMPLAINTS: [Case; 24] = [
    (
        |r| {
            r.state = State::Silent;
            r.unmountable = Some(Obstacle::Media("pmem is missing".into()));
        },
        Health::Failed,
        "pmem is missing",
    ),
    (
        |r| r.unlinked = vec!["pmem".into()],
        Health::Failed,
        "pmem: removed while",
    ),
    (
        |r| {
            (r.state, r.clean) = (State::Unmounted, Some(false));
            r.unmountable = Some(Obstacle::Damage("damaged (2 findings)".into()));
        },
        Health::Failed,
        "used: damaged",
    ),
    (
        |r| {
            (r.state, r.clean) = (State::Unmounted, Some(true));
            r.unmountable = Some(Obstacle::Other("`chmod 600 data`".into()));
        },
        Health::Failed,
        "mounted: `chmod",
    ),
    (
        |r| {
            (r.state, r.clean) = (State::Unmounted, Some(true));
            r.unmountable = Some(Obstacle::Media("cut short".into()));
        },
        Health::Failed,
        "mounted: cut short",
    ),
    (|r| r.state = State::Dead, Health::Failed, "gone"),
    (|r| r.state = State::Stopped, Health::Failed, "stopped"),
    (|r| r.state = State::Silent, Health::Failed, "not answered"),
    (
        |r| (r.state, r.is_busy) = (State::Silent, true),
        Health::Degraded,
        "busy",
    ),
    (|r| r.state = State::InUse, Health::Degraded, "in use"),
    (|r| r.shut_down = true, Health::Failed, "shut down"),
    (
        |r| r.read_only_reason = Some("the disk broke".into()),
        Health::Failed,
        "the disk broke",
    ),
    (
        |r| r.device_silent_seconds = Some(SILENT),
        Health::Failed,
        "not answered for 30 s",
    ),
    (
        |r| r.device_missing_bytes = 1 << 20,
        Health::Failed,
        "its last 1 MiB are",
    ),
    (
        |r| {
            r.scrub = None;
            r.log = Some(Logged::of(&[
                "INFO scrub: Finished after 9 bytes, damaged: 2",
            ]));
        },
        Health::Degraded,
        "check in the log found damaged blocks or pages: 2",
    ),
    (
        |r| {
            r.scrub = None;
            r.log = Some(Logged::of(&[
                "ERROR data: cut short: its last 8 bytes are not there any more",
            ]));
        },
        Health::Degraded,
        "device that was cut short",
    ),
    (
        |r| r.log = Some(Logged::of(&["INFO fsck: structure: 3, blocks: 0"])),
        Health::Degraded,
        "findings: 3",
    ),
    (|r| r.errors.damage = 1, Health::Degraded, "met 1 time"),
    (
        |r| {
            r.errors.reads = 1;
            r.errors.recent.clear();
        },
        Health::Degraded,
        "1 read failed",
    ),
    (
        |r| r.scrub.as_mut().unwrap().findings = 1,
        Health::Degraded,
        "scrub",
    ),
    (
        |r| {
            let data = r.data.as_mut().unwrap();
            data.used_bytes = data.total_bytes * 95 / 100 + 1;
        },
        Health::Degraded,
        "data: 95%",
    ),
    (
        |r| r.daemon.as_mut().unwrap().restarts = Some(1),
        Health::Degraded,
        "died",
    ),
    (
        |r| r.successor_lost = Some("its supervisor is gone".into()),
        Health::Degraded,
        "its supervisor is gone: the mount would end with its daemon",
    ),
    (
        |r| (r.state, r.clean) = (State::Unmounted, Some(false)),
        Health::Degraded,
        "cleanly",
    ),
];

#[test]
fn each_complaint_has_its_weight() {
    for (change, health, about) in COMPLAINTS {
        let mut r = sample();
        change(&mut r);
        judge(&mut r);
        assert_eq!(r.health, health, "{about}");
        assert!(r.reasons[0].contains(about), "{about}: {:?}", r.reasons);
    }
}

#[test]
fn the_worst_comes_first_and_is_what_advice_is_about() {
    let mut r = sample();
    r.errors.reads = 1;
    r.errors.recent.clear();
    r.shut_down = true;
    judge(&mut r);
    assert_eq!(r.health, Health::Failed);
    assert!(r.reasons[0].contains("shut down") && r.reasons.len() == 2);
    assert!(r.advice.unwrap().contains("umount"));
}

#[test]
fn a_scrub_of_this_mount_is_newer_than_those_of_earlier_ones() {
    let mut r = sample();
    r.log = Some(Logged::of(&[
        "INFO scrub: Finished after 9 bytes, damaged: 2",
    ]));
    judge(&mut r);
    assert_eq!(r.health, Health::Ok, "it has found nothing");
}

#[test]
fn a_scrub_that_finds_nothing_ends_what_reads_have_met_before() {
    let with = |since: i64| {
        let mut r = sample();
        r.errors.reads = 1;
        let ended = r.scrub.as_ref().unwrap().ended.unwrap();
        r.errors
            .recent
            .iter_mut()
            .for_each(|e| e.time = ended.saturating_add_signed(since));
        assert!(!r.errors.recent.is_empty());
        judge(&mut r);
        r.health
    };
    assert_eq!((with(-1), with(1)), (Health::Ok, Health::Degraded));
}

#[test]
fn a_root_that_cannot_be_read_is_told_with_the_reason_of_the_log() {
    let mut r = sample();
    r.state = State::Broken;
    r.log = Some(Logged::of(&["ERROR damaged metadata: node 7"]));
    judge(&mut r);
    assert!(
        r.reasons[0].contains("damaged metadata: node 7"),
        "{:?}",
        r.reasons
    );
    assert!(r.advice.unwrap().contains("fsck --repair"));
}

#[test]
fn what_a_check_has_left_goes_before_a_mount_that_recovers() {
    let mut r = sample();
    (r.state, r.clean, r.mountpoint) = (State::Unmounted, Some(false), None);
    r.errors.damage = 0;
    for line in [
        "INFO fsck: structure: 1, blocks: not read",
        "ERROR unmounted, but the volume is not closed: damaged metadata: node 7",
    ] {
        let mut r = r.clone();
        r.log = Some(Logged::of(&[line]));
        judge(&mut r);
        assert!(r.advice.unwrap().contains("fsck --repair"));
    }
}

/// A log of these lines, all written so many seconds ago.
fn logged(lines: &[&str], ago: u64) -> Option<Logged> {
    let mut log = Logged::of(lines);
    let now = seconds_since(0);
    let all = [
        &mut log.last_repair,
        &mut log.last_death,
        &mut log.begun_repair,
    ];
    for line in all.into_iter().flatten().chain(&mut log.losses) {
        line.time = now - ago;
    }
    Some(log)
}

#[test]
fn reads_of_an_earlier_mount_count_until_everything_was_read() {
    let failed = "ERROR inode 7: content of LBN 9 does not match its checksum";
    let scrubbed = "INFO scrub: Finished after 9 bytes, damaged blocks and pages: 0";
    for (lines, health) in [
        (&[failed][..], Health::Degraded),
        (&[failed, scrubbed], Health::Ok),
    ] {
        let mut r = sample();
        (r.scrub, r.log) = (None, logged(lines, 0));
        judge(&mut r);
        assert_eq!(r.health, health, "{:?}", r.reasons);
    }
    let mut r = sample();
    (r.scrub, r.log, r.errors.reads) = (None, logged(&[failed], 0), 1);
    judge(&mut r);
    assert_eq!(r.reasons.len(), 1, "it is said once: {:?}", r.reasons);
}

#[test]
fn what_a_repair_has_lost_is_told_for_a_day() {
    let with = |line, ago| {
        let mut r = sample();
        r.log = logged(&[line], ago);
        judge(&mut r);
        (r.health, r.reasons.into_iter().next().unwrap_or_default())
    };
    let lossy = "INFO repair: 2 findings; losses: 3 inodes are lost";
    let (health, why) = with(lossy, 60);
    assert_eq!(health, Health::Degraded);
    assert!(why.contains("1 min ago") && why.ends_with("3 inodes are lost"));
    assert_eq!(with(lossy, LATELY).0, Health::Ok);
    let harmless = "INFO repair: 2 findings, nothing lost";
    assert_eq!(with(harmless, 60).0, Health::Ok);
    let begun = "INFO repair: begun: 2 findings";
    assert!(with(begun, 60).1.contains("begun 1 min ago and not ended"));
    assert_eq!(with(begun, LATELY).0, Health::Ok);
}

#[test]
fn a_replacement_hides_no_death() {
    let died = "WARN the last daemon of this mount: ended by signal 11; no request is lost";
    let with = |ago| {
        let mut r = sample();
        let daemon = r.daemon.as_mut().unwrap();
        (daemon.restarts, daemon.last_death) = (Some(2), Some(ON_REQUEST.into()));
        r.log = logged(&[died], ago);
        judge(&mut r);
        r.reasons
    };
    assert!(with(60)[0].contains("1 min ago (ended by signal 11)"));
    assert!(with(LATELY).is_empty());
}

#[test]
fn an_old_death_is_forgotten() {
    let mut r = sample();
    let daemon = r.daemon.as_mut().unwrap();
    (daemon.restarts, daemon.uptime_seconds) = (Some(1), LATELY);
    judge(&mut r);
    assert_eq!(r.health, Health::Ok);
}

#[test]
fn a_replacement_is_no_death() {
    let mut r = sample();
    let daemon = r.daemon.as_mut().unwrap();
    daemon.restarts = Some(1);
    daemon.last_death = Some(ON_REQUEST.into());
    judge(&mut r);
    assert_eq!((r.health, r.reasons.len()), (Health::Ok, 0));
}

/// What each reason is about, in their order, by a word of it.
#[track_caller]
fn expect_order(r: &Report, words: &[&str]) {
    assert_eq!(r.reasons.len(), words.len(), "{:?}", r.reasons);
    for (reason, word) in r.reasons.iter().zip(words) {
        assert!(reason.contains(word), "{word}: {:?}", r.reasons);
    }
    assert_eq!(r.todo.len(), r.reasons.len());
}

#[test]
fn what_has_happened_comes_after_what_is() {
    let mut r = sample();
    r.daemon.as_mut().unwrap().restarts = Some(1);
    r.scrub.as_mut().unwrap().findings = 70_131;
    let data = r.data.as_mut().unwrap();
    data.used_bytes = data.total_bytes;
    judge(&mut r);
    expect_order(&r, &["70131", "data: 100%", "died"]);
    let about = ["from a backup", "remove files", "a day after the death"];
    for (todo, about) in r.todo.iter().zip(about) {
        assert!(todo.as_ref().unwrap().contains(about), "{:?}", r.todo);
    }
    assert_eq!(r.advice, r.todo[0]);
}

#[test]
fn what_a_repair_has_lost_comes_before_a_mount_that_recovers() {
    let mut r = sample();
    (r.state, r.clean, r.mountpoint) = (State::Unmounted, Some(false), None);
    r.log = logged(
        &["INFO repair: 2 findings; losses: 135 inodes are lost"],
        60,
    );
    judge(&mut r);
    expect_order(&r, &["135 inodes", "not unmounted cleanly"]);
    assert!(r.todo[1].as_ref().unwrap().contains("mount it"));
}

#[test]
fn the_cause_of_a_failure_comes_before_what_it_has_led_to() {
    let mut r = sample();
    (r.has_failed, r.device_missing_bytes) = (true, 824 << 20);
    r.read_only_reason = Some("data device: No space left on device".into());
    (r.device_needs_bytes, r.data_file) = (Some(1 << 30), Some("/srv/my vol".into()));
    judge(&mut r);
    expect_order(&r, &["its last 824 MiB", "No space left"]);
    let todo = r.advice.unwrap();
    assert!(
        todo.contains("`truncate --size 1073741824 '/srv/my vol'`"),
        "{todo}"
    );
    assert!(todo.contains("quayfs scrub"), "{todo}");
}

#[test]
fn what_was_missing_is_read_again() {
    let mut r = sample();
    (r.state, r.clean, r.mountpoint) = (State::Unmounted, Some(true), None);
    for (why, about) in [
        ("one half of a volume", "fsck --data /srv/vol"),
        ("/srv/vol: truncated: 1 bytes", "make it as long again"),
    ] {
        r.unmountable = Some(Obstacle::Media(why.into()));
        judge(&mut r);
        let todo = r.advice.clone().unwrap();
        assert!(todo.contains(about), "{todo}");
    }
}

#[test]
fn a_medium_that_is_write_protected_is_no_failure() {
    let with = |medium: &str, has_failed| {
        let mut r = sample();
        r.has_failed = has_failed;
        r.read_only_reason = Some(format!("{medium} is write-protected (the system said so)"));
        judge(&mut r);
        (r.health, r.advice.unwrap())
    };
    let (health, todo) = with("/dev/loop7", false);
    assert_eq!(health, Health::Degraded);
    assert!(todo.contains("`-o ro`") && todo.contains("`blockdev --setrw /dev/loop7`"));
    let (health, todo) = with("/srv/vol", false);
    assert!(health == Health::Degraded && !todo.contains("blockdev"));
    assert_eq!(with("/dev/loop7", true).0, Health::Failed);
}

#[test]
fn room_below_is_judged_by_what_is_there_now() {
    let below = |free_bytes| {
        let part = "/srv/vol".into();
        let hole_bytes = 300 << 20;
        Some(super::super::below::Below {
            part,
            free_bytes,
            reserve_bytes: 0,
            hole_bytes,
        })
    };
    let mut r = sample();
    r.has_failed = true;
    r.read_only_reason = Some("data device: No space left on device".into());
    for (free, about) in [(0, "is full"), (1 << 30, "there is room again")] {
        r.below = below(free);
        judge(&mut r);
        assert!(r.advice.as_ref().unwrap().contains(about), "{:?}", r.advice);
    }
    let mut r = sample();
    r.below = below(1 << 20);
    r.below.as_mut().unwrap().reserve_bytes = 1 << 20;
    judge(&mut r);
    assert!(r.reasons[0].contains("has 1 MiB free (1 MiB of it for root alone), and"));
    r.below = below(1 << 20);
    judge(&mut r);
    assert_eq!(r.health, Health::Degraded);
    assert!(r.reasons[0].ends_with("has 1 MiB free, and the volume can still need 300 MiB there"));
    (r.state, r.clean, r.mountpoint) = (State::Unmounted, Some(false), None);
    judge(&mut r);
    expect_order(&r, &["1 MiB free", "not unmounted cleanly"]);
    assert!(r.advice.unwrap().contains("before it is mounted"));
}

#[test]
fn a_region_that_is_a_file_can_be_made_larger() {
    let with = |is_file| {
        let mut r = sample();
        let region = r.region.as_mut().unwrap();
        region.metadata_used_bytes = region.metadata_bytes;
        r.is_region_file = is_file;
        judge(&mut r);
        r.advice.unwrap()
    };
    assert!(with(Some(true)).ends_with("`quayfs resize /mnt/q --pmem SIZE`"));
    assert!(with(Some(false)).contains("quayfs mkfs"));
    assert!(with(None).contains("if it is a file"));
}
