//! What mount(8) and umount(8) call: this program under the names `mount.quayfs`,
//! `mount.fuse.quayfs`, `umount.quayfs` and `umount.fuse.quayfs`.
//!
//! `mount.quayfs SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`,
//! `umount.quayfs TARGET [-nlfvr] [-N NAMESPACE] [-t TYPE]`

use quayfs_fs::volume::{DATA, PMEM};
use quayfs_options::{MountOptions, OptionError};

use super::exit::{Failure, MOUNT_USAGE};
use crate::mount::UnmountMode;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// The name that the process has which outlives the daemons of a mount.
pub const SUPERVISOR: &str = "quayfs-supervisor";

/// How mount(8) calls its helper.
pub const MOUNT_FORM: &str = "mount.quayfs VOLUME MOUNTPOINT [-sfnv] [-o OPT,...]";
/// How umount(8) calls its helper.
pub const UMOUNT_FORM: &str = "umount.quayfs MOUNTPOINT [-flnrv]";

/// What the name in `argv[0]` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The command line with subcommands.
    Quayfs,
    /// Helper of mount(8).
    Mount,
    /// Helper of umount(8).
    Umount,
    /// Helper of fsck(8).
    Fsck,
    /// Helper of mkfs(8).
    Mkfs,
    /// The process that outlives the daemons of a mount; its arguments are theirs.
    Supervisor,
}

impl Role {
    /// Decides by the last component of the program's path.
    pub fn of(argv0: &OsStr) -> Self {
        let name = Path::new(argv0)
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        if name == SUPERVISOR {
            return Self::Supervisor;
        }
        match name.split('.').next() {
            Some("mount") => Self::Mount,
            Some("umount") => Self::Umount,
            Some("fsck") => Self::Fsck,
            Some("mkfs") => Self::Mkfs,
            _ => Self::Quayfs,
        }
    }
}

/// Arguments of a helper call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Operands: source and target, or target.
    pub operands: Vec<PathBuf>,
    /// Values of `-o`.
    pub options: Vec<String>,
    /// `-s`: ignore unknown options.
    pub sloppy: bool,
    /// `-f`: of mount(8), check everything and mount nothing; of umount(8), force.
    pub fake: bool,
    /// `-v`: say what is done.
    pub verbose: bool,
    /// `-l` of umount(8): detach now, finish when it is no longer in use.
    pub lazy: bool,
}

impl Call {
    /// Reads the arguments after `argv[0]`.
    pub fn parse(role: Role, args: impl IntoIterator<Item = OsString>) -> Result<Self, Failure> {
        let usage = |why: String| Failure::new(MOUNT_USAGE, why);
        let mut call = Self::default();
        let mut args = args.into_iter();
        let (want, form) = match role {
            Role::Umount => (1, UMOUNT_FORM),
            _ => (2, MOUNT_FORM),
        };
        let form = || usage(format!("call it as `{form}`"));
        while let Some(arg) = args.next() {
            let flags = match arg.to_str() {
                Some("-h" | "--help") => return Err(form()),
                Some(text) if text.len() > 1 && text.starts_with('-') => &text[1..],
                _ => {
                    call.operands.push(arg.into());
                    continue;
                }
            };
            for (at, flag) in flags.char_indices() {
                match flag {
                    's' => call.sloppy = true,
                    'f' => call.fake = true,
                    'v' => call.verbose = true,
                    'l' => call.lazy = true,
                    'n' | 'r' | 'w' => {}
                    'o' | 't' | 'N' => {
                        let attached = &flags[at + 1..];
                        let value = match (attached.is_empty(), flag) {
                            (false, _) => attached.to_string(),
                            (true, _) => args
                                .next()
                                .and_then(|v| v.into_string().ok())
                                .ok_or_else(|| usage(format!("-{flag} needs a value")))?,
                        };
                        if flag == 'o' {
                            call.options.push(value);
                        }
                        break;
                    }
                    _ => return Err(usage(format!("unknown flag -{flag}: see mount(8)"))),
                }
            }
        }
        if call.operands.len() != want {
            return Err(form());
        }
        Ok(call)
    }

    /// How umount(8) wants it unmounted.
    pub fn mode(&self) -> UnmountMode {
        match (self.fake, self.lazy) {
            (true, _) => UnmountMode::Force,
            (false, true) => UnmountMode::Lazy,
            (false, false) => UnmountMode::Normal,
        }
    }

