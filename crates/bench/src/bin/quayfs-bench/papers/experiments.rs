//! What is measured: the five papers' mechanisms, each on and off.
//!
//! A cell is a workload with a number of threads on several *variants* of a mount, of which one does
//! without what another has. A comparison is the ratio of two of them in the same repetition; above 1
//! the first is better.

use super::kernel::JournalOn;
use super::table::{
    Comparison, Experiment, PLAIN, Place, Row, Variant, Writes, device_bytes, ext4, fsync_latency,
    larger, on_disk, on_pmem, rate,
};
use super::together;

/// Threads of the experiments about locks.
const SCALING: &[u32] = &[1, 2, 4, 8, 16];

/// One staging buffer under one lock, and nothing else: it has all of the staging area and of the log, so that
/// the variants can stage equally much.
const CENTRAL: Variant = Variant {
    buffers: Some(1),
    ..on_pmem("central", "ablation=staging:central")
};

/// What paper 1 compares with: the journal put on NVM as it is, and written back block by block by one thread.
/// Three mechanisms are off at once, and its name says so.
const UNSHARDED: Variant = Variant {
    buffers: Some(1),
    ..on_pmem(
        "central with one worker in place",
        "ablation=staging:central,ablation=workers:1,checkpoint=inplace",
    )
};

/// What the workload itself takes: nothing is done. As all references it varies as much as what it stands beside.
const NOTHING: Variant = Variant {
    place: Place::Nowhere,
    ..on_pmem("nothing", "")
};

/// Whether any thread waits for what is written out: writing costs nothing, and reading costs what it does otherwise.
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
    on_pmem("one worker", "ablation=workers:1"),
    on_pmem("in place", "checkpoint=inplace"),
    UNSHARDED,
    on_disk("disk", ""),
    FREE_WRITES,
    NOTHING,
];

const SHARDED: [Comparison; 3] = [
    rate("sharded", "central", None),
    rate("sharded", "one worker", None),
    rate("sharded", "in place", None),
];

const STAGING_REFERENCES: [Comparison; 2] = [
    rate("free writes", "in place", None),
    rate("nothing", "sharded", None),
];

const VARMAIL_STAGING: Row = Row {
    workload: "varmail",
    threads: SCALING,
    variants: STAGING_VARIANTS,
    comparisons: &[
        SHARDED[0],
        SHARDED[1],
        SHARDED[2],
        rate("sharded", UNSHARDED.name, Some("5.09")),
        rate("sharded", "disk", Some("5.72")),
        STAGING_REFERENCES[0],
        STAGING_REFERENCES[1],
    ],
    ..PLAIN
};

const TOKUBENCH_STAGING: Row = Row {
    workload: "tokubench",
    threads: SCALING,
    // A run of as many as the workload says is over in half a second; for twice as many as these there are
    // no node pages.
    files: Some(100_000),
    // Nothing is read.
    page_cache: false,
    variants: STAGING_VARIANTS,
    comparisons: &[
        SHARDED[0],
        SHARDED[1],
        SHARDED[2],
        rate("sharded", UNSHARDED.name, Some("4.9")),
        rate("sharded", "disk", None),
        STAGING_REFERENCES[0],
        STAGING_REFERENCES[1],
    ],
    ..PLAIN
};

