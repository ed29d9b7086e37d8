//! What lines of a log mean for the state of a volume.

use super::*;

const LOG: &str = "\
1970-01-01T00:00:01.000000Z  INFO mounted
1970-01-01T00:01:00.5Z ERROR damaged metadata: node 7
not a line of a log
1970-01-01T00:02:00Z  WARN odd
1970-01-01T00:03:00Z  INFO scrub: Finished after 10 bytes, damaged blocks and pages: 0
1970-01-01T01:00:00.999Z ERROR inode 9: bad
";

#[test]
fn errors_and_scrubs_are_found() {
    let mut logged = Logged::default();
    logged.take(LOG, None);
    let line = |time, what: &str| {
        Some(Line {
            time,
            what: what.into(),
        })
    };
    assert_eq!(logged.errors, 2);
    assert_eq!(logged.last_error, line(3600, "inode 9: bad"));
    let scrub = "Finished after 10 bytes, damaged blocks and pages: 0";
    assert_eq!(logged.last_scrub, line(180, scrub));
}

#[test]
fn a_scrub_that_was_stopped_takes_no_damage_back() {
    let after = |scrubs: &[(&str, u64)]| {
        let line =
            |(how, n)| format!("INFO scrub: {how} after 9 bytes, damaged blocks and pages: {n}");
        let lines: Vec<_> = scrubs.iter().copied().map(line).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        Logged::of(&lines).damage.blocks
    };
    assert_eq!(after(&[]), 0);
    assert_eq!(after(&[("Finished", 3), ("Stopped", 0)]), 3);
    assert_eq!(after(&[("Finished", 0), ("Stopped", 2)]), 2);
    assert_eq!(after(&[("Stopped", 2), ("Finished", 0)]), 0);
}

#[test]
fn what_a_scrub_has_mended_counts_until_one_finds_nothing() {
    let mended = |lines: &[&str]| Logged::of(lines).damage.mended;
    let pages = "WARN scrub: 3 pages of the region were damaged on its disk, but whole in memory: they are written again";
    let [finished, stopped] = ["Finished", "Stopped"]
        .map(|how| format!("INFO scrub: {how} after 9 bytes, damaged blocks and pages: 0"));
    assert!(mended(&[pages, &finished]) && mended(&[pages, &finished, &stopped]));
    assert!(!mended(&[pages, &finished, &finished]) && !mended(&[&finished]));
}

#[test]
fn only_what_reads_everything_takes_back_what_was_found_in_blocks() {
    let cut = "ERROR data: cut short: its last 4096 bytes are not there any more";
    let checked = |structure, blocks| format!("INFO {}", Checked { structure, blocks });
    let scrubbed = "INFO scrub: Finished after 9 bytes, damaged blocks and pages: 0";
    let after = |lines: &[&str]| {
        let damage = Logged::of(lines).damage;
        (damage.structure, damage.blocks, damage.cut_short)
    };
    assert_eq!(after(&[cut]), (0, 0, true));
    assert_eq!(after(&[cut, &checked(2, Blocks::Some(0))]), (2, 0, true));
    assert_eq!(after(&[cut, &checked(2, Blocks::All(3))]), (2, 3, false));
    assert_eq!(
        after(&[&checked(2, Blocks::All(3)), &checked(0, Blocks::Some(0))]),
        (0, 3, false)
    );
    assert_eq!(
        after(&[cut, &checked(2, Blocks::All(3)), scrubbed]),
        (2, 0, false)
    );
    assert_eq!(
        after(&["INFO fsck: structure: x, blocks: 1"]),
        (0, 0, false)
    );
}

#[test]
fn a_repair_tells_what_it_has_lost() {
    let repaired = Checked {
        structure: 0,
        blocks: Blocks::Some(7),
    };
    let damage = Logged::of(&[&format!("INFO {repaired}")]).damage;
    assert_eq!((damage.structure, damage.blocks), (0, 7));
    let said = |losses: Option<&str>| {
        let losses = losses.map(str::to_string);
        let line = format!("INFO {}", Repaired { found: 2, losses });
        Logged::of(&[&line]).last_repair.unwrap().what
    };
    assert_eq!(said(None), "2 findings, nothing lost");
    assert_eq!(said(Some("3 inodes")), "2 findings; losses: 3 inodes");
}

