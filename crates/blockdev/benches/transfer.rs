//! Loads as a checkpoint writes them: many runs at once, then one flush.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quayfs_blockdev::{AlignedBuf, BLOCK, BlockDevice, FileDevice, Options, WriteRun, create_file};

const BLOCKS: u64 = 16 << 10;

fn transfer(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("device");
    create_file(&path, BLOCKS * BLOCK as u64, false).expect("a device");
    let content = AlignedBuf::new(256 * BLOCK);
    let mut group = c.benchmark_group("write_many_flush");
    for (direct, uring) in [(false, false), (true, false), (true, true)] {
        let options = Options {
            direct,
            uring,
            ..Options::default()
        };
        let device = FileDevice::open(&path, options).expect("a device");
        let way = device.describe();
        let way = way
            .rsplit(" blocks, ")
            .next()
            .unwrap_or_default()
            .to_owned();
        for (name, blocks, count) in [("scattered 4 KiB", 1, 256), ("16 runs of 1 MiB", 256, 16)] {
            let buf = &content[..blocks * BLOCK];
            let bufs = [buf];
            let runs: Vec<WriteRun<'_>> = (0..count)
                .map(|i| WriteRun {
                    block: i * 7919 % (BLOCKS / 256) * 256,
                    bufs: &bufs,
                })
                .collect();
            group.throughput(Throughput::Bytes((count as usize * buf.len()) as u64));
            group.bench_function(format!("{name}, {way}"), |b| {
                b.iter(|| {
                    device.write_many(&runs).expect("written");
                    device.flush().expect("flushed");
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = transfer
}
criterion_main!(benches);
