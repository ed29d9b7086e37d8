//! Blocks are written to free places and swapped into a file, all or nothing, even if the machine dies in between.
//!
//! A region in heap memory tells an observer of every store. So the example can make the images that a crash leaves
//! behind if each store reaches memory at once, which is one of the ways in which a crash may go.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use quayfs_pmem::{Backend, Observer, Region};
use quayfs_ppt::{BlockState, Ppt, PptError, PptGeometry};

const KIB: u64 = 1 << 10;
/// A word of the caller's, outside of the table, that changes with the map.
const ROUNDS_DONE: u64 = 64;
/// The blocks of a file, and free ones that lie side by side on the device.
const FILE: [u64; 4] = [3, 17, 18, 40];
const FREE: [u64; 4] = [100, 101, 102, 103];

const GEOMETRY: PptGeometry = PptGeometry {
    volume_salt: 0x5eed,
    l2p_map_off: 4 * KIB,
    l2p_crc_off: 8 * KIB,
    blocks: 128,
    l2p_log_off: 12 * KIB,
    l2p_log_lanes: 1,
    l2p_lane_bytes: 4 * KIB,
};

/// What is done to the region.
#[derive(Default)]
struct Tape {
    stores: Mutex<Vec<(u64, Vec<u8>)>>,
    drains: AtomicU32,
}

impl Observer for Tape {
    fn store(&self, off: u64, bytes: &[u8], _: bool, _: &'static Location<'static>) {
        let mut stores = self.stores.lock().expect("no store panics");
        stores.push((off, bytes.to_vec()));
    }

    fn flush(&self, _: u64, _: u64, _: &'static Location<'static>) {}

    fn fence(&self, _: &'static Location<'static>) {}

    fn drain(&self, _: &'static Location<'static>) {
        self.drains.fetch_add(1, Relaxed);
    }
}

/// Gives the file's blocks new homes, in one transaction. Their content is on the device by now.
fn round(table: &Ppt) -> Result<usize, PptError> {
    let mut txn = table.begin()?;
    for (&lbn, &free) in FILE.iter().zip(&FREE) {
        txn.swap(lbn, free)?;
        txn.set_written(lbn, lbn as u32)?;
    }
    txn.set_retired(ROUNDS_DONE, 1)?;
    txn.commit(1)
}

/// Whether the round has happened, which is all of it or nothing.
fn is_done(region: &Region, table: &Ppt) -> Result<bool, PptError> {
    let done = region.load_u64(ROUNDS_DONE) == 1;
    for (&lbn, &free) in FILE.iter().zip(&FREE) {
        let home = table.lookup(lbn)?;
        assert_eq!(home.pbn, if done { free } else { lbn });
        assert_eq!(home.state == BlockState::Written, done);
    }
    assert!(table.verify()?.is_sound());
    Ok(done)
}

fn main() -> Result<(), PptError> {
    let tape = Arc::new(Tape::default());
    let region = Arc::new(Region::simulated(32 * KIB, tape.clone()));
    Ppt::format(&region, &GEOMETRY)?;
    region.drain()?;
    let (table, _) = Ppt::attach(Arc::clone(&region), GEOMETRY)?;

    // What is not committed leaves no trace.
    let mut txn = table.begin()?;
    txn.swap(FILE[0], FREE[0])?;
    assert_eq!(txn.lookup(FILE[0])?.pbn, FREE[0]);
    drop(txn);
    assert!(!is_done(&region, &table)?);

    let mut image = region.read_vec(0, region.len());
    tape.stores.lock().expect("no store panics").clear();
    let before = tape.drains.load(Relaxed);
    let changed = round(&table)?;
    assert!(is_done(&region, &table)?);
    let drains = tape.drains.load(Relaxed) - before;
    println!("{changed} entries changed by one transaction, with {drains} drains");
    assert_eq!((changed, drains), (8, 3));

    let stores = tape.stores.lock().expect("no store panics").clone();
    let mut undone = 0;
    for (n, (off, bytes)) in stores.iter().enumerate() {
        image[*off as usize..][..bytes.len()].copy_from_slice(bytes);
        let crashed = Arc::new(Region::from_image(&image, None, Backend::Dax));
        let (table, report) = Ppt::attach(Arc::clone(&crashed), GEOMETRY)?;
        undone += usize::from(report.undone > 0);
        // Of all stores the commit word and its spare copy are last.
        assert_eq!(is_done(&crashed, &table)?, n + 2 >= stores.len());
    }
    println!(
        "{} crashes, {undone} undone at the next attach, none left a mixture",
        stores.len()
    );
    Ok(())
}

#[test]
fn it_runs() -> Result<(), PptError> {
    main()
}
