//! What an operation pays here: staging a block, appending a record, a commit, and the life of a
//! written block including its share of digest and retirement; then the scan after a crash.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use quayfs_journal::*;
use quayfs_pmem::Region;
use std::hint::black_box;
use std::sync::Arc;

const NEED: Need = Need {
    slots: 1,
    record_bytes: 300,
    prefer: 0,
};

struct Bench {
    region: Arc<Region>,
    geo: JournalGeometry,
    journal: Journal,
}

impl Bench {
    fn new(mode: Durability, slots: u64) -> Self {
        let buffers = 4;
        let lane_bytes = 4 << 20;
        let slot_hdr_off = 4096 + buffers * lane_bytes;
        let slot_data_off = slot_hdr_off + (buffers * slots * 64).next_multiple_of(4096);
        let geo = JournalGeometry {
            volume_salt: 1,
            jsb_off: 0,
            buffers: buffers as u32,
            lane_off: 4096,
            lane_bytes,
            slot_hdr_off,
            slots_per_buffer: slots,
            slot_data_off,
        };
        let region = Arc::new(Region::anonymous(slot_data_off + buffers * slots * 4096));
        Journal::format(&region, &geo, mode).expect("format");
        let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
        let to = RecoveredTo {
            digested: scan.digested,
        };
        let journal = scan
            .into_journal(to, JournalOptions::new(mode))
            .expect("recover");
        Self {
            region,
            geo,
            journal,
        }
    }

    /// Room for `need`; what is used up is digested (without applying it) and retired.
    fn room(&self, need: Need) -> Credit<'_> {
        let j = &self.journal;
        j.acquire(need).unwrap_or_else(|_| {
            j.commit(None).expect("commit");
            self.recycle();
            j.acquire(need).expect("room")
        })
    }

    fn recycle(&self) {
        let j = &self.journal;
        let upto = j.digestable();
        for r in j
            .read_records(j.digested(), upto, usize::MAX, usize::MAX)
            .expect("records")
            .iter()
        {
            j.mark_committed(r);
        }
        j.set_digested(upto).expect("digest");
        let word = j.retired_word();
        self.region.store_u64(word.offset, word.encode(upto));
        self.region.persist(word.offset, 8).expect("persist");
        j.advance_heads(upto, || ()).expect("retire");
    }

    fn write(&self, n: u64, block: &[u8], items: &[u8]) -> Appended {
        let mut credit = self.room(Need {
            prefer: n as usize,
            ..NEED
        });
        let staged = self
            .journal
            .stage(&mut credit, &[(n % 1000, block)])
            .expect("stage");
        self.journal
            .append(credit, vec![staged], items)
            .expect("append")
    }
}

fn staging(c: &mut Criterion) {
    let b = Bench::new(Durability::Op, 4096);
    let block = [7; 4096];
    let mut group = c.benchmark_group("stage");
    for blocks in [1u32, 16] {
        let payload: Vec<(u64, &[u8])> = (0..blocks.into()).map(|l| (l, &block[..])).collect();
        group.throughput(Throughput::Bytes(u64::from(blocks) * 4096));
        group.bench_function(format!("{blocks} x 4 KiB"), |t| {
            t.iter_batched(
                || {
                    b.room(Need {
                        slots: blocks,
                        ..NEED
                    })
                },
                |mut credit| drop(b.journal.stage(&mut credit, &payload).expect("stage")),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn appending(c: &mut Criterion) {
    let b = Bench::new(Durability::Op, 4096);
    let items = [1; 300];
    c.bench_function("append 300 B", |t| {
        t.iter_batched(
            || b.room(Need { slots: 0, ..NEED }),
            |credit| b.journal.append(credit, vec![], &items).expect("append"),
            BatchSize::PerIteration,
        );
    });
}

fn committing(c: &mut Criterion) {
    let b = Bench::new(Durability::Commit, 4096);
    let items = [1; 300];
    c.bench_function("commit of one record", |t| {
        t.iter_batched(
            || {
                let credit = b.room(Need { slots: 0, ..NEED });
                b.journal
                    .append(credit, vec![], &items)
                    .expect("append")
                    .seq
            },
            |seq| b.journal.commit(Some(seq)).expect("commit"),
            BatchSize::PerIteration,
        );
    });
}

fn whole_life(c: &mut Criterion) {
    let (block, items) = ([7; 4096], [1; 200]);
    let mut group = c.benchmark_group("write, digest, retire");
    group.throughput(Throughput::Bytes(4096));
    for mode in [Durability::Op, Durability::Commit] {
        let b = Bench::new(mode, 4096);
        let mut n = 0;
        group.bench_function(format!("{mode:?}"), |t| {
            t.iter(|| {
                n += 1;
                black_box(b.write(n, &block, &items))
            });
        });
    }
    group.finish();
}

fn scanning(c: &mut Criterion) {
    let b = Bench::new(Durability::Op, 65536);
    let (block, items) = ([7; 4096], [1; 200]);
    // Undigested records first: with room for all, nothing is recycled.
    for n in 0..20_000 {
        b.write(n, &block, &items);
    }
    let mut group = c.benchmark_group("scan");
    group.sample_size(20);
    group.bench_function("262144 slots, 20000 records", |t| {
        t.iter(|| {
            Journal::scan(Arc::clone(&b.region), &b.geo)
                .expect("scan")
                .live
                .len()
        });
    });
    group.finish();
}

criterion_group!(
    benches, staging, appending, committing, whole_life, scanning
);
criterion_main!(benches);
