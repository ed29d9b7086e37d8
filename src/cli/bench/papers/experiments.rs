//! What is measured: the five papers' mechanisms, each on and off.
//!
//! A cell is a workload with a number of threads on several *variants* of a mount, of which one does
//! without what another has. A comparison is the ratio of two of them in the same repetition; above 1
//! the first is better.

use super::table::{
    Comparison, Experiment, PLAIN, Place, Row, Variant, Writes, device_bytes, fsync_latency,
    larger, on_disk, on_pmem, rate,
};
use super::together;

/// Threads of the experiments about locks.
const SCALING: &[u32] = &[1, 2, 4, 8, 16];

/// What paper 1 compares with: the journal put on NVM as it is, and written back block by block. All of the
/// staging area is in its one buffer, so that the variants can stage equally much.
const CENTRAL: Variant = Variant {
    buffers: Some(1),
    ..on_pmem(
        "central",
        "ablation=staging:central,ablation=workers:1,checkpoint=inplace",
    )
};

/// The most that could be gained over anything: nothing is done.
const NOTHING: Variant = Variant {
    place: Place::Nowhere,
    ..on_pmem("nothing", "")
};

/// Whether anybody waits for what is written out: that costs nothing, and what is read costs what it does otherwise.
const FREE_WRITES: Variant = Variant {
    writes: Writes::Free,
    ..on_pmem("free writes", "checkpoint=inplace")
};

/// What longer writes could gain: each block is written once, long runs next to the ones written before wherever they
/// belong, short ones in their places, and files are read as if they had been written in place.
const LONG_WRITES: Variant = Variant {
    writes: Writes::Long,
    ..on_pmem("long writes", "checkpoint=inplace")
};

const STAGING_VARIANTS: &[Variant] = &[
    on_pmem("sharded", ""),
    CENTRAL,
    on_disk("disk", ""),
    FREE_WRITES,
    NOTHING,
];

const VARMAIL_STAGING: Row = Row {
    workload: "varmail",
    threads: SCALING,
    variants: STAGING_VARIANTS,
    comparisons: &[
        rate("sharded", "central", Some("5.09")),
        rate("sharded", "disk", Some("5.72")),
        rate("free writes", "central", None),
        rate("nothing", "central", None),
    ],
    ..PLAIN
};

const TOKUBENCH_STAGING: Row = Row {
    workload: "tokubench",
    threads: SCALING,
    // A run of as many as the workload says is over in half a second; for twice as many as these there are
    // no node pages.
    files: Some(100_000),
    // Nobody reads.
    page_cache: false,
    variants: STAGING_VARIANTS,
    comparisons: &[
        rate("sharded", "central", Some("4.9")),
        rate("sharded", "disk", None),
        rate("free writes", "central", None),
        rate("nothing", "central", None),
    ],
    ..PLAIN
};

const STAGING: Experiment = Experiment {
    name: "staging",
    mechanism: "staging buffers with lock-free slots and parallel checkpoint",
    paper: "Varmail 5.09x over the same journal on NVM unsharded, 5.72x over the journal on the SSD; Tokubench \
            4.9x; 16 threads",
    rows: &[
        Row {
            options: "durability=op",
            // Where each operation is to be durable a disk compares with nothing in the paper.
            comparisons: &[
                rate("sharded", "central", Some("5.09")),
                rate("sharded", "disk", None),
                rate("free writes", "central", None),
                rate("nothing", "central", None),
            ],
            ..VARMAIL_STAGING
        },
        Row {
            options: "durability=commit",
            ..VARMAIL_STAGING
        },
        Row {
            options: "durability=op",
            ..TOKUBENCH_STAGING
        },
        Row {
            options: "durability=commit",
            ..TOKUBENCH_STAGING
        },
    ],
    recovery: false,
};

