use super::super::facts::Namespace;
use super::super::text;
use super::*;

/// A machine where everything is as it should be.
fn good() -> Facts {
    Facts {
        fusermount: Some(("/usr/bin/fusermount3".into(), true)),
        has_mtab: true,
        kernel: (6, 14),
        rings: Some(true),
        sees_modules: true,
        uring_disabled: Some(0),
        cpu: vec!["clwb".into()],
        disks: vec![Disk {
            name: "nvme0n1".into(),
            bytes: 1 << 40,
            volatile_cache: Some(true),
            ..Disk::default()
        }],
        memory: 16 << 30,
        ..Facts::default()
    }
}

fn worst(f: &Facts) -> Grade {
    all(f).iter().map(|f| f.grade).max().unwrap()
}

#[test]
fn a_good_machine_is_told_so() {
    assert_eq!(worst(&good()), Grade::Ok, "{}", text(&all(&good())));
}

/// A change, how bad it is, and a word of what is said.
type Case = (fn(&mut Facts), Grade, &'static str);

#[test]
fn each_lack_has_its_weight_and_a_way_out() {
    let cases: [Case; 17] = [
        (
            |f| f.fuse = Some("no such file".into()),
            Grade::Problem,
            "modprobe",
        ),
        (|f| f.fusermount = None, Grade::Problem, "package fuse3"),
        (
            |f| f.fusermount.as_mut().unwrap().1 = false,
            Grade::Problem,
            "u+s",
        ),
        (|f| f.has_mtab = false, Grade::Note, "/etc/mtab"),
        (|f| f.kernel = (6, 8), Grade::Note, "restart"),
        (|f| f.kernel = (5, 5), Grade::Problem, "5.6"),
        (|f| f.rings = Some(false), Grade::Note, "enable_uring"),
        (|f| f.rings = None, Grade::Note, "not built into"),
        (
            |f| (f.rings, f.sees_modules) = (None, false),
            Grade::Ok,
            "no /sys/module",
        ),
        (
            |f| f.uring_disabled = Some(2),
            Grade::Note,
            "io_uring_disabled=0",
        ),
        (
            |f| f.disks[0].overridden = true,
            Grade::Problem,
            "do not reach",
        ),
        (|f| f.disks[0].virtual_disk = true, Grade::Note, "host"),
        (|f| f.disks[0].volatile_cache = None, Grade::Note, "vendor"),
        (
            |f| f.unsafe_mounts = vec!["/".into()],
            Grade::Problem,
            "barriers",
        ),
        (|f| f.nofile = Some(1024), Grade::Note, "nofile"),
        (|f| f.memory = 256 << 20, Grade::Note, "memory=32M"),
        (
            |f| f.domains = vec!["none".into()],
            Grade::Problem,
            "guarantee",
        ),
    ];
    check(cases);
}

#[test]
fn a_place_is_judged_by_what_it_is() {
    let cases: [Case; 3] = [
        (
            |f| {
                f.namespaces = vec![Namespace {
                    name: "namespace0.0".into(),
                    mode: "raw".into(),
                    bytes: 1,
                }];
            },
            Grade::Note,
            "ndctl",
        ),
        (
            |f| {
                f.target = Some(Target {
                    path: "/x".into(),
                    what: What::Unusable("gone".into()),
                });
            },
            Grade::Problem,
            "/x: gone",
        ),
        (
            |f| {
                f.target = Some(Target {
                    path: "/dev/shm".into(),
                    what: What::Directory {
                        free: 1 << 30,
                        kind: "memory",
                    },
                });
            },
            Grade::Note,
            "lost with the machine",
        ),
    ];
    check(cases);
}

fn check(cases: impl IntoIterator<Item = Case>) {
    for (change, grade, about) in cases {
        let mut f = good();
        change(&mut f);
        let said = text(&all(&f));
        assert_eq!(worst(&f), grade, "{about}\n{said}");
        assert!(said.contains(about), "{about}\n{said}");
    }
}

#[test]
fn whatever_is_wrong_comes_with_what_to_do() {
    let f = Facts {
        fuse: Some("x".into()),
        ..Facts::default()
    };
    let findings = all(&f);
    assert!(findings.len() > 5);
    for f in findings {
        assert_eq!(f.todo.is_some(), f.grade > Grade::Ok, "{f:?}");
    }
}

#[test]
fn persistent_memory_makes_calls_durable() {
    let said = |f: &Facts| durability(f).unwrap().what;
    let mut f = good();
    assert!(said(&f).contains("on a disk"));
    f.dax_mounts = vec!["/mnt/pmem0".into()];
    assert!(said(&f).contains("each call"));
    f.domains = vec!["none".into()];
    assert!(said(&f).contains("not to be trusted"));
    f.target = Some(Target {
        path: "/dev/shm".into(),
        what: What::Directory {
            free: 1,
            kind: "memory",
        },
    });
    assert!(said(&f).contains("lost"));
}

#[test]
fn the_durability_of_what_is_not_there_is_not_told() {
    let mut f = good();
    f.target = Some(Target {
        path: "/srv/nope".into(),
        what: What::Unusable("No such file or directory".into()),
    });
    let said = text(&all(&f));
    assert!(
        said.contains("/srv/nope: No such file") && !said.contains("durability"),
        "{said}"
    );
}

#[test]
fn rings_come_with_their_price() {
    let mut f = good();
    f.rings = Some(false);
    let said = text(&all(&f));
    assert!(
        said.contains("with it a mount ends when its daemon dies"),
        "{said}"
    );
}

#[test]
fn sizes_are_those_of_mkfs() {
    let target = Target {
        path: "/dev/x".into(),
        what: What::Device {
            bytes: 64 << 30,
            on_disk: true,
            holds: None,
        },
    };
    let mut out = Vec::new();
    place(&target, &mut out);
    let region = format_size(region_len(64 << 30));
    assert!(out[0].what.contains(&format!("a region of {region} on it")));
}

#[test]
fn no_device_is_praised_that_holds_something() {
    let (bytes, on_disk) = (64 << 30, true);
    let holds = Some("ext4");
    for (what, grade, about) in [
        (
            What::Device {
                bytes,
                on_disk,
                holds,
            },
            Grade::Note,
            "ext4 data on it",
        ),
        (
            What::Taken("mounted on /mnt".into()),
            Grade::Problem,
            "mounted on /mnt",
        ),
    ] {
        let path = "/dev/x".into();
        let mut out = Vec::new();
        place(&Target { path, what }, &mut out);
        assert_eq!(out[0].grade, grade);
        assert!(out[0].what.contains(about), "{:?}", out[0]);
    }
}
