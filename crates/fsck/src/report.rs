//! What a check has found.

use quayfs_shown::count;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::damaged::DamagedFile;

/// Findings that are kept of one area; the rest is counted only.
pub const KEPT: usize = 256;

/// Findings about blocks that the text shows of one area where it names files that have lost blocks.
const SHOWN: usize = 10;

/// How bad a finding is. Either is damage: a crash alone leaves no finding at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is lost but a spare copy, or something is kept that is not needed.
    Warning,
    /// Something is lost, contradicts something else or cannot be used.
    Error,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Configuration table.
    Config,
    /// Header of the data device.
    Device,
    /// Journal superblock, record lanes, slot headers.
    Journal,
    /// Page table and its log.
    PageTable,
    /// Recovery itself.
    Recovery,
    /// Node address table.
    Nat,
    /// Node pages: checksum, kind, owner.
    Node,
    /// Allocation bitmaps.
    Bitmap,
    /// Inode images.
    Inode,
    /// Directory trees and entries.
    Directory,
    /// Link counts, parents, reachability.
    Links,
    /// Extents.
    Extents,
    /// Symbolic link targets.
    Symlink,
    /// Extended attributes.
    Xattr,
    /// Intent table.
    Intents,
    /// Quota table.
    Quota,
    /// Staged blocks.
    Staged,
    /// Content of blocks.
    Content,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "config",
            Self::Device => "device",
            Self::Journal => "journal",
            Self::PageTable => "page-table",
            Self::Recovery => "recovery",
            Self::Nat => "nat",
            Self::Node => "node",
            Self::Bitmap => "bitmap",
            Self::Inode => "inode",
            Self::Directory => "directory",
            Self::Links => "links",
            Self::Extents => "extents",
            Self::Symlink => "symlink",
            Self::Xattr => "xattr",
            Self::Intents => "intents",
            Self::Quota => "quota",
            Self::Staged => "staged",
            Self::Content => "content",
        })
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub area: Area,
    /// One line that names the inode, LBN, node or slot.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(
            f,
            "{severity}: {}: {}",
            self.area,
            quayfs_shown::text(&self.what)
        )
    }
}

/// What there is. Numbers of inodes and blocks are those after recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Whether the volume was unmounted cleanly.
    pub clean: bool,
    /// Log epoch of the last mount.
    pub epoch: u32,
    /// Highest digested sequence number on the medium.
    pub digested: u64,
    /// Slots committed at or below this are dead.
    pub retired: u64,
    /// Last durable commit (mode `commit`).
    pub commit_ts: u64,
    /// Records that the next mount replays.
    pub live_records: u64,
    /// Slots whose content is not on the data device.
    pub live_slots: u64,
    /// Blocks whose newest version is staged.
    pub staged: u64,
    /// Page-table entries that the next mount undoes.
    pub undone_entries: u64,
    /// Inodes of all types, orphans included.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
    /// Inodes without a name that wait to be freed.
    pub orphans: u64,
    /// Directory entries.
    pub entries: u64,
    /// Blocks that files own.
    pub blocks: u64,
    /// Blocks that files can own.
    pub blocks_total: u64,
    /// Free blocks that a zeroing pass has to clean before they are used.
    pub blocks_pending: u64,
    /// Users, groups and projects that have something, where users and groups are not counted.
    #[serde(skip)]
    pub quota_subjects: u64,
    /// Places of the quota table.
    #[serde(skip)]
    pub quota_places: u64,
    /// Node pages in use.
    pub node_pages: u64,
    /// Node pages that exist.
    pub node_pages_total: u64,
    /// Blocks on the data device that were read and verified.
    pub verified: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// The volume's directory.
    pub volume: String,
    /// Volume UUID.
    pub uuid: String,
    /// What is wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Findings that are not listed because there are too many of their area.
    pub unlisted: u64,
    /// How many of them are about what lies behind the end of a file.
    #[serde(skip)]
    pub(crate) behind_end: u64,
    /// How many findings, those not listed included, are about content of files that is lost. The others are about
    /// structure.
    #[serde(skip)]
    pub lost_findings: u64,
    /// Not even a mount for reading only is possible.
    #[serde(skip)]
    pub(crate) is_unmountable: bool,
    /// Every file that has lost something, by inode.
    pub files: Vec<DamagedFile>,
    /// What was not checked, and why.
    pub skipped: Vec<String>,
    /// What there is.
    pub statistics: Statistics,
}

