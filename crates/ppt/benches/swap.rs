//! Cost of a transaction: swaps of 1, 256 and 4096 pairs, by memory flush and by number of lanes;
//! beside it a lookup.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quayfs_pmem::Region;
use quayfs_ppt::{Ppt, PptGeometry};

const BLOCKS: u64 = 1 << 18;
const MIB: u64 = 1 << 20;

fn table() -> Ppt {
    let geo = PptGeometry {
        volume_salt: 0x5eed,
        l2p_map_off: MIB,
        l2p_crc_off: 4 * MIB,
        blocks: BLOCKS,
        l2p_log_off: 6 * MIB,
        l2p_log_lanes: 4,
        l2p_lane_bytes: MIB,
    };
    let region = Arc::new(Region::anonymous(16 * MIB));
    Ppt::format(&region, &geo).expect("format");
    Ppt::attach(region, geo).expect("attach").0
}

fn swap(c: &mut Criterion) {
    let table = table();
    let mut group = c.benchmark_group("swap");
    for pairs in [1u64, 256, 4096] {
        group.throughput(Throughput::Elements(pairs));
        for workers in [1usize, 2] {
            group.bench_function(BenchmarkId::new(format!("lanes={workers}"), pairs), |b| {
                b.iter(|| {
                    let mut txn = table.begin().expect("begin");
                    for n in 0..pairs {
                        // Scattered blocks on one side, borrowed contiguous ones on the other.
                        let home = n * 37 % (BLOCKS / 2);
                        txn.swap(home, BLOCKS / 2 + n).expect("swap");
                        txn.set_written(home, n as u32).expect("set_written");
                    }
                    txn.set_retired(64, pairs).expect("set_retired");
                    txn.commit(workers).expect("commit")
                });
            });
        }
    }
    group.finish();
}

fn lookup(c: &mut Criterion) {
    let table = table();
    let mut lbn = 0;
    c.bench_function("lookup", |b| {
        b.iter(|| {
            lbn = (lbn + 7919) % BLOCKS;
            black_box(table.lookup(lbn)).expect("lookup")
        });
    });
}

criterion_group!(benches, swap, lookup);
criterion_main!(benches);
