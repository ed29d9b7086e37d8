//! Why a volume cannot be opened.

use std::path::PathBuf;

use quayfs_blockdev::OpenError;
use quayfs_layout::config::ConfigError;
use quayfs_pmem::PmemError;

use super::parts;

/// Why a volume cannot be opened. Prints as one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// There is nothing of a volume.
    #[error("there is no volume at {}: check the path, and that what it lies on is attached and mounted", quayfs_shown::argument(.0))]
    Missing(PathBuf),
    /// What there is is no volume, or this user may not reach it.
    #[error("{}: {why}", path.display())]
    Unreachable {
        /// What was named, or one of the media.
        path: PathBuf,
        /// What is in the way, and what to do.
        why: String,
    },
    /// There is a volume, and not all of it.
    #[error("{}: {why}", path.display())]
    Incomplete {
        /// The volume, or one of its media.
        path: PathBuf,
        /// What is missing, and what to do.
        why: String,
    },
    /// A medium cannot be written; it can be opened for reading only.
    #[error("{} is write-protected ({why}): nothing can be changed", path.display())]
    WriteProtected {
        /// The medium.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Others have access to a medium ([`exposure`](super::exposure())).
    #[error("{}: {why}", path.display())]
    Exposed {
        /// The medium.
        path: PathBuf,
        /// The access that others have, and what to do.
        why: String,
    },
    /// The pmem region cannot be used.
    #[error(transparent)]
    Pmem(PmemError),
    /// The data device cannot be used.
    #[error("data device: {0}")]
    Device(String),
    /// Another process uses the volume.
    #[error("{}: in use by another process (already mounted?); `quayfs status {}` says more", quayfs_shown::argument(.0), quayfs_shown::argument(.0))]
    Busy(PathBuf),
    /// The daemon that died is not the last one that has used the volume: what it had stored belongs to what is there no
    /// longer.
    #[error("{}: it has been used, or made anew, since the last daemon of this mount died, so the mount ends", quayfs_shown::argument(.0))]
    Fenced(PathBuf),
    /// No configuration table is intact.
    #[error("{}: not a QuayFS pmem region: {why}", path.display())]
    Config {
        /// The region.
        path: PathBuf,
        /// What is wrong with the better copy.
        why: ConfigError,
    },
    /// No configuration table of the region is intact, and the copy on the data device is.
    #[error(
        "{}: both configuration tables at the beginning are damaged, and the copy beside the data is whole: \
         `quayfs fsck --repair {}` puts them back, and whatever else can be; not a byte has been changed yet",
        quayfs_shown::argument(.0), quayfs_shown::argument(.0)
    )]
    Beheaded(PathBuf),
    /// There is a copy of a configuration table, and it is not for a program to decide whether it is to be put back.
    #[error("{}: {why}", path.display())]
    Unclear {
        /// What was named.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// The media are not those that mkfs made, or not of one volume.
    #[error("{}: {why}", path.display())]
    Pairing {
        /// The region or the data device.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// What the volume takes for its data does not begin as such.
    #[error("{}: not a QuayFS data device: {why}", path.display())]
    Header {
        /// The data device.
        path: PathBuf,
        /// What is wrong with its header.
        why: ConfigError,
    },
    /// Made by a newer version.
    #[error(
        "the volume has features (mask {0:#x}) that this version does not know; use a newer one"
    )]
    Features(u64),
}

impl From<PmemError> for VolumeError {
    fn from(e: PmemError) -> Self {
        match e {
            PmemError::WriteProtected { path, why } => Self::WriteProtected { path, why },
            PmemError::Io { path, source, .. } if is_denied(&source) => Self::denied(path),
            e => Self::Pmem(e),
        }
    }
}

impl From<OpenError> for VolumeError {
    fn from(e: OpenError) -> Self {
        match e {
            OpenError::WriteProtected { path, why } => Self::WriteProtected { path, why },
            OpenError::Io { path, source } if is_denied(&source) => Self::denied(path),
            e => Self::Device(e.to_string()),
        }
    }
}

impl VolumeError {
    pub(super) fn denied(path: PathBuf) -> Self {
        let why = format!("permission denied to read {}", parts::passable_by(&path));
        Self::Unreachable { path, why }
    }
}

fn is_denied(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::PermissionDenied
}