const CHECKPOINTS: &[Variant] = &[
    on_pmem("double", "checkpoint=double"),
    on_pmem("inplace", "checkpoint=inplace"),
    on_pmem("swap", "checkpoint=swap"),
    on_pmem("adaptive", "checkpoint=adaptive"),
];

/// The region holds everything that a run writes: there is no round, and what was written is read from there.
const NO_ROUNDS: Variant = Variant {
    times: 64,
    ..on_pmem("no rounds", "")
};

const CHECKPOINTS_AND_BOUNDS: &[Variant] = &[
    CHECKPOINTS[0],
    CHECKPOINTS[1],
    CHECKPOINTS[2],
    CHECKPOINTS[3],
    LONG_WRITES,
    FREE_WRITES,
    NO_ROUNDS,
];

const CHECKPOINT_RATES: &[Comparison] = &[
    rate("swap", "double", Some("1.46 to 1.61")),
    rate("adaptive", "double", Some("1.46 to 1.61")),
    rate("swap", "inplace", None),
    rate("adaptive", "inplace", None),
    rate("long writes", "double", None),
    rate("free writes", "double", None),
    rate("no rounds", "double", None),
    device_bytes("swap", "double"),
];

const PPT_ROW: Row = Row {
    options: "data=journal,durability=op",
    variants: CHECKPOINTS_AND_BOUNDS,
    comparisons: CHECKPOINT_RATES,
    ..PLAIN
};

const PPT: Experiment = Experiment {
    name: "ppt",
    mechanism: "a persistent page table: checkpoint swaps blocks instead of writing them twice",
    paper: "+46 to +61 % with data=journal, +2 to +54 % with data=ordered (Fileserver, Varmail, Webproxy)",
    rows: &[
        Row {
            workload: "fileserver",
            threads: &[16],
            files: Some(1000),
            ..PPT_ROW
        },
        Row {
            workload: "varmail",
            threads: &[16],
            ..PPT_ROW
        },
        Row {
            workload: "webproxy",
            threads: &[16],
            files: Some(4000),
            ..PPT_ROW
        },
        // What swap costs: the order of blocks on the device.
        Row {
            workload: "seq-read-scattered",
            file_bytes: Some(256 << 20),
            page_cache: false,
            variants: CHECKPOINTS,
            comparisons: &[
                rate("swap", "inplace", None),
                rate("adaptive", "inplace", None),
            ],
            ..PPT_ROW
        },
    ],
    recovery: false,
};

const POSTMARK: Row = Row {
    workload: "postmark",
    ..PLAIN
};

const TRANSCM: Experiment = Experiment {
    name: "transcm",
    mechanism: "a transactional write buffer cache in NVM: data=journal|ordered|writeback, commit interval",
    paper: "PostMark faster than ext3 with metadata only; a commit interval of 1 s instead of 5 s costs about \
            20 %; recovery in 0.217 s whatever is staged (ext3: 49.9 s)",
    rows: &[
        Row {
            options: "durability=commit",
            variants: &[
                on_pmem("journal", "data=journal"),
                on_pmem("ordered", "data=ordered"),
                on_pmem("writeback", "data=writeback"),
                on_disk("writeback on disk", "data=writeback"),
            ],
            comparisons: &[
                rate("journal", "writeback on disk", Some("above 1")),
                rate("journal", "ordered", None),
                rate("journal", "writeback", None),
                device_bytes("journal", "ordered"),
            ],
            ..POSTMARK
        },
        Row {
            options: "durability=commit",
            variants: &[on_pmem("5 s", "commit=5"), on_pmem("1 s", "commit=1")],
            comparisons: &[rate("1 s", "5 s", Some("0.8"))],
            // Some commits of the longer interval.
            least_seconds: 12.0,
            ..POSTMARK
        },
        Row {
            options: "durability=commit",
            variants: &[larger("1x", 1), larger("2x", 2), larger("4x", 4)],
            comparisons: &[
                rate("2x", "1x", None),
                rate("4x", "1x", None),
                device_bytes("4x", "1x"),
            ],
            ..POSTMARK
        },
    ],
    recovery: true,
};

