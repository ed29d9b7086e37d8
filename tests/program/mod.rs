//! Running the program as a user does: by its binary, its exit codes and what it prints.

#![allow(dead_code)]

pub mod doomed;
pub mod namespace;
mod run;
mod start;

pub use run::*;
pub use start::Start;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use tempfile::TempDir;

/// The binary under test.
pub const QUAYFS: &str = env!("CARGO_BIN_EXE_quayfs");
/// What its messages begin with.
pub const NAME: &str = "quayfs";

/// Runs the program. What it mounts it serves by the transport in `QUAYFS_TEST_TRANSPORT`, unless its
/// options name one.
pub fn quayfs<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let mut args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    args.extend(transport(&args));
    named(Path::new(QUAYFS), args)
}

/// The options that choose the transport of a mount, as the environment has it.
pub fn transport(args: &[OsString]) -> Vec<OsString> {
    let named = |a: &OsString| a.to_string_lossy().contains("transport=");
    match std::env::var("QUAYFS_TEST_TRANSPORT") {
        Ok(name) if args[0] == "mount" && !args.iter().any(named) => {
            vec!["-o".into(), format!("transport={name}").into()]
        }
        _ => Vec::new(),
    }
}

/// Runs the program under another name.
pub fn named<S: AsRef<OsStr>>(name: &Path, args: impl IntoIterator<Item = S>) -> Run {
    let args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let helper = name.file_name().unwrap_or_default().to_string_lossy();
    let unmounts = helper.starts_with("umount") || args.first().is_some_and(|a| a == "umount");
    let _alone = unmounts.then(namespace::no_copies);
    Command::new(name)
        .args(args)
        .capture()
        .expect("the binary runs")
        .into()
}

/// A directory with a small volume, and room for links to the program.
pub struct Scene {
    dir: TempDir,
}

impl Scene {
    /// Makes a volume of 32 MiB of pmem region and 128 MiB of data.
    #[track_caller]
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// As [`Scene::new`], on a medium where a flush costs nothing if there is one.
    #[track_caller]
    pub fn in_memory() -> Self {
        Self::with_data("128M")
    }

    /// As [`Scene::in_memory`], below a directory that every user may pass.
    #[track_caller]
    pub fn open_to_all() -> Self {
        let scene = Self::in_memory();
        std::fs::set_permissions(scene.dir(), Permissions::from_mode(0o755)).unwrap();
        scene
    }

    /// As [`Scene::in_memory`], with this much data.
    #[track_caller]
    pub fn with_data(size: &str) -> Self {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        };
        Self::sized(dir.unwrap(), size)
    }

    #[track_caller]
    fn at(dir: TempDir) -> Self {
        Self::sized(dir, "128M")
    }

    #[track_caller]
    fn sized(dir: TempDir, data: &str) -> Self {
        let scene = Self { dir };
        std::fs::create_dir(scene.mnt()).unwrap();
        let size = ["--pmem-size", "32M", "--data-size", data, "--sparse"];
        let vol = scene.vol();
        quayfs(
            ["mkfs".as_ref(), vol.as_os_str()]
                .into_iter()
                .chain(size.map(OsStr::new)),
        )
        .ok();
        scene
    }

    /// The directory that everything is in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The volume.
    pub fn vol(&self) -> PathBuf {
        self.dir().join("vol")
    }

    /// The mount point.
    pub fn mnt(&self) -> PathBuf {
        self.dir().join("mnt")
    }

    /// The program under the name of a helper.
    pub fn helper(&self, name: &str) -> PathBuf {
        let link = self.dir().join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(QUAYFS, &link).unwrap();
        }
        link
    }
}

/// Copies the program, for users who may not go where it is. In a process of its own: else a program that another test
/// is starting meanwhile would have the copy open for writing, and such a file cannot be run.
#[track_caller]
pub fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(QUAYFS).arg(to).finish();
    assert!(copied.expect("cp runs").success());
}

/// A mount that goes away with the test, whatever its end.
pub struct Mounted(pub Scene);

impl Mounted {
    /// Mounts a new volume.
    #[track_caller]
    pub fn new(options: &str) -> Self {
        Self::on(Scene::new(), options)
    }

    /// Mounts this one.
    #[track_caller]
    pub fn on(scene: Scene, options: &str) -> Self {
        let mounted = Self(scene);
        mounted.mount(options);
        mounted
    }

    /// The mount point.
    pub fn mnt(&self) -> PathBuf {
        self.0.mnt()
    }

    /// Mounts it again.
    #[track_caller]
    pub fn mount(&self, options: &str) {
        let (vol, mnt) = (self.0.vol(), self.0.mnt());
        quayfs([
            "mount".as_ref(),
            vol.as_os_str(),
            mnt.as_os_str(),
            "-o".as_ref(),
            options.as_ref(),
        ])
        .ok();
    }

    /// What the mount says of itself.
    #[track_caller]
    pub fn info(&self) -> serde_json::Value {
        let mnt = self.0.mnt();
        let text = quayfs(["info".as_ref(), mnt.as_os_str(), "--json".as_ref()]).ok();
        serde_json::from_str(&text).unwrap()
    }

    /// Unmounts it.
    #[track_caller]
    pub fn umount(&self) {
        let mnt = self.0.mnt();
        quayfs(["umount".as_ref(), mnt.as_os_str()]).ok();
    }

    /// Asserts that nothing is wrong, in content neither.
    #[track_caller]
    pub fn fsck(&self) {
        let vol = self.0.vol();
        quayfs(["fsck".as_ref(), vol.as_os_str(), "--data".as_ref()]).ok();
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.0.vol().join("quayfs.log")).unwrap()
    }
}

/// Whether something is mounted on `target`.
fn is_mounted(target: &Path) -> bool {
    // Others may mount what has a name of any bytes.
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let mut mounts = table.lines().filter_map(|l| l.split(' ').nth(4));
    mounts.any(|mount| Path::new(mount) == target)
}

impl Mounted {
    /// Unmounts it, in use or not and whatever its daemon does.
    fn take_away(&self) {
        let mnt = self.0.mnt();
        if is_mounted(&mnt) {
            let _ = Command::new("umount").args(["-i", "-l"]).arg(mnt).finish();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.take_away();
    }
}

/// A call by user and group 65534. Takes root.
pub fn as_nobody<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    as_user(65534, call)
}

/// A call by this user and the group of the same number, in a thread of its own: privileges belong to
/// threads. Takes root.
pub fn as_user<T: Send>(id: u32, call: impl FnOnce() -> T + Send) -> T {
    let call = || {
        let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        call()
    };
    thread::scope(|scope| scope.spawn(call).join().unwrap())
}
