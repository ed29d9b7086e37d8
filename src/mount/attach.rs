//! Making a mount: a connection first, the tree last.
//!
//! The file system is made without a place in the tree, served, and only then put onto its mount point. So whatever
//! fails before, a process that is killed or runs out of memory included, leaves no dead mount: the kernel drops a
//! mount that is nowhere with its last descriptor. Where that is not possible (through `fusermount3`, on kernels and in
//! sandboxes without fsopen(2)) the mount is in the tree from the beginning, and [`Pending`] takes it away again.

use quayfs_options::{AtimePolicy, MountOptions, Permissions};

use super::place::{Place, by_descriptor, device_of};
use super::superblock::Superblock;
use super::{AttachError, UnmountMode, fusermount, table};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest string that fsconfig(2) takes.
const STRING_MAX: usize = 255;
/// What the root of the file system is: a directory.
const ROOT_MODE: &str = "40000";

/// A mount that is being made. Dropped before [`Pending::finish`] it leaves nothing behind.
#[derive(Debug)]
pub struct Pending {
    mount: Mount,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nowhere in the tree: the mount, and the directory to put it on.
    Apart { tree: OwnedFd, onto: OwnedFd },
    /// In the tree already.
    InTree,
}

/// A connection to the kernel that is attached to the tree. Dropping it leaves the mount alone.
#[derive(Debug)]
pub struct Mount {
    place: Place,
    /// The device number of its file system, if it could be found out.
    device: Option<String>,
    /// It is in the tree, and not finished.
    half_made: bool,
}

impl Pending {
    /// Makes a file system to be mounted on `place`, and returns the connection to serve with it. The mount table shows
    /// `source`.
    ///
    /// # Errors
    /// [`AttachError::Target`], [`AttachError::Device`], [`AttachError::Refused`], [`AttachError::Helper`].
    pub fn new(
        source: &Path,
        place: Place,
        options: &MountOptions,
    ) -> Result<(Self, OwnedFd), AttachError> {
        let onto = place.to_mount_on()?;
        let name = &table::source(source, options);
        let refused = |e: Errno| AttachError::Refused {
            path: place.path().into(),
            why: e.to_string(),
        };
        let Some(device) = open_device()? else {
            return Self::by_helper(name, (place, &onto), options);
        };
        let apart = make_apart(name, &device, options).map_err(refused)?;
        if let Some(tree) = apart {
            let number = device_of(&tree).map_err(refused)?;
            let mount = Mount {
                place,
                device: Some(number),
                half_made: false,
            };
            let state = State::Apart { tree, onto };
            return Ok((Self { mount, state }, device));
        }
        let fstype = fstype(options);
        let data = kernel_data(&device, options);
        let path = by_descriptor(&onto);
        match rustix::mount::mount(name, &path, &fstype, flags(options), data.as_c_str()) {
            Ok(()) => Ok((Self::in_tree(place), device)),
            Err(Errno::PERM) => Self::by_helper(name, (place, &onto), options),
            Err(e) => Err(refused(e)),
        }
    }

    fn by_helper(
        name: &Path,
        (place, onto): (Place, &OwnedFd),
        options: &MountOptions,
    ) -> Result<(Self, OwnedFd), AttachError> {
        let device = fusermount::mount(name, &by_descriptor(onto), options)?;
        Ok((Self::in_tree(place), device))
    }

    fn in_tree(place: Place) -> Self {
        let device = place.device().ok();
        let mount = Mount {
            place,
            device,
            half_made: true,
        };
        Self {
            mount,
            state: State::InTree,
        }
    }

    /// The device number of the file system, as `MAJOR:MINOR`.
    pub fn device(&self) -> Option<&str> {
        self.mount.device.as_deref()
    }

    /// Lets the kernel read up to `bytes` ahead of sequential reads: by itself it takes the 128 KiB that it has for
    /// devices of which it knows nothing (`VM_READAHEAD_PAGES`). To be called once requests are served, as the kernel
    /// lowers the figure to what it has offered.
    ///
    /// # Errors
    /// Those of writing to `/sys/class/bdi`, which only root may.
    pub fn read_ahead(&self, bytes: u64) -> std::io::Result<()> {
        let device = self.device().ok_or(Errno::NOENT)?;
        let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
        std::fs::write(path, (bytes >> 10).to_string())
    }

