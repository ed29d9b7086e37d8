//! The memory that a region on a disk takes is bounded, whatever is stored and however little of it is in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quayfs_fs::volume::{Access, Opening, Volume};
use quayfs_fs::{Caller, Fs};
use quayfs_fsck::{FsckOptions, check_volume};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_mkfs::{MkfsOptions, mkfs};
use quayfs_options::MountOptions;
use quayfs_pmem::Backend;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const FILES: usize = 3000;

fn content(key: usize) -> Vec<u8> {
    (0..12_000)
        .map(|i| ((i * 31 + key * 7) % 251) as u8)
        .collect()
}

fn mount(path: &Path, options: &MountOptions) -> Arc<Fs> {
    let opening = Opening {
        memory: Some(options.memory_for_region()),
        ..Opening::new(Access::ReadWrite, Duration::ZERO)
    };
    let volume = Volume::open_with(path, opening).expect("the volume opens");
    assert_eq!(
        volume.region().backend(),
        Backend::File,
        "a region on a disk"
    );
    Fs::mount_quiet(volume, options).expect("it is mounted")
}

fn make(fs: &Fs, key: usize) -> Ino {
    let name = format!("file-{key:04}");
    let made = fs.mknod(ME, ROOT, name.as_bytes(), S_IFREG | 0o644, 0);
    let ino = made.expect("mknod").ino;
    fs.write(ino, 0, &content(key), false).expect("write");
    ino
}

fn holds(fs: &Fs, key: usize) {
    let name = format!("file-{key:04}");
    let ino = fs.lookup(ROOT, name.as_bytes()).expect("a file").ino;
    assert!(
        fs.read(ino, 0, 20_000).expect("read") == content(key),
        "{name}"
    );
}

#[test]
fn a_volume_is_larger_than_the_memory_for_it() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("volume");
    let how = MkfsOptions {
        size: Some(1 << 30),
        pmem_size: Some(192 << 20),
        sparse: true,
        ..MkfsOptions::default()
    };
    mkfs(&path, &how).expect("a volume");
    let options = MountOptions::parse(&["memory=32M,large=0"]).expect("options");
    let bound = options.memory_for_region();
    let fs = mount(&path, &options);
    let mut most = 0;
    for key in 0..FILES {
        make(&fs, key);
        let memory = fs.status().pmem_memory_bytes;
        // What is being stored at the moment comes on top.
        assert!(memory <= bound + (1 << 20), "{memory} bytes");
        most = most.max(memory);
    }
    assert!(
        most > bound / 4 * 3,
        "more was stored than there is memory for: {most}"
    );
    (0..FILES).for_each(|key| holds(&fs, key));
    fs.sync_all().expect("sync");
    fs.shutdown().expect("unmount");
    drop(fs);

    let volume = Volume::open(&path, Access::ReadOnly, Duration::ZERO).expect("the volume opens");
    let report = check_volume(volume, &FsckOptions { check_data: true }).expect("it is checked");
    assert!(report.is_clean(), "{report}");
    let fs = mount(&path, &options);
    (0..FILES).for_each(|key| holds(&fs, key));
    fs.shutdown().expect("unmount");
}