/// As with `O_DIRECT`, which passes the page cache and the kernel's lock of a file.
const RANGELOCK_ROW: Row = Row {
    threads: SCALING,
    options: "durability=op",
    page_cache: false,
    variants: &[
        on_pmem("range", ""),
        on_pmem("file", "ablation=locking:file"),
    ],
    ..PLAIN
};

const RANGELOCK: Experiment = Experiment {
    name: "rangelock",
    mechanism: "a lock of ranges of a file instead of the whole file",
    paper: "FxMark DWOM up to +170 %, DWOL unchanged",
    rows: &[
        Row {
            workload: "DWOM",
            comparisons: &[rate("range", "file", Some("up to 2.7"))],
            ..RANGELOCK_ROW
        },
        Row {
            workload: "DWOL",
            comparisons: &[rate("range", "file", Some("1.0"))],
            ..RANGELOCK_ROW
        },
        // Through a mount the kernel lets writers of one file go side by side only with O_DIRECT.
        Row {
            workload: "direct-write",
            comparisons: &[rate("range", "file", None)],
            ..RANGELOCK_ROW
        },
    ],
    recovery: false,
};

/// The node log in pmem, on the data device as well with the same region, and all of the region on the disk;
/// and what is left if nodes cost nothing at all. Nobody reads.
const NODELOG_ROW: Row = Row {
    page_cache: false,
    options: "data=ordered,durability=commit",
    threads: &[1, 4],
    variants: &[
        on_pmem("pmem", ""),
        on_pmem("ssd", "ablation=nodelog:ssd"),
        on_disk("disk", ""),
        Variant {
            place: Place::DataAlone,
            ..on_pmem("data alone", "")
        },
    ],
    ..PLAIN
};

const NODELOG: Experiment = Experiment {
    name: "nodelog",
    mechanism: "node log and node address table in NVM, data on the SSD",
    paper: "fsync latency -85 % (596.8 to 88.2 ms), DWSL 1.7x; 15 cores",
    rows: &[
        Row {
            workload: "create-fsync",
            comparisons: &[
                fsync_latency("pmem", "ssd", Some("6.77")),
                rate("pmem", "ssd", None),
                fsync_latency("pmem", "disk", None),
                rate("pmem", "disk", None),
                fsync_latency("data alone", "ssd", None),
                rate("data alone", "ssd", None),
            ],
            ..NODELOG_ROW
        },
        Row {
            workload: "append-fsync",
            comparisons: &[
                fsync_latency("pmem", "ssd", Some("6.77")),
                rate("pmem", "ssd", None),
                fsync_latency("pmem", "disk", None),
                rate("pmem", "disk", None),
                fsync_latency("data alone", "ssd", None),
                rate("data alone", "ssd", None),
            ],
            ..NODELOG_ROW
        },
        Row {
            workload: "DWSL",
            comparisons: &[
                fsync_latency("pmem", "ssd", None),
                rate("pmem", "ssd", Some("1.7")),
                fsync_latency("pmem", "disk", None),
                rate("pmem", "disk", None),
                fsync_latency("data alone", "ssd", None),
                rate("data alone", "ssd", None),
            ],
            ..NODELOG_ROW
        },
    ],
    recovery: false,
};

const TOGETHER: Experiment = Experiment {
    name: "together",
    mechanism: "all five at once",
    paper: "none has the others",
    rows: together::ROWS,
    recovery: false,
};

/// All of them, in the order of the papers, and then all at once.
pub const ALL: &[Experiment] = &[STAGING, PPT, TRANSCM, RANGELOCK, NODELOG, TOGETHER];

#[cfg(test)]
mod tests {
    use super::super::table::Figure;
    use super::*;
    use crate::config::MountOptions;
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
}
