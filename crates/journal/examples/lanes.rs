//! Threads append records on lanes of their own; then every crash of that is made, by `quayfs-crashsim`, and recovery
//! has to find what was acknowledged.

use std::sync::Arc;
use std::thread;

use quayfs_crashsim::{Budget, CrashImage, Recorder};
use quayfs_journal::{
    Durability, Journal, JournalError, JournalGeometry, JournalOptions, Need, RecoveredTo, Scan,
};
use quayfs_pmem::Backend;

const KIB: u64 = 1 << 10;
const THREADS: u64 = 3;
const RECORDS: u64 = 4;

/// A lane of 8 KiB and 8 slots for each thread.
const GEOMETRY: JournalGeometry = JournalGeometry {
    volume_salt: 0x5eed,
    jsb_off: 0,
    buffers: THREADS as u32,
    lane_off: 4 * KIB,
    lane_bytes: 8 * KIB,
    slot_hdr_off: 28 * KIB,
    slots_per_buffer: 8,
    slot_data_off: 32 * KIB,
};
const LEN: u64 = 32 * KIB + THREADS * 8 * 4 * KIB;

/// Ends recovery. A caller with metadata of its own would apply the records to it first.
fn recover(scan: Scan, durability: Durability) -> Result<Journal, JournalError> {
    let digested = scan.records.last().map_or(scan.digested, |r| r.seq);
    scan.into_journal(RecoveredTo { digested }, JournalOptions::new(durability))
}

/// Stages a block and appends the record that says which: one operation.
fn write(journal: &Journal, lane: u64, lbn: u64) -> Result<u64, JournalError> {
    let need = Need {
        slots: 1,
        record_bytes: 8,
        prefer: lane as usize,
    };
    let mut credit = journal.acquire(need).expect("there is room");
    let staged = journal.stage(&mut credit, &[(lbn, &[lbn as u8; 4096])])?;
    let appended = journal.append(credit, vec![staged], &lbn.to_le_bytes())?;
    Ok(appended.seq)
}

/// Recovers what a crash has left, and returns the numbers of the records that have survived, with their blocks.
fn survivors(image: &CrashImage, durability: Durability) -> Result<Vec<u64>, JournalError> {
    let scan = Journal::scan(Arc::new(image.region()), &GEOMETRY)?;
    assert!(scan.damage.is_empty(), "{:?}\n{image}", scan.damage);
    let records = scan.records.clone();
    let journal = recover(scan, durability)?;
    let live = journal.live_slots(journal.complete_upto());
    assert_eq!(live.len(), records.len(), "{image}");
    let mut block = [0; 4096];
    for slot in live {
        let mut of_slot = records.iter().filter(|r| r.seq == slot.seq);
        assert!(of_slot.all(|r| r.items == slot.lbn.to_le_bytes()));
        journal.read_slot(&slot.slot(), &mut block)?;
        assert_eq!(block, [slot.lbn as u8; 4096]);
    }
    Ok(records.iter().map(|r| r.seq).collect())
}

/// Appends from several threads, and looks at every crash of that.
fn run(durability: Durability) -> Result<(), JournalError> {
    let recorder = Recorder::new(LEN, 1, Backend::Dax);
    Journal::format(&recorder.region(), &GEOMETRY, durability)?;
    let journal = recover(Journal::scan(recorder.region(), &GEOMETRY)?, durability)?;
    recorder.start_here(); // only crashes from here on are of interest
    let work = |lane| -> Result<(), JournalError> {
        for n in 0..RECORDS {
            let seq = write(&journal, lane, lane * RECORDS + n)?;
            // What a caller may be told: in `op` each record, in `commit` what a commit covers.
            match durability {
                Durability::Op => recorder.mark(seq),
                Durability::Commit if n % 2 == 1 => recorder.mark(journal.commit(None)?),
                Durability::Commit => (),
            }
        }
        Ok(())
    };
    thread::scope(|s| {
        for lane in 0..THREADS {
            let work = &work;
            s.spawn(move || work(lane).expect("a journal that is not full"));
        }
    });
    let mut crashes = 0;
    for image in recorder.trace().explore(&Budget::SMALL) {
        let (found, told) = (survivors(&image, durability)?, image.acked());
        let kept = match durability {
            Durability::Op => told.iter().all(|seq| found.contains(seq)),
            // Everything up to some number.
            Durability::Commit => {
                told.iter().max() <= found.last()
                    && found.iter().copied().eq(1..=found.len() as u64)
            }
        };
        assert!(kept, "{found:?}\n{image}");
        crashes += 1;
    }
    println!("{durability:?}: {crashes} crashes, nothing lost that was acknowledged");
    Ok(())
}

fn main() -> Result<(), JournalError> {
    run(Durability::Op)?;
    run(Durability::Commit)
}

#[test]
fn it_runs() -> Result<(), JournalError> {
    main()
}