    /// Whether there is nothing to mount, and that is no failure: option `nofail`, as of other file systems.
    pub fn may_be_missing(&self) -> bool {
        let missing = |path: &Path| {
            path.metadata()
                .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        };
        // A part can be a link to a device.
        let part = |name: &str| self.operands.first().map(|volume| volume.join(name));
        let leads_nowhere = |part: PathBuf| part.is_symlink() && missing(&part);
        let mut words = self.options.iter().flat_map(|o| o.split(','));
        words.any(|word| word == "nofail")
            && (self.operands.first().is_some_and(|volume| missing(volume))
                || [PMEM, DATA].into_iter().filter_map(part).any(leads_nowhere))
    }

    /// Reads the mount options; with `-s` unknown ones are dropped.
    pub fn mount_options(&self) -> Result<MountOptions, OptionError> {
        self.known().map(|(_, options)| options)
    }

    /// The words that [`Call::mount_options`] reads.
    pub fn known_words(&self) -> Result<Vec<&str>, Failure> {
        let known = self.known().map_err(Failure::with(MOUNT_USAGE))?;
        Ok(known.0)
    }

    fn known(&self) -> Result<(Vec<&str>, MountOptions), OptionError> {
        let mut words: Vec<&str> = self.options.iter().flat_map(|o| o.split(',')).collect();
        loop {
            match MountOptions::parse(&words) {
                Err(OptionError::Unknown(unknown)) if self.sloppy => {
                    let before = words.len();
                    words.retain(|w| *w != unknown);
                    if words.len() == before {
                        return Err(OptionError::Unknown(unknown));
                    }
                }
                result => return result.map(|options| (words, options)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(role: Role, line: &str) -> Result<Call, Failure> {
        Call::parse(role, line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_name_decides() {
        for (name, role) in [
            ("quayfs", Role::Quayfs),
            ("/usr/local/bin/quayfs", Role::Quayfs),
            ("/sbin/mount.quayfs", Role::Mount),
            ("mount.fuse.quayfs", Role::Mount),
            ("/usr/sbin/umount.quayfs", Role::Umount),
            ("umount.fuse.quayfs", Role::Umount),
            ("/sbin/fsck.quayfs", Role::Fsck),
            ("/sbin/mkfs.quayfs", Role::Mkfs),
            ("", Role::Quayfs),
        ] {
            assert_eq!(Role::of(OsStr::new(name)), role, "{name}");
        }
    }

    #[test]
    fn a_volume_that_is_missing_fails_unless_it_may() {
        for (line, may) in [
            ("/no/such /m -o nofail", true),
            ("/no/such /m -o rw,nofail", true),
            ("/no/such /m -o rw", false),
            ("/ /m -o nofail", false),
        ] {
            assert_eq!(
                call(Role::Mount, line).unwrap().may_be_missing(),
                may,
                "{line}"
            );
        }
    }

    #[test]
    fn help_is_how_to_call_it() {
        let asked = call(Role::Umount, "--help").unwrap_err();
        assert!(asked.line.contains(UMOUNT_FORM), "{asked:?}");
    }

    #[test]
    fn mount8_is_understood() {
        let c = call(Role::Mount, "/v /m -o rw,noatime -v").unwrap();
        assert_eq!(c.operands, [PathBuf::from("/v"), PathBuf::from("/m")]);
        assert_eq!(c.options, ["rw,noatime"]);
        assert!(c.verbose && !c.fake);
        let c = call(Role::Mount, "/v /m -sfn -oro -t fuse.quayfs -o sync").unwrap();
        assert_eq!(c.options, ["ro", "sync"]);
        assert!(c.sloppy && c.fake);
        assert!(c.mount_options().unwrap().read_only);
        let c = call(Role::Umount, "/m -l -t quayfs").unwrap();
        assert_eq!(c.mode(), UnmountMode::Lazy);
        assert_eq!(
            call(Role::Umount, "/m -f").unwrap().mode(),
            UnmountMode::Force
        );
        assert_eq!(
            call(Role::Umount, "/m -n").unwrap().mode(),
            UnmountMode::Normal
        );
    }

    #[test]
    fn wrong_calls_say_how() {
        for line in ["/v", "/v /m /x", "", "/v /m -o", "/v /m -Z"] {
            let failure = call(Role::Mount, line).unwrap_err();
            assert_eq!(failure.code, MOUNT_USAGE, "{line}");
        }
        assert!(
            call(Role::Umount, "/a /b")
                .unwrap_err()
                .line
                .contains("umount.quayfs")
        );
    }

    #[test]
    fn sloppy_drops_only_what_is_unknown() {
        let c = call(Role::Mount, "/v /m -s -o ro,turbo,boost,nodev").unwrap();
        let o = c.mount_options().unwrap();
        assert!(o.read_only && o.nodev);
        let c = call(Role::Mount, "/v /m -s -o data=fast").unwrap();
        assert!(c.mount_options().is_err());
        let c = call(Role::Mount, "/v /m -o turbo").unwrap();
        assert!(c.mount_options().is_err());
    }
}
