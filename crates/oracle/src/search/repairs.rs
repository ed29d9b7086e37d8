//! Repairs: damage of every kind that a repair knows something to do about.

use crate::search::program::Program;

/// One of each, as programs are written: healed, replaced, given up, found again.
const REPAIRS: &[&str] = &[
    // The pair: configuration and header.
    "op: repair clean, noise config 0",
    "commit: repair clean, noise config 1",
    "op: repair clean, bit data-header 3",
    // Words of the superblock: healed, and computed again.
    "op: repair op, bit superblock 0",
    "op: repair op, bit superblock 1",
    "commit: repair commit, bit superblock 3",
    "op: repair op, noise superblock 3",
    "commit: repair commit, noise superblock 3",
    "op: repair clean, noise superblock 4",
    "commit: repair commit, noise superblock 5",
    "commit: repair commit, noise superblock 6",
    "commit: repair commit, noise superblock 7",
    "commit: repair commit, noise superblock 8, noise superblock 9",
    "op: repair clean, noise superblock 2",
    // Words that only the copy of the superblock tells.
    "op: repair clean, noise superblock 0",
    "commit: repair clean, noise superblock 1, noise superblock 0",
    // The epoch, which records contradict.
    "op: repair op, later superblock 0",
    "commit: repair commit, later superblock 0",
    // The page-table log: closed, and an open transaction undone.
    "op: repair clean, bit l2p-log 0",
    "commit: repair clean, noise l2p-log 0",
    "op: repair clean, noise l2p-log 1",
    "op: repair round, bit l2p-log 5",
    "op: repair round, noise l2p-log 0",
    "commit: repair round, noise l2p-log 5",
    "op: repair round, noise l2p-log 1, noise l2p-log 2",
    // NAT entries and pages.
    "op: repair op, bit nat 1",
    "op: repair clean, noise nat 90",
    "op: repair op, noise nat 1, noise nat 3",
    "commit: repair clean, twice nat 2",
    "commit: repair commit, bit node 2",
    "op: repair op, noise node 10",
    // Slots and records.
    "op: repair op, bit committed 1",
    "op: repair op, noise committed 2",
    "commit: repair commit, bit slot-header 1",
    "op: repair op, noise slot-header 1",
    "commit: repair commit, noise slot-header 3",
    "op: repair op, bit record 0",
    "op: repair op, bit record 1",
    "op: repair op, noise record 1",
    "commit: repair commit, noise record 0",
    // The map, and content.
    "op: repair clean, bit l2p-entry 3",
    "op: repair clean, noise l2p-entry 3",
    "op: repair op, noise l2p-entry 7",
    "op: repair clean, twice l2p-entry 5",
    "op: repair clean, spare l2p-entry 1",
    "op: repair clean, noise l2p-entry 1, noise data 1",
    // One among many that passes all the same.
    "op: repair clean, twice l2p-entry 5, noise l2p-entry 0, noise l2p-entry 1, noise l2p-entry 2, noise l2p-entry 3, \
     noise l2p-entry 4, noise l2p-entry 6, noise l2p-entry 7, noise l2p-entry 8, noise l2p-entry 9, noise l2p-entry 10, \
     noise l2p-entry 11, noise l2p-entry 12, noise l2p-entry 13",
    "op: repair op, bit slot 1",
    "op: repair op, noise slot 0",
    "commit: repair commit, noise slot 1",
    "op: repair clean, bit data 3",
    "op: repair clean, bit l2p-checksum 3",
];

/// Repairs that die, and at which of their events.
const DEATHS: &[(&str, &[usize])] = &[
    (
        "op: repair clean, noise node 4",
        &[4, 6, 7, 10, 11, 12, 13, 14, 16, 17, 19, 20, 23, 24, 27],
    ),
    ("op: repair op, noise node 3", &[43, 84, 100, 104, 111]),
    ("op: repair op, noise slot 0", &[79, 81, 84]),
    ("op: repair clean, bit data-header 3", &[4]),
    ("op: repair clean, noise config 0", &[4]),
];

/// Pages of all kinds, each in ruins; there are about so many of them.
const PAGES: u64 = 16;

/// All repairs.
pub fn repairs() -> Vec<Program> {
    let pages = (0..PAGES).map(|n| match n % 3 {
        0 => format!("op: repair op, noise node {n}"),
        1 => format!("op: repair clean, noise node {n}"),
        _ => format!("commit: repair commit, noise node {n}"),
    });
    let deaths = DEATHS.iter().flat_map(|(line, events)| {
        let dies = move |n: &usize| format!("{line}, dies after {n}");
        events.iter().map(dies)
    });
    let lines = REPAIRS.iter().map(ToString::to_string);
    let lines = lines.chain(pages).chain(deaths);
    lines
        .map(|line| line.parse().unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}