    /// Puts the mount into the tree, where others find it: to be called when all is ready to serve them.
    ///
    /// # Errors
    /// [`AttachError::Refused`]; then nothing is mounted.
    pub fn finish(mut self) -> Result<Mount, AttachError> {
        if let State::Apart { tree, onto } = &self.state {
            let how =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(tree, c"", onto, c"", how).map_err(|e| AttachError::Refused {
                path: self.mount.place.path().into(),
                why: e.to_string(),
            })?;
        }
        self.mount.half_made = false;
        Ok(self.mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.half_made
            && let Err(e) = self.detach(UnmountMode::Force)
        {
            tracing::error!("{e}");
        }
    }
}

impl Mount {
    /// One that another process has made. `device`: the number of its file system.
    pub fn made_before(place: Place, device: Option<String>) -> Self {
        Self {
            place,
            device,
            half_made: false,
        }
    }

    /// The mount point.
    pub fn target(&self) -> &Path {
        self.place.path()
    }

    /// Its file system, which may be mounted in other places by now.
    pub fn superblock(&self) -> Option<Superblock> {
        self.device.as_deref().map(Superblock::with_device)
    }

    /// Takes the mount away. With [`UnmountMode::Normal`] the kernel writes dirty pages back first.
    ///
    /// # Errors
    /// [`AttachError::Busy`], [`AttachError::Detach`], [`AttachError::Helper`].
    pub fn detach(&self, mode: UnmountMode) -> Result<(), AttachError> {
        self.place.detach(mode, self.device.as_deref())
    }
}

/// The connection; `None` if this process may not open one.
fn open_device() -> Result<Option<OwnedFd>, AttachError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, c"/dev/fuse", flags, Mode::empty()) {
        Ok(device) => Ok(Some(device)),
        Err(Errno::ACCESS | Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(None),
        Err(e) => Err(AttachError::Device(e)),
    }
}

/// Makes the mount apart from the tree; `None` if that cannot be done here.
fn make_apart(
    name: &Path,
    device: &OwnedFd,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, Errno> {
    if name.as_os_str().len() > STRING_MAX {
        return Ok(None);
    }
    let fs = match fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(fs) => fs,
        Err(Errno::NOSYS | Errno::PERM) => return Ok(None),
        Err(e) => return Err(e),
    };
    let ids = (rustix::process::getuid(), rustix::process::getgid());
    fsconfig_set_string(&fs, c"source", name.as_os_str().as_bytes())?;
    fsconfig_set_string(&fs, c"fd", device.as_raw_fd().to_string())?;
    fsconfig_set_string(&fs, c"rootmode", ROOT_MODE)?;
    fsconfig_set_string(&fs, c"user_id", ids.0.as_raw().to_string())?;
    fsconfig_set_string(&fs, c"group_id", ids.1.as_raw().to_string())?;
    if let Some(subtype) = &options.subtype {
        fsconfig_set_string(&fs, c"subtype", subtype)?;
    }
    for (on, flag) in [
        (
            options.permissions == Permissions::Kernel,
            c"default_permissions",
        ),
        (options.allow_other, c"allow_other"),
        (options.read_only, c"ro"),
        (options.sync, c"sync"),
    ] {
        if on {
            fsconfig_set_flag(&fs, flag)?;
        }
    }
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options)).map(Some)
}

fn fstype(options: &MountOptions) -> String {
    match &options.subtype {
        Some(name) => format!("fuse.{name}"),
        None => "fuse".into(),
    }
}

fn kernel_data(device: &OwnedFd, options: &MountOptions) -> CString {
    let mut data = format!(
        "fd={},rootmode={ROOT_MODE},user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.permissions == Permissions::Kernel {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    CString::new(data).unwrap_or_default()
}

/// The flags of a mount as fsmount(2) has them.
fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = match options.atime {
        AtimePolicy::Relatime => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AtimePolicy::StrictAtime => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        AtimePolicy::NoAtime => MountAttrFlags::MOUNT_ATTR_NOATIME,
    };
    for (on, attribute) in [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (options.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (options.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (options.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (options.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (options.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ] {
        attributes.set(attribute, on);
    }
    attributes
}

/// The same as mount(2) has them.
pub(super) fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NODIRATIME, options.nodiratime);
    flags.set(MountFlags::NOSYMFOLLOW, options.nosymfollow);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags |= match options.atime {
        AtimePolicy::Relatime => MountFlags::RELATIME,
        AtimePolicy::StrictAtime => MountFlags::STRICTATIME,
        AtimePolicy::NoAtime => MountFlags::NOATIME,
    };
    flags
}
