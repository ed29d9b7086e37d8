//! What rename refuses, as rename(2) has it, and that everything is where it was then.

use super::*;

const NO_REPLACE: RenameFlags = RenameFlags {
    no_replace: true,
    ..PLAIN
};
const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..PLAIN
};

#[test]
fn a_refused_rename_changes_nothing() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = |parent, name: &str| {
        let made = fs.mkdir(USER, parent, name.as_bytes(), 0o755);
        made.unwrap().ino
    };
    let (empty, other, full) = (dir(ROOT, "empty"), dir(ROOT, "other"), dir(ROOT, "full"));
    let inner = dir(full, "inner");
    let plain = file(&fs, ROOT, "file");
    let ino = |dir, name: &str| fs.lookup(dir, name.as_bytes()).unwrap().ino;
    for ((old, name), (new, new_name), flags, why) in [
        ((ROOT, "empty"), (ROOT, "full"), PLAIN, FsError::NotEmpty),
        ((full, "inner"), (ROOT, "full"), PLAIN, FsError::NotEmpty),
        ((ROOT, "empty"), (ROOT, "file"), PLAIN, FsError::NotDir),
        ((ROOT, "file"), (ROOT, "empty"), PLAIN, FsError::IsDir),
        ((ROOT, "file"), (ROOT, "full"), PLAIN, FsError::IsDir),
        ((ROOT, "full"), (inner, "below"), PLAIN, FsError::Invalid),
        ((ROOT, "full"), (full, "inner"), EXCHANGE, FsError::Invalid),
        ((full, "inner"), (ROOT, "full"), EXCHANGE, FsError::Invalid),
        ((ROOT, "none"), (ROOT, "file"), PLAIN, FsError::NoEntry),
        ((ROOT, "file"), (ROOT, "none"), EXCHANGE, FsError::NoEntry),
        (
            (ROOT, "empty"),
            (ROOT, "other"),
            NO_REPLACE,
            FsError::Exists,
        ),
    ] {
        let refused = fs.rename((old, name.as_bytes()), (new, new_name.as_bytes()), flags);
        assert_eq!(refused, Err(why), "{name} to {new_name}");
        let names = ["empty", "other", "full", "file"].map(|name| ino(ROOT, name));
        assert_eq!(names, [empty, other, full, plain], "{name} to {new_name}");
        assert_eq!(ino(full, "inner"), inner);
    }
    let gone = dir(ROOT, "gone");
    fs.rename((ROOT, b"other"), (ROOT, b"gone"), PLAIN).unwrap();
    assert_eq!(ino(ROOT, "gone"), other);
    fs.forget(gone, 1);
    disk.ends(fs);
}
