//! What durability costs on memory: a line, a block past the cache, a block through it.

use criterion::{Criterion, criterion_group, criterion_main};
use quayfs_pmem::Region;
use std::hint::black_box;

const LEN: u64 = 64 << 20;

fn persist(c: &mut Criterion) {
    let region = Region::anonymous(LEN);
    let block = [0x5a_u8; 4096];
    let mut off = 0_u64;
    let mut next = |step: u64| {
        off = (off / step + 1) * step % LEN;
        off
    };
    c.bench_function("store_flush_fence_64B", |b| {
        b.iter(|| {
            let at = next(64);
            region.write(at, black_box(&block[..64]));
            region.flush(at, 64);
            region.fence();
        });
    });
    c.bench_function("write_nt_fence_4KiB", |b| {
        b.iter(|| {
            region.write_nt(next(4096), black_box(&block));
            region.fence();
        });
    });
    c.bench_function("write_flush_fence_4KiB", |b| {
        b.iter(|| {
            let at = next(4096);
            region.write(at, black_box(&block));
            region.flush(at, 4096);
            region.fence();
        });
    });
    let mut copy = [0_u8; 4096];
    c.bench_function("read_4KiB", |b| {
        b.iter(|| region.read(next(4096), black_box(&mut copy)))
    });
}

criterion_group!(benches, persist);
criterion_main!(benches);
