//! The list of workloads and what is written about them.

use crate::support::ops;
use quayfs_bench::meter::Meter;
use quayfs_bench::workload::{Flow, Params, Place, Wishes, all, select};
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

#[test]
fn names_are_unique_and_stand_for_one_thing() {
    let mut seen = HashSet::new();
    for w in all() {
        let info = w.info();
        assert!(seen.insert(info.name.to_lowercase()), "{}", info.name);
        assert!(
            !info.about.is_empty() && info.about.len() <= 130,
            "{}",
            info.name
        );
        assert_eq!(select(&[info.name.into()]).unwrap().len(), 1);
    }
    // A family's name means the family.
    for w in all() {
        assert!(!seen.contains(w.info().family), "{}", w.info().family);
    }
}

#[test]
fn families_and_all_can_be_chosen() {
    let names = |words: &[&str]| -> Vec<&str> {
        let words: Vec<String> = words.iter().map(|w| (*w).into()).collect();
        let chosen = select(&words).unwrap();
        chosen.iter().map(|w| w.info().name).collect()
    };
    assert_eq!(names(&["names"]), ["stat", "stat-missing"]);
    assert_eq!(names(&["dwsl", "stat"]), ["DWSL", "stat"]);
    // Nothing twice.
    assert_eq!(names(&["stat", "names"]), ["stat", "stat-missing"]);
    assert_eq!(names(&["all"]).len(), all().len());
    let e = select(&["stat".into(), "nope".into()]).err().unwrap();
    assert!(e.to_string().contains("`nope`"), "{e}");
}

#[test]
fn the_documentation_names_every_workload() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks.md");
    let text = std::fs::read_to_string(path).unwrap();
    for w in all() {
        let name = w.info().name;
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
    for name in ["sqlite-wal", "sqlite-delete"] {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn nothing_is_allocated_in_the_measured_loop() {
    let one = allocation_counter::measure(|| drop(std::hint::black_box(vec![1_u8; 10])));
    assert_eq!(one.count_total, 1, "allocations are counted");
    for w in all() {
        let info = w.info();
        // Allocates between listings, which is not measured; SQLite allocates for itself.
        if info.name == "ls-cold" || info.family == "sqlite" {
            continue;
        }
        let wishes = Wishes {
            files: Some(500),
            ..ops(1)
        };
        let params = Params::new(info, &wishes).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let place = Place::new(&params, dir.path(), &stop).unwrap();
        let job = w.prepare(&place).unwrap();
        let mut worker = job.worker(&place, 0).unwrap();
        let mut meter = Meter::new(info.steps.len());
        let counted = allocation_counter::measure(|| {
            for _ in 0..40 {
                if worker.go(&mut meter).unwrap() == Flow::Done {
                    break;
                }
            }
        });
        assert!(meter.ops() > 0, "{}", info.name);
        assert_eq!(counted.count_total, 0, "{}: {counted:?}", info.name);
    }
}

#[test]
fn wishes_count_only_where_they_mean_something() {
    let wishes = Wishes {
        threads: Some(3),
        seconds: Some(2.0),
        warmup: Some(0.5),
        file_bytes: Some(2 << 20),
        files: Some(9),
        seed: Some(4),
        ops: Some(5),
    };
    let of = |name: &str| {
        let w = select(&[name.into()]).unwrap().remove(0);
        Params::new(w.info(), &wishes).unwrap()
    };
    let p = of("overwrite");
    assert_eq!((p.threads, p.seconds, p.warmup), (3, 2.0, 0.5));
    assert_eq!(
        (p.file_bytes, p.files, p.seed, p.ops),
        (2 << 20, 0, 4, Some(5))
    );
    let p = of("tokubench");
    assert_eq!((p.file_bytes, p.files), (0, 9));
    // Fixed work has no time.
    assert_eq!((p.seconds, p.warmup, p.duration()), (0.0, 0.0, None));
    for w in all() {
        Params::new(w.info(), &Wishes::default()).unwrap();
        for bad in [
            Wishes {
                threads: Some(0),
                ..Wishes::default()
            },
            Wishes {
                seconds: Some(0.0),
                ..Wishes::default()
            },
            Wishes {
                warmup: Some(f64::NAN),
                ..Wishes::default()
            },
            Wishes {
                ops: Some(0),
                ..Wishes::default()
            },
        ] {
            Params::new(w.info(), &bad).unwrap_err();
        }
    }
}
