//! What an image costs.

use criterion::{Criterion, criterion_group, criterion_main};
use quayfs_blockdev::{BLOCK, BlockDevice};
use quayfs_crashsim::{Budget, Recorder};
use quayfs_pmem::Backend;
use std::hint::black_box;

fn explore(c: &mut Criterion) {
    let recorder = Recorder::new(1 << 20, 1024, Backend::Dax);
    recorder.region().write(0, &vec![7; 1 << 20]);
    recorder.start_here();
    let (region, device) = (recorder.region(), recorder.device());
    for i in 0..20_u64 {
        region.write_nt(i * 8192, &[i as u8; 4096]);
        region.fence();
        region.write(500_000 + i * 300, &[1; 300]);
        region.flush(500_000 + i * 300, 300);
        device.write(i, &[1; BLOCK]).expect("in memory");
        region.drain().expect("no fault");
        recorder.mark(i);
    }
    let trace = recorder.trace();
    let images = trace.explore(&Budget::default()).count();
    c.bench_function(&format!("explore, {images} images"), |b| {
        b.iter(|| {
            trace
                .explore(&Budget::default())
                .map(|image| image.fingerprint())
                .max()
        });
    });
    let image = trace.explore(&Budget::default()).last().expect("an image");
    c.bench_function("region of 1 MiB", |b| b.iter(|| black_box(image.region())));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = explore
}
criterion_main!(benches);
