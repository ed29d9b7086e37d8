//! The operation layer without a kernel: create, writes, appends, reads, exchanged ranges, what a durable append
//! takes where data goes first, digest and rounds.
//!
//! The region is ordinary memory, the data device too, so what is measured is the engine.

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use quayfs_background::checkpoint;
use quayfs_background::digest::digest_all;
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Exchange, Fs, SetAttr};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_pmem::Region;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PMEM: u64 = 256 << 20;
const DATA: u64 = 512 << 20;
const FILE_BLOCKS: u64 = 4096;

/// A fresh volume; `threads`: with digest and rounds in the background.
fn fresh(threads: bool) -> Arc<Fs> {
    fresh_with("noatime", threads)
}

fn fresh_with(options: &str, threads: bool) -> Arc<Fs> {
    let region = Arc::new(Region::anonymous(PMEM));
    let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(DATA / 4096));
    let geometry = Geometry::compute(PMEM, DATA, 4).expect("a sound geometry");
    quayfs_mkfs::format(&region, &*device, geometry, "bench").expect("a volume");
    let volume = Volume::from_parts(region, device, Access::ReadWrite).expect("a pair");
    let options = MountOptions::parse(&[options]).expect("valid options");
    if threads {
        Fs::mount(volume, &options).expect("a mount")
    } else {
        Fs::mount_quiet(volume, &options).expect("a mount")
    }
}

const BY: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn create_file(fs: &Fs, name: &str) -> u64 {
    let attr = fs
        .mknod(BY, ROOT, name.as_bytes(), S_IFREG | 0o644, 0)
        .expect("a file");
    attr.ino
}

fn operations(c: &mut Criterion) {
    let mut group = c.benchmark_group("operation");
    let fs = fresh(true);
    let mut n = 0u64;
    group.bench_function("create and unlink", |b| {
        b.iter(|| {
            n += 1;
            let name = format!("file-{n}");
            let ino = create_file(&fs, &name);
            fs.unlink(ROOT, name.as_bytes()).expect("it exists");
            fs.forget(ino, 1);
        });
    });
    let ino = create_file(&fs, "data");
    let block = vec![7u8; 4096];
    for i in 0..FILE_BLOCKS {
        fs.write(ino, i * 4096, &block, false).expect("room");
    }
    let mut next = offsets();
    group.throughput(Throughput::Bytes(4096));
    group.bench_function("4 KiB overwrite", |b| {
        b.iter(|| {
            fs.write(ino, next(), black_box(&block), false)
                .expect("room")
        });
    });
    let mut next = offsets();
    group.bench_function("4 KiB read", |b| {
        b.iter(|| black_box(fs.read(ino, next(), 4096).expect("it exists")));
    });
    let mut end = Appends::to(create_file(&fs, "grows"));
    group.bench_function("4 KiB append", |b| b.iter(|| end.append(&fs, &block)));
    group.finish();
    fs.shutdown().expect("a clean end");
}

/// Blocks at the end of a file, which begins anew where it would fill the volume.
struct Appends {
    ino: u64,
    at: u64,
}

impl Appends {
    fn to(ino: u64) -> Self {
        Self { ino, at: 0 }
    }

    fn append(&mut self, fs: &Fs, block: &[u8]) {
        if self.at == FILE_BLOCKS * 4096 {
            let size = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            fs.setattr(self.ino, &size, false).expect("a file");
            self.at = 0;
        }
        fs.write(self.ino, self.at, black_box(block), false)
            .expect("room");
        self.at += 4096;
    }
}

/// Contents of two files, beside writing one of them anew.
fn exchanges(c: &mut Criterion) {
    let mut group = c.benchmark_group("exchange");
    let fs = fresh(true);
    for (name, len) in [("4 KiB", 4096), ("1 MiB", 1 << 20)] {
        let ends = ["one", "other"].map(|end| create_file(&fs, &format!("{end} of {name}")));
        let bytes = vec![7u8; len];
        for ino in ends {
            fs.write(ino, 0, &bytes, false).expect("room");
        }
        let whole = Exchange {
            one: (ends[0], 0),
            other: (ends[1], 0),
            len: len as u64,
            to_eof: false,
            written: false,
            dry_run: false,
            unless_changed: None,
        };
        group.bench_function(name, |b| {
            b.iter(|| fs.exchange(BY, whole).expect("files of one length"));
        });
        group.bench_function(format!("{name} written instead"), |b| {
            b.iter(|| fs.write(ends[0], 0, &bytes, false).expect("room"));
        });
    }
    group.finish();
    fs.shutdown().expect("a clean end");
}

/// A durable append: with `data=ordered` the data is on the device before the record is in the log, and no node
/// before both.
fn order(c: &mut Criterion) {
    let mut group = c.benchmark_group("order");
    for mode in ["journal", "ordered"] {
        let fs = fresh_with(&format!("noatime,data={mode}"), true);
        let mut end = Appends::to(create_file(&fs, "grows"));
        let block = vec![7u8; 4096];
        group.bench_function(format!("4 KiB append and fsync, data={mode}"), |b| {
            b.iter(|| {
                end.append(&fs, &block);
                fs.fsync(end.ino).expect("a sound device");
            });
        });
        fs.shutdown().expect("a clean end");
    }
    group.finish();
}

/// Offsets of blocks of the file, in an order that looks random and is always the same.
fn offsets() -> impl FnMut() -> u64 {
    let mut at = 1u64;
    move || {
        at = at
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (at >> 33) % FILE_BLOCKS * 4096
    }
}

fn digest(c: &mut Criterion) {
    const FILES: u64 = 500;
    let mut group = c.benchmark_group("digest");
    group.throughput(Throughput::Elements(FILES));
    group.sample_size(20);
    let fs = fresh(false);
    let mut n = 0u64;
    group.bench_function("records of 500 creates", |b| {
        b.iter_batched(
            || {
                // What the batch before has left behind goes first.
                for i in n.saturating_sub(FILES)..n {
                    let name = format!("file-{i}");
                    let ino = fs.lookup(ROOT, name.as_bytes()).expect("it exists").ino;
                    fs.unlink(ROOT, name.as_bytes()).expect("it exists");
                    fs.forget(ino, 2);
                }
                digest_all(&fs.e).expect("digest");
                for _ in 0..FILES {
                    create_file(&fs, &format!("file-{n}"));
                    n += 1;
                }
            },
            |()| digest_all(&fs.e).expect("digest"),
            BatchSize::PerIteration,
        );
    });
    group.finish();

    let mut group = c.benchmark_group("round");
    const BLOCKS: u64 = 2048;
    group.throughput(Throughput::Bytes(BLOCKS * 4096));
    group.sample_size(20);
    let ino = create_file(&fs, "data");
    let block = vec![7u8; 4096];
    group.bench_function("2048 staged blocks", |b| {
        b.iter_batched(
            || {
                for i in 0..BLOCKS {
                    fs.write(ino, i * 4096, &block, false).expect("room");
                }
                digest_all(&fs.e).expect("digest");
            },
            |()| checkpoint::round(&fs.e).expect("a round"),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, operations, exchanges, order, digest);
criterion_main!(benches);