impl FsckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// Number of findings, those not listed included.
    pub fn count(&self) -> u64 {
        self.findings.len() as u64 + self.unlisted
    }

    /// How many findings the next mount for writing puts right by itself: of a table that has two copies it writes one again.
    pub fn put_right_by_mount(&self) -> u64 {
        let by_mount = |f: &&Finding| f.area == Area::Config && f.severity == Severity::Warning;
        self.findings.iter().filter(by_mount).count() as u64
    }

    /// How its last mount has left the volume.
    fn state(&self) -> &'static str {
        match (self.statistics.clean, self.is_clean()) {
            (true, _) => "unmounted, nothing to recover",
            (false, true) => "not unmounted cleanly; the next mount recovers it",
            // What a mount makes of damage is not known.
            (false, false) => "not unmounted cleanly",
        }
    }

    /// What was found, line by line.
    fn tell_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut more = self.unlisted;
        let mut shown = [0; Area::Content as usize + 1];
        for finding in &self.findings {
            let about_blocks =
                matches!(finding.area, Area::Content | Area::Staged | Area::PageTable);
            let n = &mut shown[finding.area as usize];
            *n += 1;
            // The names of the files say more.
            if about_blocks && *n > SHOWN && !self.files.is_empty() {
                more += 1;
                continue;
            }
            writeln!(f, "{finding}")?;
        }
        if more > 0 {
            writeln!(f, "and {more} more")?;
        }
        for file in &self.files {
            writeln!(f, "{file}")?;
        }
        for what in &self.skipped {
            writeln!(f, "not checked: {}", quayfs_shown::text(what))?;
        }
        Ok(())
    }

    /// All but the number of findings. `state`: what to say of the volume as a whole.
    pub(crate) fn tell(&self, f: &mut fmt::Formatter<'_>, state: &str) -> fmt::Result {
        self.tell_findings(f)?;
        let s = &self.statistics;
        writeln!(f, "{}: {state}", quayfs_shown::text(&self.volume))?;
        writeln!(
            f,
            "{} ({}, {}, {}, {} special, {}), {}",
            count(s.inodes, "inode"),
            count(s.directories, "directory"),
            count(s.files, "file"),
            count(s.symlinks, "symbolic link"),
            s.special,
            count(s.orphans, "orphan"),
            count(s.entries, "entry")
        )?;
        writeln!(
            f,
            "{} of {} blocks in use, {} staged, {} of {} node pages, {} to replay",
            s.blocks,
            s.blocks_total,
            s.staged,
            s.node_pages,
            s.node_pages_total,
            count(s.live_records, "record")
        )?;
        if s.verified > 0 {
            writeln!(
                f,
                "{} of the data device verified",
                count(s.verified, "block")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for FsckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, self.state())?;
        match self.count() {
            0 => f.write_str("no damage found"),
            n => f.write_str(&count(n, "finding")),
        }
    }
}

/// Collects findings, a bounded number of each area.
#[derive(Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    counts: [u64; Area::Content as usize + 1],
    unlisted: u64,
}

impl Findings {
    pub(super) fn error(&mut self, area: Area, what: impl fmt::Display) {
        self.add(Severity::Error, area, what);
    }

    pub(super) fn warning(&mut self, area: Area, what: impl fmt::Display) {
        self.add(Severity::Warning, area, what);
    }

    pub(super) fn add(&mut self, severity: Severity, area: Area, what: impl fmt::Display) {
        let n = &mut self.counts[area as usize];
        *n += 1;
        if *n > KEPT as u64 {
            self.unlisted += 1;
            return;
        }
        self.list.push(Finding {
            severity,
            area,
            what: what.to_string(),
        });
    }

    /// The same is wrong with each of these. Only those that are listed are put into words.
    pub(super) fn errors(&mut self, area: Area, all: Range<u64>, what: impl Fn(u64) -> String) {
        let room = (KEPT as u64).saturating_sub(self.counts[area as usize]);
        let listed = all.end.min(all.start.saturating_add(room));
        for n in all.start..listed {
            self.error(area, what(n));
        }
        self.more(all.end - listed);
    }

    /// There are `n` more, which were not looked at one by one.
    pub(super) fn more(&mut self, n: u64) {
        self.unlisted += n;
    }

    pub(super) fn finish(self) -> (Vec<Finding>, u64) {
        (self.list, self.unlisted)
    }
}
