use super::*;

/// A tree with these files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn a_machine_is_read_from_its_files() {
    let root = tree(&[
        ("dev/fuse", ""),
        ("proc/sys/kernel/osrelease", "6.14.0-rc1\n"),
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        (
            "proc/cpuinfo",
            "processor : 0\nflags\t: fpu clwb clflushopt\n",
        ),
        ("sys/module/fuse/parameters/enable_uring", "N\n"),
        ("sys/bus/nd/devices/namespace0.0/mode", "fsdax\n"),
        ("sys/bus/nd/devices/namespace0.0/size", "1048576\n"),
        ("sys/bus/nd/devices/namespace0.1/size", "0\n"),
        (
            "sys/bus/nd/devices/region0/persistence_domain",
            "memory_controller\n",
        ),
        ("sys/bus/dax/devices/dax0.0/size", "1\n"),
        ("sys/block/sda/size", "2048\n"),
        ("sys/block/sda/queue/write_cache", "write through\n"),
        (
            "sys/block/sda/device/scsi_disk/0:0:0:0/cache_type",
            "write back\n",
        ),
        ("sys/block/nvme0n1/size", "4096\n"),
        ("sys/block/nvme0n1/queue/write_cache", "write back\n"),
        ("sys/block/loop0/size", "8\n"),
        ("sys/block/sdb/size", "0\n"),
        (
            "proc/self/mountinfo",
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw,nobarrier\n2 1 259:0 / /mnt/pmem rw - xfs /dev/pmem0 rw,dax=always\n",
        ),
    ]);
    let f = Facts::of_this_machine(root.path(), None);
    assert_eq!((f.fuse, f.kernel), (None, (6, 14)));
    assert_eq!((f.rings, f.uring_disabled), (Some(false), Some(2)));
    assert!(f.cpu.iter().any(|w| w == "clwb") && !f.cpu.iter().any(|w| w == "flags"));
    let namespace = Namespace {
        name: "namespace0.0".into(),
        mode: "fsdax".into(),
        bytes: 1 << 20,
    };
    assert_eq!(f.namespaces, [namespace]);
    assert_eq!(f.domains, ["memory_controller"]);
    assert_eq!(f.dax_devices, ["dax0.0"]);
    assert_eq!(
        (f.dax_mounts, f.unsafe_mounts),
        (vec!["/mnt/pmem".to_string()], vec!["/".into()])
    );
    let [nvme, sda] = &f.disks[..] else {
        panic!("{:?}", f.disks)
    };
    assert_eq!(
        (nvme.bytes, nvme.volatile_cache, nvme.overridden),
        (4096 * 512, Some(true), false)
    );
    assert_eq!((sda.volatile_cache, sda.overridden), (Some(false), true));
}

#[test]
fn a_machine_without_anything_is_read_too() {
    let root = tree(&[]);
    let f = Facts::of_this_machine(root.path(), Some(Path::new("/no/such/place")));
    assert!(f.fuse.is_some() && f.disks.is_empty() && f.rings.is_none());
    assert_eq!(f.kernel, (0, 0));
    assert!(matches!(f.target.unwrap().what, What::Unusable(_)));
}

#[test]
fn a_directory_is_a_place_for_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let mounts = [dir.path().to_str().unwrap().to_string()];
    match look_at(dir.path(), &mounts).what {
        What::Directory { free, kind } => assert!(free > 0 && kind != "disk"),
        other => panic!("{other:?}"),
    }
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(look_at(&file, &[]).what, What::Unusable(_)));
}