const STAGING: Experiment = Experiment {
    name: "staging",
    mechanism: "staging buffers with lock-free slots and parallel checkpoint",
    paper: "with 16 threads Varmail 5.09x the bytes a second of the same journal on NVM unsharded with one \
            checkpoint thread (1,879 to 369 MB/s), 5.72x of the journal on the SSD (328 MB/s); Tokubench 4.9x",
    machine: "JFS in Linux 4.1.7, 44 cores (two Xeon Gold 6152), 768 GB, 1 GB of DRAM as NVM, Intel DC P4510",
    rows: &[
        Row {
            options: "durability=op",
            // Where each operation is to be durable a disk compares with nothing in the paper.
            comparisons: &[
                SHARDED[0],
                SHARDED[1],
                SHARDED[2],
                rate("sharded", UNSHARDED.name, Some("5.09")),
                rate("sharded", "disk", None),
                STAGING_REFERENCES[0],
                STAGING_REFERENCES[1],
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

const CHECKPOINTS_AND_REFERENCES: &[Variant] = &[
    CHECKPOINTS[0],
    CHECKPOINTS[1],
    CHECKPOINTS[2],
    CHECKPOINTS[3],
    LONG_WRITES,
    FREE_WRITES,
    NO_ROUNDS,
];

/// Beside writing each block once where it belongs, which staged blocks allow, since their slots protect them; then
/// what rounds could gain at most; and last beside writing them twice, as a design without such slots must.
const CHECKPOINT_RATES: &[Comparison] = &[
    rate("swap", "inplace", None),
    rate("adaptive", "inplace", None),
    rate("long writes", "inplace", None),
    rate("free writes", "inplace", None),
    rate("no rounds", "adaptive", None),
    device_bytes("swap", "inplace"),
    rate("swap", "double", Some("1.46 to 1.61")),
    rate("adaptive", "double", Some("1.46 to 1.61")),
    device_bytes("swap", "double"),
];

const PPT_ROW: Row = Row {
    options: "data=journal,durability=op",
    variants: CHECKPOINTS_AND_REFERENCES,
    comparisons: CHECKPOINT_RATES,
    ..PLAIN
};

const PPT: Experiment = Experiment {
    name: "ppt",
    mechanism: "a persistent page table: checkpoint swaps blocks in, instead of writing them in place or (what the \
                paper compares with) twice",
    paper: "operations a second of Fileserver, Varmail, Webproxy with 500 threads: +46 to +61 % over writing twice \
            with data=journal, +2 to +54 % with data=ordered",
    machine: "ext4 in Ubuntu 16.04, 16 CPUs (Xeon E5-2623), 128 GB of DRAM as NVM, which is the storage as well",
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

/// The region on the disk, and data written there with `O_DIRECT` inside of each `write` of a block and more. No ext3
/// or ext4 does that: there a `write` ends in the page cache, in every mode.
const DIRECT_WRITEBACK: &str = "O_DIRECT writeback on disk";

/// What paper 3 compares with, and what its journal would be in memory: ext4 of the kernel. All of it on mounts, whose
/// data is on loop devices of one disk.
const EXT4: Row = Row {
    options: "durability=commit",
    on_loops: true,
    // Some commits of either side.
    least_seconds: 12.0,
    variants: &[
        on_pmem("journal", "data=journal"),
        ext4("ext4 writeback", "data=writeback", JournalOn::Device),
        ext4(
            "ext4 writeback + journal in memory",
            "data=writeback",
            JournalOn::Memory,
        ),
        ext4("ext4 journal in memory", "data=journal", JournalOn::Memory),
    ],
    comparisons: &[
        rate("journal", "ext4 writeback", Some("above 1")),
        rate("journal", "ext4 writeback + journal in memory", None),
        rate("journal", "ext4 journal in memory", None),
        device_bytes("journal", "ext4 writeback"),
    ],
    ..POSTMARK
};

const TRANSCM: Experiment = Experiment {
    name: "transcm",
    mechanism: "a transactional write buffer cache in NVM: data=journal|ordered|writeback, commit interval",
    paper: "PostMark transactions: more than ext3 data=writeback; a commit interval of 1 s instead of 5 s costs about \
            20 %; recovery in 0.217 s whatever is staged (ext3: 49.9 s)",
    machine: "PostMark on a Core2 Duo at 2 GHz, 768 MB of DRAM as NVM, a disk of 7,200 rpm; recovery on an ARM (PXA255) \
              at 400 MHz with 64 MB of FeRAM",
    rows: &[
        Row {
            options: "durability=commit",
            variants: &[
                on_pmem("journal", "data=journal"),
                on_pmem("ordered", "data=ordered"),
                on_pmem("writeback", "data=writeback"),
                on_disk(DIRECT_WRITEBACK, "data=writeback"),
            ],
            comparisons: &[
                rate("journal", "ordered", None),
                rate("journal", "writeback", None),
                rate("writeback", DIRECT_WRITEBACK, None),
                rate("journal", DIRECT_WRITEBACK, None),
                device_bytes("journal", "ordered"),
            ],
            ..POSTMARK
        },
        EXT4,
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
    paper: "writes of 4 KiB a second: FxMark DWOM up to +170 %, with 7 threads; DWOL unchanged",
    machine: "NOVA, 120 cores (Xeon E7-8870 v2), 32 GB of emulated NVM",
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

/// The node log in pmem, then on the data device with the same region, and then all of the region on the disk; and
/// what is left if nodes cost nothing at all. Nothing is read.
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
    paper: "FxMark DWSL on 15 cores: mean latency of an fsync -85 % (596.8 to 88.2 ms), up to 1.7x the writes",
    machine: "F2FS in Linux 4.14, 120 cores (Xeon E7-8870 v2), 128 GB of emulated NVM, Intel Optane 900p",
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
    machine: "",
    rows: together::ROWS,
    recovery: false,
};

/// All of them, in the order of the papers, and then all at once.
pub const ALL: &[Experiment] = &[STAGING, PPT, TRANSCM, RANGELOCK, NODELOG, TOGETHER];

#[cfg(test)]
mod tests;
