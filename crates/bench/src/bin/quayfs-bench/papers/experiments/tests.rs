//! The table of experiments is what it says.

use quayfs_options::MountOptions;

use super::super::table::Figure;
use super::*;
use quayfs_bench::workload;

#[test]
fn the_table_is_consistent() {
    for e in ALL {
        assert!(!e.rows.is_empty(), "{}", e.name);
        for row in e.rows {
            let name = row.workload;
            let found = workload::select(&[name.into()]).unwrap();
            assert_eq!(found.len(), 1, "{name}");
            let info = found[0].info();
            info.check_library().unwrap();
            assert!(row.files.is_none() || info.files > 0, "{name}");
            assert!(row.file_bytes.is_none() || info.file_bytes > 0, "{name}");
            assert!(
                row.variants.len() > 1 && !row.comparisons.is_empty(),
                "{name}"
            );
            for v in row.variants {
                if !v.is_volume() {
                    assert!(row.on_loops || v.options.is_empty(), "{name}: {}", v.name);
                    continue;
                }
                let options = [row.options, v.options]
                    .into_iter()
                    .filter(|o| !o.is_empty());
                let options: Vec<_> = options.collect();
                MountOptions::parse(&options).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(v.times > 0);
                let same = row.variants.iter().filter(|w| w.name == v.name);
                assert_eq!(same.count(), 1, "{name}: {}", v.name);
            }
            for c in row.comparisons {
                for side in [c.of, c.to] {
                    assert!(
                        row.variants.iter().any(|v| v.name == side),
                        "{name}: {side}"
                    );
                }
                if let Figure::Latency(step) = c.figure {
                    assert!(info.steps.contains(&step), "{name}: {step}");
                }
            }
        }
    }
}

/// A comparison is of one mechanism. The few that are of several say so by their variant's name.
#[test]
fn a_comparison_changes_one_thing() {
    let mut several = Vec::new();
    for e in ALL.iter().filter(|e| e.name != "together") {
        for row in e.rows {
            let side = |name| row.variants.iter().find(|v| v.name == name).unwrap();
            for c in row.comparisons {
                let what = side(c.of).differences(side(c.to), row);
                assert!(!what.is_empty(), "{}: {} : {}", e.name, c.of, c.to);
                if what.len() > 1 {
                    several.push((c.of, c.to, what));
                }
            }
        }
    }
    several.sort_unstable();
    several.dedup();
    let unsharded = vec!["staging", "checkpoint policy", "checkpoint workers"];
    let on_disk = vec!["data mode", "place of the region"];
    assert_eq!(
        several,
        [
            ("journal", DIRECT_WRITEBACK, on_disk),
            ("sharded", UNSHARDED.name, unsharded)
        ]
    );
}

/// `central` differs from the default in staging alone: it has as many slots, and as large a log.
#[test]
fn one_buffer_has_the_room_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = |buffers| {
        let options = quayfs_mkfs::MkfsOptions {
            pmem_size: Some(96 << 20),
            data_size: Some(2 << 30),
            sparse: true,
            force: true,
            buffers,
            ..Default::default()
        };
        let made = quayfs_mkfs::mkfs(&dir.path().join("vol"), &options).unwrap();
        let g = made.geometry;
        (
            g.buffers,
            g.slots_per_buffer * g.buffers,
            g.lane_bytes * g.buffers,
        )
    };
    let (some, slots, log) = sizes(None);
    let (one, slots_of_one, log_of_one) = sizes(CENTRAL.buffers);
    assert!(some > 1 && one == 1);
    // Sizes are rounded for each buffer.
    assert!(
        slots.abs_diff(slots_of_one) <= 64 * some,
        "{slots} {slots_of_one}"
    );
    assert!(
        log.abs_diff(log_of_one) <= 4096 * some,
        "{log} {log_of_one}"
    );
}

#[test]
fn each_paper_says_on_what_it_was_measured() {
    for e in ALL.iter().filter(|e| e.name != "together") {
        assert!(
            e.machine.contains("GB") || e.machine.contains("MB"),
            "{}",
            e.name
        );
    }
}

#[test]
fn nodes_alone_move_in_the_papers_comparison() {
    for row in NODELOG.rows {
        let paper = row.comparisons.iter().find(|c| c.paper.is_some()).unwrap();
        let side = |name| row.variants.iter().find(|v| v.name == name).unwrap();
        let (of, to) = (side(paper.of), side(paper.to));
        assert_eq!((of.place, to.place), (Place::Pmem, Place::Pmem));
        assert_eq!((of.options, to.options), ("", "ablation=nodelog:ssd"));
    }
}

#[test]
fn names_are_those_of_the_papers() {
    let names: Vec<_> = ALL.iter().map(|e| e.name).collect();
    let papers = ["staging", "ppt", "transcm", "rangelock", "nodelog"];
    assert_eq!(names, [&papers[..], &["together"]].concat());
}
