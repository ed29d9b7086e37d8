//! Recovery that digests in several batches: it crashes between them and in the middle of each, and the
//! next one ends at the same state.
#![allow(missing_docs, reason = "tests")]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use quayfs_crashsim::CrashImage;
use quayfs_fs::recovery::journal_geometry;
use quayfs_journal::Journal;
use quayfs_oracle::Media;
use quayfs_oracle::search::program::{MODES, Program, Text};
use quayfs_oracle::search::run::DEPTH;

/// What recovery finds in an image: digested_seq, how many records are to be replayed, and the NAT.
fn found(image: &CrashImage) -> (u64, usize, Vec<u8>) {
    let media = Media {
        region: Arc::new(image.region()),
        device: Arc::new(image.device()),
    };
    let volume = media.volume();
    let config = volume.config();
    let g = config.geometry;
    let scan = Journal::scan(
        Arc::clone(&media.region),
        &journal_geometry(&g, config.salt()),
    )
    .expect("scan");
    let nat = media.region.read_vec(g.nat_off, g.nat_entries * 8);
    (scan.digested, scan.records.len(), nat)
}

/// The image of a crash of the scenario that leaves most to replay.
fn fullest(trace: &quayfs_crashsim::Trace) -> CrashImage {
    let images = trace.explore(&DEPTH.budget);
    images.max_by_key(|i| found(i).1).expect("an image")
}

/// Looks at every crash of the recovery from the crash of a scenario, in every mode. `records` is how many
/// records some batch has at least.
fn recovered(scenario: &'static str, records: usize) {
    for mode in MODES {
        let program = Program {
            mode,
            text: Text::Scenario(scenario),
            dies: None,
            goes_on: false,
        };
        let run = program.run();
        let image = fullest(&run.trace());
        let recoveries = run.recoveries(&image).expect("recovery");
        // Of each digested_seq that is found: how many records are left, and what the NAT says.
        let mut seen: BTreeMap<u64, (usize, HashSet<Vec<u8>>)> = BTreeMap::new();
        for (n, image) in recoveries[0].trace().explore(&DEPTH.budget).enumerate() {
            let (digested, left, nat) = found(&image);
            if left > 0 {
                let at = seen.entry(digested).or_default();
                at.0 = left;
                at.1.insert(nat);
            }
            recoveries[0]
                .judge(&image, n as u64, &DEPTH)
                .unwrap_or_else(|e| panic!("{program}: {e}\nin recovery, {image}"));
        }
        let left: Vec<usize> = seen.values().map(|(left, _)| *left).collect();
        assert!(left.len() > 2, "{program}: in batches before {left:?}");
        // As it was, as the batch leaves it, and in between.
        for (digested, (_, nats)) in &seen {
            assert!(
                nats.len() > 2,
                "{program}: no crash of the batch behind {digested}"
            );
        }
        let sizes = left.windows(2).map(|w| w[0] - w[1]);
        let most = sizes.max().unwrap_or(0).max(left[left.len() - 1]);
        assert!(most >= records, "{program}: in batches before {left:?}");
        eprintln!("{program}: records before each batch {left:?}");
    }
}

#[test]
fn of_one_record_each() {
    recovered("backlog", 1);
}

#[test]
fn of_several_records_each() {
    recovered("batches", 2);
}
