//! Every structure of a volume as a value that is JSON or text ([`text()`]). Nothing is changed, and what is
//! damaged is said where it would have been: a dump is for looking into what a check has found.
//!
//! Logs are shown as they lie on the media. For the rest recovery runs on a private copy of the region first, as it would at
//! the next mount; where it cannot, what lies there is shown, and a note says so.

/// A value, or an object of names and values.
macro_rules! shown {
    ({ $($name:literal: $value:expr),* $(,)? }) => {
        $crate::dump::Shown::Fields(vec![$(($name, $crate::dump::Shown::from($value))),*])
    };
    ($value:expr) => {
        $crate::dump::Shown::from($value)
    };
}

mod logs;
mod map;
mod nodes;
mod superblock;
mod text;
mod value;

use std::path::Path;

use quayfs_fs::recovery;
use quayfs_fs::volume::{Access, Opening, SETTLING, Volume, VolumeError};
use quayfs_layout::Ino;
use quayfs_options::MountOptions;

use super::media::Media;

pub use text::text;
use value::Fields;
pub use value::Shown;

/// What is dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Configuration table, geometry, header of the data device, journal superblock.
    Superblock,
    /// Records that have not been digested, lane by lane.
    Records,
    /// Slots that hold blocks.
    Slots,
    /// Heads of the batch log, and the batches that count.
    Batches,
    /// The page-table log.
    TableLog,
    /// The page table, a line for each run of entries that follow each other.
    PageTable,
    /// The node address table, with what each page is.
    Nodes,
    /// What is free: blocks, inodes, node ids, node pages.
    Free,
    /// A node page, by its id.
    Node(u32),
    /// An inode, by its number, with its extents.
    Inode(Ino),
    /// The entries of a directory, by its inode number.
    Directory(Ino),
}

impl Structure {
    /// Whether it is shown as it lies on the media, not as recovery would leave it.
    fn is_raw(self) -> bool {
        matches!(
            self,
            Self::Superblock | Self::Records | Self::Slots | Self::Batches | Self::TableLog
        )
    }
}

/// Which part of a long structure: LBNs, node ids, entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first one that is looked at.
    pub first: u64,
    /// How many lines there are at most. If there would be more, `next` says where to go on.
    pub lines: usize,
}

/// Opens the volume at a path, which must not be mounted for writing, on a private copy of its region.
///
/// # Errors
/// As of [`Volume::open`]; a damaged header of the data device is none.
pub fn open(path: &Path) -> Result<Volume, VolumeError> {
    let how = Opening {
        vouch: |_, _, _| true,
        lenient: true,
        ..Opening::new(Access::ReadOnly, SETTLING)
    };
    Volume::open_with(path, how)
}

/// Shows a structure of a volume whose region is a private copy: recovery may change that.
pub fn dump(volume: &Volume, what: Structure, window: Window) -> Shown {
    let note = match what.is_raw() {
        true => None,
        false => replay(volume).err(),
    };
    let media = Media::of(volume);
    let mut fields = match what {
        Structure::Superblock => superblock::all(&media),
        Structure::Records => logs::records(&media, window),
        Structure::Slots => logs::slots(&media, window),
        Structure::Batches => logs::batches(&media, window),
        Structure::TableLog => logs::table_log(&media, window),
        Structure::PageTable => map::runs(&media, window),
        Structure::Nodes => nodes::table(&media, window),
        Structure::Free => map::free(&media, window),
        Structure::Node(id) => nodes::node(&media, id),
        Structure::Inode(ino) => nodes::inode(&media, ino),
        Structure::Directory(ino) => nodes::directory(&media, ino, window),
    };
    if let Some(note) = note {
        fields.insert(0, ("note", shown!(note)));
    }
    fields.insert(0, ("volume", shown!(volume.path().display().to_string())));
    Shown::Fields(fields)
}

/// Recovers the copy, as the next mount would.
fn replay(volume: &Volume) -> Result<(), String> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    match recovery::recover(volume, &options) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!(
            "the logs could not be replayed, so this is what lies on the media: {e}"
        )),
    }
}

/// The lines of a [`Window`], and where to go on if there are more.
struct Lines {
    window: Window,
    lines: Vec<Shown>,
    next: Option<u64>,
}

impl Lines {
    fn new(window: Window) -> Self {
        Self {
            window,
            lines: Vec::new(),
            next: None,
        }
    }

    /// Takes a line about number `n`, unless there is no more room; whether there was.
    fn push(&mut self, n: u64, line: Shown) -> bool {
        if n < self.window.first {
            return true;
        }
        if self.lines.len() == self.window.lines {
            self.next = self.next.or(Some(n));
            return false;
        }
        self.lines.push(line);
        true
    }

    fn is_full(&self) -> bool {
        self.next.is_some()
    }

    /// Adds them to some fields.
    fn finish(self, name: &'static str, fields: &mut Fields) {
        fields.push((name, Shown::List(self.lines)));
        if let Some(next) = self.next {
            fields.push(("next", shown!(next)));
        }
    }
}