#[test]
fn a_repair_that_finds_less_takes_no_losses_back() {
    let lost = |lines: &[&str]| {
        let logged = Logged::of(lines);
        let losses = logged.losses.iter().map(|line| line.what.clone());
        (losses.collect::<Vec<_>>(), logged.begun_repair.is_some())
    };
    let begun = format!("INFO {}", RepairBegins(3));
    let (some, none) = (
        "INFO repair: 2 findings; losses: 3 inodes",
        "INFO repair: 1 finding, nothing lost",
    );
    let told = "2 findings; losses: 3 inodes".to_string();
    assert_eq!(
        lost(&[&begun, some, &begun, none]),
        (vec![told.clone()], false)
    );
    assert_eq!(lost(&[&begun]), (vec![], true));
    let untold = format!("1 finding, nothing lost; losses: {UNTOLD}");
    assert_eq!(
        lost(&[&begun, &begun, none, &begun, none]),
        (vec![untold], false)
    );
    let both = format!("{told}; and {UNTOLD}");
    assert_eq!(lost(&[&begun, &begun, some]), (vec![both], false));
}

#[test]
fn a_repair_that_failed_is_told_until_another_one_or_a_check_ends() {
    let failed = |lines: &[&str]| Logged::of(lines).failed_repair;
    let line = format!("INFO {}", RepairFailed("no room".into()));
    let begun = format!("INFO {}", RepairBegins(3));
    assert_eq!(failed(&[&begun, &line]).as_deref(), Some("no room"));
    assert!(Logged::of(&[&begun, &line]).begun_repair.is_some());
    for later in [
        "INFO repair: 1 finding, nothing lost",
        "INFO fsck: structure: 2, blocks: not read",
        &begun,
    ] {
        assert_eq!(failed(&[&line, later]), None, "{later}");
    }
}

#[test]
fn a_check_takes_back_what_mounts_have_met() {
    let met = |lines: &[&str]| Logged::of(lines).damage.met;
    let damaged = "ERROR damaged metadata: node 7; the mount is read-only from here on";
    let closed =
        "ERROR unmounted, but the volume is not closed: damaged metadata: node 7; 0 blocks";
    let checked = "INFO fsck: structure: 0, blocks: not read";
    assert!(met(&[damaged]) && met(&[checked, closed]));
    assert!(!met(&[damaged, closed, checked]) && !met(&["ERROR data device: gone"]));
}

#[test]
fn what_reads_everything_takes_back_reads_that_have_failed() {
    let reads = |lines: &[&str]| Logged::of(lines).damage.reads;
    let failed = "ERROR inode 7: content of LBN 9 does not match its checksum";
    let checked = |blocks| {
        let structure = 0;
        format!("INFO {}", Checked { structure, blocks })
    };
    let scrubbed = "INFO scrub: Finished after 9 bytes, damaged blocks and pages: 0";
    assert!(reads(&[failed]) && reads(&[failed, &checked(Blocks::Some(0))]));
    assert!(!reads(&[failed, &checked(Blocks::All(0))]) && !reads(&[failed, scrubbed]));
    assert!(reads(&[scrubbed, failed]) && !reads(&["ERROR inode table: odd"]));
}

