//! The copies of what a volume cannot be opened without, at every crash: whatever a copy says is what the volume says.
#![allow(missing_docs, reason = "tests")]

use std::sync::Arc;

use quayfs_crashsim::{Budget, CrashImage, Recorder, Trace};
use quayfs_fs::Caller;
use quayfs_fs::volume::superblock;
use quayfs_layout::BLOCK;
use quayfs_layout::backup::BACKUP_BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_oracle::search::place::Place;
use quayfs_oracle::{Media, Shape, dump, options};
use quayfs_pmem::Backend;

/// The smallest volume, with room for the copies.
const SHAPE: Shape = Shape {
    mirror: 255,
    ..Shape::TINY
};

fn formatted(backend: Backend) -> (Recorder, Media) {
    let geometry = SHAPE.geometry();
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, backend);
    let media = Media::format(recorder.region(), recorder.device(), geometry);
    recorder.start_here();
    (recorder, media)
}

/// A mount that makes a file of this name, and its end.
fn live(media: &Media, backend: Backend, name: &str) {
    let durability = match backend {
        Backend::File => "noatime,durability=commit",
        _ => "noatime",
    };
    let fs = media.mount_quiet(&options(durability));
    let mode = S_IFREG | 0o644;
    let by = Caller::default();
    let ino = fs.mknod(by, ROOT, name.as_bytes(), mode, 0).unwrap().ino;
    fs.write(ino, 0, &vec![name.len() as u8; 2 * BLOCK], false)
        .unwrap();
    fs.shutdown().unwrap();
}

fn left(trace: &Trace) -> Vec<String> {
    let end = trace.points().last().unwrap();
    let left = trace.in_flight(end);
    left.iter().map(ToString::to_string).collect()
}

/// The table that counts, and the copy of it, if that is whole.
fn tables(image: &CrashImage) -> (Option<ConfigTable>, Option<ConfigTable>) {
    let region = image.region();
    let tables = COPIES.map(|off| ConfigTable::decode(&region.read_vec(off, BLOCK as u64)).ok());
    let copy = ConfigTable::decode(&image.device_block(BACKUP_BLOCK)).ok();
    (tables.into_iter().flatten().next(), copy)
}

/// How many images have a whole copy, and how many one that says something else.
fn compared(trace: &Trace) -> (usize, usize) {
    let (mut whole, mut wrong) = (0, 0);
    for image in trace.explore(&Budget::default()) {
        let (table, copy) = tables(&image);
        assert!(table.is_some(), "{image}");
        whole += usize::from(copy.is_some());
        wrong += usize::from(copy.is_some() && copy != table);
    }
    (whole, wrong)
}

#[test]
fn a_copy_never_says_another_table() {
    for backend in [Backend::Dax, Backend::File] {
        let (recorder, media) = formatted(backend);
        for label in ["one", "two"] {
            media
                .volume()
                .change_config(|config| assert!(config.set_label(label)))
                .unwrap();
        }
        let trace = recorder.trace();
        assert_eq!(left(&trace), Vec::<String>::new());
        let (whole, wrong) = compared(&trace);
        assert!(whole > 1, "{whole} copies");
        assert_eq!(wrong, 0, "of {whole}");
        // That is so because it is taken back in time.
        let place = trace
            .orderings()
            .into_iter()
            .find(|o| Place::of(*o).to_string().ends_with("backup.rs: take_back"))
            .expect("it is flushed");
        let (_, wrong) = compared(&trace.without(place));
        assert!(wrong > 0, "nothing notices that it is not");
    }
}

/// The tree of a volume in memory.
fn tree(media: &Media) -> String {
    let fs = media.mount_quiet(&options("noatime"));
    let tree = dump::dump(&fs, ROOT).expect("dump");
    fs.abandon();
    format!("{tree:?}")
}

#[test]
fn a_copy_never_says_another_superblock() {
    for backend in [Backend::Dax, Backend::File] {
        let (recorder, media) = formatted(backend);
        for name in ["a", "bc", "def"] {
            live(&media, backend, name);
            assert_eq!(left(&recorder.trace()), Vec::<String>::new(), "{name}");
        }
        let (mut used, mut all) = (0, 0);
        for image in recorder.trace().explore(&Budget::SMALL) {
            let of = |image: &CrashImage| Media {
                region: Arc::new(image.region()),
                device: Arc::new(image.device()),
            };
            all += 1;
            let lost = of(&image);
            let Some(page) = superblock(&lost.volume()) else {
                continue;
            };
            used += 1;
            lost.region.write(SHAPE.geometry().jsb_off, &page);
            assert_eq!(tree(&lost), tree(&of(&image)), "{image}");
        }
        assert!(used > 3 && used < all, "{used} of {all}");
    }
}
