//! Tests of the option parser.

use super::*;
use proptest::prelude::*;

fn parse(list: &str) -> Result<MountOptions, OptionError> {
    MountOptions::parse(&[list])
}

fn refusal(list: &str) -> String {
    let text = parse(list).unwrap_err().to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn nothing_said_is_the_default() {
    assert_eq!(MountOptions::parse(&[]), Ok(MountOptions::default()));
    assert_eq!(parse(",,"), Ok(MountOptions::default()));
    assert_eq!(parse("defaults"), Ok(MountOptions::default()));
    assert_eq!(MountOptions::default().commit_seconds, 5);
}

/// That the list makes another mount than nothing does: the default one with a change.
#[track_caller]
fn makes(list: &str, change: impl FnOnce(&mut MountOptions)) {
    let mut want = MountOptions::default();
    change(&mut want);
    assert_eq!(parse(list), Ok(want.clone()), "{list}");
    assert_ne!(want, MountOptions::default(), "{list}");
    assert_eq!(parse(&want.to_string()), Ok(want), "{list}");
}

#[test]
fn every_option_has_its_effect() {
    makes("ro", |o| o.read_only = true);
    makes("data=ordered", |o| o.data = DataMode::Ordered);
    makes("data=writeback", |o| o.data = DataMode::Writeback);
    makes("durability=op", |o| o.durability = Some(Durability::Op));
    makes("durability=commit", |o| {
        o.durability = Some(Durability::Commit)
    });
    makes("commit=30", |o| o.commit_seconds = 30);
    makes("checkpoint=swap", |o| o.checkpoint = CheckpointPolicy::Swap);
    makes("checkpoint=inplace", |o| {
        o.checkpoint = CheckpointPolicy::InPlace
    });
    makes("writeback", |o| o.writeback_cache = true);
    makes("atomic_writes", |o| o.atomic_writes = true);
    makes("restart", |o| o.restart = Some(Restart::On));
    makes("norestart", |o| o.restart = Some(Restart::Off));
    makes("open=elide", |o| o.open = OpenPolicy::Elide);
    makes("errors=continue", |o| o.on_error = OnError::Continue);
    makes("buffers=3", |o| o.buffers = Some(3));
    makes("idle=poll", |o| o.idle = Idle::Poll);
    makes("memory=1G", |o| o.memory = Some(1 << 30));
    makes("large=64K", |o| o.large = Some(64 << 10));
    makes("read_ahead=128K", |o| o.read_ahead = 128 << 10);
    makes("permissions=owner", |o| o.permissions = Permissions::Owner);
    makes("acl", |o| o.acls = Some(Acls::On));
    makes("noacl", |o| o.acls = Some(Acls::Off));
    makes("threads=8", |o| o.threads = Some(8));
    makes("idmap", |o| o.idmap = true);
    makes("allow_other", |o| o.allow_other = true);
    makes("nosuid", |o| o.nosuid = true);
    makes("nodev", |o| o.nodev = true);
    makes("noexec", |o| o.noexec = true);
    makes("nosymfollow", |o| o.nosymfollow = true);
    makes("sync", |o| {
        o.sync = true;
        o.durability = Some(Durability::Op);
    });
    makes("dirsync", |o| o.durability = Some(Durability::Op));
    makes("noatime", |o| o.atime = AtimePolicy::NoAtime);
    makes("strictatime", |o| o.atime = AtimePolicy::StrictAtime);
    makes("nodiratime", |o| o.nodiratime = true);
    makes("fsname=disk", |o| o.fsname = Some("disk".into()));
    makes("subtype=none", |o| o.subtype = None);
    makes("subtype=q", |o| o.subtype = Some("q".into()));
    makes("remount", |o| o.remount = true);
    makes("ablation=staging:central,ablation=locking:file", |o| {
        o.ablation.central_staging = true;
        o.ablation.file_locking = true;
    });
    makes("data=ordered,ablation=nodelog:ssd", |o| {
        o.data = DataMode::Ordered;
        o.ablation.node_log_on_device = true;
    });
    makes(
        "ablation=checkpoint:inplace,ablation=workers:1,ablation=messages:all",
        |o| {
            o.ablation.checkpoint = Some(CheckpointPolicy::InPlace);
            o.ablation.one_worker = true;
            o.ablation.all_messages = true;
        },
    );
}

#[test]
fn quotas_of_users_and_groups_are_asked_for_together() {
    makes("noquota", |o| o.quota = Some(Quota::Off));
    for on in [
        "quota",
        "usrquota",
        "grpquota",
        "uquota",
        "gquota",
        "usrquota,grpquota",
    ] {
        makes(on, |o| o.quota = Some(Quota::On));
    }
}

#[test]
fn defaults_can_be_said() {
    for list in [
        "rw,data=journal,commit=5,checkpoint=adaptive,writethrough,open=answer",
        "errors=remount-ro,transport=auto,relatime,suid,dev,exec,atime,subtype=quayfs",
        "_netdev,noauto,nofail,user,x-systemd.automount,X-mount.mkdir,comment=hello,async",
        "default_permissions,diratime,uhelper=udisks2,user=joe",
        "nodiscard,barrier,barrier=1,user_xattr,prjquota,nosymfollow,symfollow",
    ] {
        assert_eq!(parse(list), Ok(MountOptions::default()), "{list}");
    }
}

/// What fstab has for other file systems is accepted, or refused with the reason.
#[test]
fn words_of_other_file_systems_are_understood() {
    for word in ACCEPTED {
        assert_eq!(parse(word), Ok(MountOptions::default()), "{word}");
        assert!(!REFUSED.iter().any(|(w, _)| *w == word), "{word}");
    }
    for (word, why) in REFUSED {
        for said in [word.to_string(), format!("{word}=1")] {
            if word.contains('=') && said != word {
                continue;
            }
            let text = refusal(&said);
            let want = format!("mount option `{word}` cannot be honoured: {why}");
            assert_eq!(text, want, "{said}");
        }
    }
    assert!(parse("barrier=0").is_err());
}

#[test]
fn the_last_flag_of_the_kernel_wins() {
    assert!(parse("rw,ro").unwrap().read_only);
    assert!(!MountOptions::parse(&["ro", "rw"]).unwrap().read_only);
    assert!(!parse("nosuid,nodev,noexec,suid").unwrap().nosuid);
    assert_eq!(
        parse("noatime,relatime").unwrap().atime,
        AtimePolicy::Relatime
    );
}

#[test]
fn contradictions_are_refused() {
    for list in [
        "data=journal,data=ordered",
        "usrquota,noquota",
        "data=ordered,durability=op",
        "data=writeback,durability=op",
        "durability=op,durability=commit",
        "sync,durability=commit",
        "data=ordered,dirsync",
        "writeback,writethrough",
        "writeback,atomic_writes",
        "restart,norestart",
        "transport=uring,restart",
        "atomic_writes,open=elide",
        "ablation=nodelog:ssd",
        "ablation=nodelog:ssd,durability=op",
        "open=answer,open=elide",
        "commit=5,commit=6",
        "checkpoint=swap,ablation=checkpoint:inplace",
        "ablation=checkpoint:swap,ablation=checkpoint:inplace",
        "fsname=a,fsname=b",
        "acl,noacl",
        "permissions=owner,acl",
        "permissions=owner,idmap",
        "strictatime,open=elide",
        "norecovery",
        "ro,noload,rw",
    ] {
        let text = refusal(list);
        assert!(text.contains("contradict each other"), "{list}: {text}");
    }
    assert!(parse("ro,norecovery").unwrap().read_only);
    assert!(parse("noload,ro").unwrap().read_only);
    assert!(parse("commit=7,commit=7").is_ok());
    assert!(parse("checkpoint=swap,ablation=checkpoint:swap").is_ok());
}

#[test]
fn unknown_options_and_values_are_named() {
    for (list, names) in [
        ("turbo", "turbo"),
        ("turbo=1", "turbo=1"),
        ("data=fast", "journal or ordered or writeback"),
        ("data", "data=VALUE"),
        ("durability=maybe", "op or commit"),
        ("commit=0", "from 1 to 300"),
        ("commit=-1", "from 1 to 300"),
        ("commit=soon", "from 1 to 300"),
        ("buffers=17", "from 1 to 16"),
        ("read_ahead=far", "a size up to 1 GiB"),
        ("large=big", "a size up to 1 GiB"),
        ("memory=1M", "a size from 32 MiB to 1 PiB"),
        ("read_ahead=2G", "a size up to 1 GiB"),
        ("threads=0", "from 1 to 256"),
        ("open=later", "answer or elide"),
        ("errors=panic", "remount-ro or continue"),
        ("transport=pigeon", "auto or dev or uring"),
        ("ablation=all:off", "staging:central"),
        ("ablation=staging", "staging:central"),
        ("ablation=checkpoint:adaptive", "checkpoint:swap"),
        ("fsname=", "not empty"),
        ("subtype=a\x1bb", "without control"),
        ("writeback=1", "writeback=1"),
        ("user_id=0", "user_id=0"),
        ("allow_root", "allow_other"),
    ] {
        let text = refusal(list);
        assert!(text.contains(names), "{list}: {text}");
    }
}

#[test]
fn a_remount_may_repeat_the_mount_table() {
    let o = parse("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro");
    let o = o.unwrap();
    assert!(o.remount && o.read_only && o.allow_other);
}

#[test]
fn durability_follows_backend_and_data_mode() {
    let of = |list: &str, backend| parse(list).unwrap().durability_for(backend);
    assert_eq!(of("", Durability::Op), Durability::Op);
    assert_eq!(of("", Durability::Commit), Durability::Commit);
    assert_eq!(of("durability=op", Durability::Commit), Durability::Op);
    assert_eq!(of("durability=commit", Durability::Op), Durability::Commit);
    assert_eq!(of("data=ordered", Durability::Op), Durability::Commit);
    assert_eq!(of("data=writeback", Durability::Op), Durability::Commit);
}

#[test]
fn an_ablation_beats_the_checkpoint_option() {
    let of = |list: &str| parse(list).unwrap().checkpoint_policy();
    assert_eq!(of(""), CheckpointPolicy::Adaptive);
    assert_eq!(of("checkpoint=swap"), CheckpointPolicy::Swap);
    assert_eq!(of("ablation=checkpoint:inplace"), CheckpointPolicy::InPlace);
    assert_eq!(of("checkpoint=double"), CheckpointPolicy::Double);
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z_:=,.]{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn what_parses_prints_and_parses(words in prop::collection::vec(prop::sample::select(&[
        "ro", "rw", "data=ordered", "durability=commit", "writeback", "open=elide", "noatime",
        "errors=continue", "commit=9", "buffers=2", "threads=3", "nosuid", "nodev", "noexec",
        "transport=dev", "restart", "idle=halt", "read_ahead=0", "large=0", "memory=64M", "permissions=kernel", "noacl", "idmap", "allow_other", "ablation=staging:central", "ablation=checkpoint:double", "subtype=none",
        "ablation=locking:file", "ablation=workers:1", "fsname=/dev/x", "nodiratime", "nosymfollow",
    ][..]), 0..8)) {
        let o = parse(&words.join(",")).unwrap();
        prop_assert_eq!(parse(&o.to_string()).unwrap(), o);
    }
}