#[test]
fn the_end_of_a_mount_ends_what_is_said_of_its_daemons() {
    let death = |lines: &[&str]| Logged::of(lines).last_death.map(|line| line.what);
    let died = format!("WARN {LAST_DAEMON}ended by signal 9; no request is lost");
    let replaced = format!("INFO {LAST_DAEMON}replaced on request; no request is lost");
    let other = "WARN the clock was set back";
    let want = Some("ended by signal 9".to_string());
    let mounted = "INFO mounted /v on /m: backend `file`";
    assert_eq!(death(&[mounted, &died, mounted, &replaced, other]), want);
    assert_eq!(death(&[mounted, &died, mounted]), None, "another mount");
    assert_eq!(death(&[&replaced]), None);
    for end in [
        "INFO unmounted, the volume is clean",
        "ERROR unmounted, but the volume is not closed: x",
    ] {
        assert_eq!(death(&[&died, end]), None);
    }
}

#[test]
fn what_is_said_of_another_volume_does_not_count() {
    let bad = "INFO fsck: structure: 2, blocks: 3";
    let of = |lines: &[&str]| Logged::of(lines).damage.structure;
    assert_eq!(of(&["INFO volume u-1, recovered", bad]), 2);
    assert_eq!(of(&["INFO volume u-2, recovered", bad]), 0);
    assert_eq!(
        of(&[bad, "INFO volume u-2", "ERROR x", "INFO volume u-1"]),
        2
    );
    assert_eq!(Logged::of(&["INFO volume u-2", "ERROR x"]).errors, 0);
}

#[test]
fn a_mount_point_that_does_not_do_is_no_error_of_the_volume() {
    let lines = [
        "ERROR cannot mount on /mnt/q: a dead mount is still there",
        "ERROR fusermount3: user has no write access to mountpoint /mnt/q",
    ];
    let logged = Logged::of(&lines);
    assert_eq!((logged.errors, logged.last_error), (0, None));
}

#[test]
fn a_log_that_volumes_share_counts_behind_the_name_of_one() {
    let path = Path::new("/var/log/quayfs-no such volume.log");
    let of = |uuid, text| {
        let mut logged = Logged::read(path, uuid);
        logged.take(text, uuid);
        logged.errors
    };
    let lines = "1970-01-01T00:00:01Z ERROR x\n1970-01-01T00:00:01Z  INFO volume u-1\n1970-01-01T00:00:01Z ERROR y\n";
    assert_eq!(of(Some("u-1"), lines), 1);
    assert_eq!(of(Some("u-2"), lines), 0);
    assert!(is_shared(path) && !is_shared(Path::new("/srv/quayfs-v.log")));
}

#[test]
fn only_a_device_is_cut_short() {
    let of = |line: &str| Logged::of(&[line]).damage.cut_short;
    let said = "cut short: its last 9 bytes are not there any more";
    assert!(of(&format!("ERROR /srv/vol/data: {said}")));
    assert!(of(
        "ERROR /srv/v: truncated: 9 bytes, and has to have 10; make it as long again, what was behind the cut is lost"
    ));
    assert!(!of(&format!("ERROR scrub: /x: {said}")));
    assert!(!of("ERROR inode 7: cut short: its last word"));
}

#[test]
fn a_log_that_leads_elsewhere_or_has_no_end_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quayfs.log");
    std::os::unix::fs::symlink("/proc/kmsg", &path).unwrap();
    assert!(Logged::read(&path, None).unreadable.is_some());
    std::fs::remove_file(&path).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    assert!(Logged::read(&path, None).unreadable.is_some());
}

#[test]
fn the_log_before_counts_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quayfs.log");
    let unread = |path: &Path| Logged::read(path, None).unreadable;
    assert_eq!(unread(&path).as_deref(), Some("there is none"));
    let denied = unreadable(&ErrorKind::PermissionDenied.into());
    assert!(denied.starts_with("only root"), "{denied}");
    std::fs::write(dir.path().join("quayfs.log.old"), LOG).unwrap();
    std::fs::write(&path, "1970-01-02T00:00:00Z ERROR newer\n").unwrap();
    let logged = Logged::read(&path, None);
    assert_eq!((logged.errors, logged.unreadable), (3, None));
    let last = logged.last_error.unwrap();
    assert_eq!((last.time, last.what.as_str()), (86_400, "newer"));
}
