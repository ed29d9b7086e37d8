//! What a repair has done.

use quayfs_shown::count;
use std::fmt;

use serde::Serialize;

use quayfs_layout::Ino;
use quayfs_layout::node::INODES_PER_PAGE;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Area, Finding, FsckReport, KEPT};

/// How a repair ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing was wrong, and nothing has been changed.
    #[default]
    Clean,
    /// Everything that was wrong has been put right, as far as it could be.
    Repaired,
    /// Something is still wrong.
    Left,
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    /// What it was about.
    pub area: Area,
    /// One line.
    pub what: String,
    /// The file it concerns, if it concerns one that has a name.
    pub path: Option<String>,
    #[serde(skip)]
    ino: Option<Ino>,
    /// What is meant has this name in that directory.
    #[serde(skip)]
    name: Option<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = quayfs_shown::text(&self.what);
        match &self.path {
            Some(path) => write!(f, "{}: {}: {what}", self.area, quayfs_shown::text(path)),
            None => write!(f, "{}: {what}", self.area),
        }
    }
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Number of findings before.
    pub found: u64,
    /// What was done, in order. All that concerns a file, and of the rest the first [`KEPT`] things of each area.
    pub done: Vec<Done>,
    /// Things done that are not listed.
    pub unlisted: u64,
    /// What was not done, and why.
    pub notes: Vec<String>,
    /// Blocks of files that are lost: reads of them fail from now on.
    pub lost_blocks: u64,
    /// Blocks of files that were recognized by checksums which may be those of deleted files.
    pub uncertain_blocks: u64,
    /// Blocks that may show an older version: of a slot that is lost nothing says which block it had, if any; what was
    /// staged before commits were lost with the batch log may have been written again since.
    pub older_blocks: u64,
    /// Operations that were committed, or may have been, and are dropped or gone.
    pub lost_operations: u64,
    /// Whether commits are lost that only the batch log had, or may be.
    pub lost_commits: bool,
    /// Files that have holes where they had blocks, and read as zeros there.
    pub holed_files: u64,
    /// Files that have lost their extended attributes.
    pub lost_attributes: u64,
    /// Pages of the quota table whose limits are lost.
    pub lost_limits: u64,
    /// Inodes that are lost. Of a page of the inode table all count, since nothing says which ones were in use.
    pub lost_inodes: u64,
    /// Blocks that were in use and are freed, since nothing says any more which files had them.
    pub unnamed_blocks: u64,
    /// Files and directories without a name that are in `/lost+found` now.
    pub rescued: u64,
    /// The check after the repair.
    pub check: FsckReport,
}

impl RepairReport {
    /// Takes over what a pass has done.
    pub(super) fn take(&mut self, log: &mut Journal) {
        self.done.append(&mut log.done);
        self.unlisted += log.unlisted;
        self.lost_blocks += log.lost_blocks;
        self.uncertain_blocks += log.uncertain_blocks;
        self.older_blocks += log.older_blocks;
        self.lost_operations += log.lost_operations;
        self.lost_commits |= log.lost_commits;
        self.holed_files += std::mem::take(&mut log.holed).len() as u64;
        self.lost_attributes += log.lost_attributes;
        self.lost_limits += log.lost_limits;
        self.lost_inodes += log.lost_inodes;
        self.unnamed_blocks += log.unnamed_blocks;
        self.rescued += log.rescued;
        for note in std::mem::take(&mut log.notes) {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Something was put right before anything else could be looked at.
    pub(super) fn done_before(&mut self, area: Area, what: &str) {
        self.found += 1;
        if self.outcome == Outcome::Clean {
            self.outcome = Outcome::Repaired;
        }
        let first = Done {
            area,
            what: what.into(),
            path: None,
            ino: None,
            name: None,
        };
        self.done.insert(0, first);
    }

    /// What the repair could not keep or could not place; `None` if there is nothing of that.
    pub fn losses(&self) -> Option<String> {
        let some = |n: u64, noun: &str, state: &str| {
            let verb = if n == 1 { "is" } else { "are" };
            (n > 0).then(|| format!("{} {verb} {state}", count(n, noun)))
        };
        let blocks = some(self.lost_blocks, "block", "lost");
        let uncertain = some(self.uncertain_blocks, "block", "uncertain");
        // Of a page of the inode table all count, those that were free too.
        let lost = some(self.lost_inodes, "inode", "lost").map(|n| format!("up to {n}"));
        let unnamed = some(
            self.unnamed_blocks,
            "block",
            "freed that no file has any more",
        );
        let rescued = some(self.rescued, "file", "in /lost+found");
        let older = (self.older_blocks > 0).then(|| {
            format!(
                "up to {} may show older content",
                count(self.older_blocks, "block")
            )
        });
        let operations = some(self.lost_operations, "operation", "dropped");
        let commits =
            (self.lost_commits).then(|| "commits that only the batch log had are lost".to_string());
        let holed = some(self.holed_files, "file", "with holes where blocks were");
        let bare = "without extended attributes";
        let bare = some(self.lost_attributes, "file", bare);
        let limits = some(self.lost_limits, "quota page", "without limits");
        let all: Vec<String> = [
            commits, operations, blocks, uncertain, older, holed, bare, limits, lost, unnamed,
            rescued,
        ]
        .into_iter()
        .flatten()
        .collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Whether files are lost, or may be: no later check finds anything of them.
    pub fn has_lost_files(&self) -> bool {
        self.lost_inodes > 0 || self.unnamed_blocks > 0
    }
}

/// Things done of one kind, that concern no file, of which the text has each; of more it has the number.
const EACH: usize = 4;

/// What is the same of things of one kind: all but the numbers.
fn kind(done: &Done) -> (Area, String) {
    (done.area, quayfs_shown::without_numbers(&done.what))
}

impl RepairReport {
    /// What was done and what was not, line by line.
    fn tell_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds = FxHashMap::<_, usize>::default();
        let mut summed_up = Vec::new();
        for done in &self.done {
            let kind = kind(done);
            let n = kinds.entry(kind.clone()).or_default();
            *n += usize::from(done.path.is_none());
            match *n > EACH && done.path.is_none() {
                true if *n == EACH + 1 => summed_up.push(kind),
                true => {}
                false => writeln!(f, "repaired: {done}")?,
            }
        }
        for kind in summed_up {
            let more = kinds[&kind] - EACH;
            let (area, words) = kind;
            let words = quayfs_shown::text(&words);
            writeln!(f, "repaired: {area}: {words}: {more} more of these")?;
        }
        if self.unlisted > 0 {
            writeln!(f, "repaired: and {} more", self.unlisted)?;
        }
        for note in &self.notes {
            writeln!(f, "not repaired: {}", quayfs_shown::text(note))?;
        }
        Ok(())
    }
}

impl RepairReport {
    fn tell_of_lost_files(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.has_lost_files() {
            true => {
                f.write_str("\nfiles are lost: compare with a backup, and put back what is missing")
            }
            false => Ok(()),
        }
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell_work(f)?;
        match self.outcome {
            Outcome::Clean => write!(f, "{}", self.check),
            Outcome::Repaired => {
                self.check.tell(f, "repaired; it can be mounted")?;
                let found = count(self.found, "finding");
                match self.losses() {
                    Some(losses) => write!(f, "{found}, repaired with losses: {losses}")?,
                    None => write!(f, "{found}, all repaired")?,
                }
                if self.lost_blocks > 0 {
                    f.write_str(
                        "\nwhat these blocks had is nowhere else: write their files anew, from a backup, or remove them",
                    )?;
                }
                self.tell_of_lost_files(f)
            }
            Outcome::Left => {
                let (found, left) = (self.found, self.check.count());
                let hidden = match left > found {
                    true => ", with what they had hidden",
                    false => "",
                };
                let found = count(found, "finding");
                let state = match self.check.statistics.clean {
                    true => "unmounted, nothing to recover",
                    false => "not unmounted cleanly",
                };
                self.check.tell(f, state)?;
                write!(f, "{found}; {left} left after the repair{hidden}")?;
                if let Some(losses) = self.losses() {
                    write!(f, "\nlosses: {losses}")?;
                }
                let refuses = |finding: &Finding| finding.area == Area::Recovery;
                self.tell_of_lost_files(f)?;
                if self.check.is_unmountable {
                    f.write_str("\nit cannot be mounted: make a new volume from a backup")?;
                } else if self.check.findings.iter().any(refuses) {
                    f.write_str(
                        "\nit cannot be mounted for writing: make a new volume from a backup; `mount -o ro` may still show some files",
                    )?;
                }
                let is_content = |finding: &Finding| finding.area == Area::Content;
                let findings = &self.check.findings;
                if !findings.is_empty() && findings.iter().all(is_content) {
                    f.write_str(
                        "\nwhat these files have lost is nowhere else: write them anew, from a backup, or remove them",
                    )?;
                }
                if self.uncertain_blocks > 0 {
                    f.write_str(
                        "\nlook whether the files with uncertain blocks have what they should: what they never wrote may be what a deleted file \
                         had; write them anew, or remove them",
                    )?;
                }
                Ok(())
            }
        }
    }
}

/// Collects what is done.
#[derive(Default)]
pub(super) struct Journal {
    pub(super) done: Vec<Done>,
    pub(super) unlisted: u64,
    /// What was not done, and why.
    pub(super) notes: Vec<String>,
    /// Blocks of files that read as errors from now on.
    pub(super) lost_blocks: u64,
    /// Blocks of files that may be those of deleted ones.
    pub(super) uncertain_blocks: u64,
    /// [`RepairReport::older_blocks`].
    pub(super) older_blocks: u64,
    /// [`RepairReport::lost_operations`].
    pub(super) lost_operations: u64,
    /// [`RepairReport::lost_commits`].
    pub(super) lost_commits: bool,
    /// Files with holes where they had blocks.
    pub(super) holed: FxHashSet<Ino>,
    /// Files without their extended attributes.
    pub(super) lost_attributes: u64,
    /// Pages of limits.
    pub(super) lost_limits: u64,
    /// Inodes that are lost.
    pub(super) lost_inodes: u64,
    /// Pages of the inode table, and inodes in others, that are in this number.
    lost_pages: FxHashSet<u64>,
    lost_alone: FxHashSet<Ino>,
    /// Something is lost that may have said what belongs to which file.
    pub(super) gave_up_nodes: bool,
    /// Blocks in use that nothing names any more.
    pub(super) unnamed_blocks: u64,
    /// What has gone to `/lost+found`.
    pub(super) rescued: u64,
    /// Things done that concern no file, by area.
    counts: FxHashMap<Area, usize>,
}

impl Journal {
    pub(super) fn add(&mut self, area: Area, what: impl fmt::Display) {
        self.push(area, None, what);
    }

    /// Something that concerns an inode, whose name is looked up at the end.
    pub(super) fn of(&mut self, area: Area, ino: Ino, what: impl fmt::Display) {
        self.push(area, Some(ino), what);
    }

    /// Something that concerns what had this path.
    pub(super) fn at(&mut self, area: Area, path: String, what: impl fmt::Display) {
        self.done.push(Done {
            area,
            what: what.to_string(),
            path: Some(path),
            ino: None,
            name: None,
        });
    }

    /// Something that concerns a name in a directory, whose path is looked up at the end.
    pub(super) fn below(&mut self, area: Area, dir: Ino, name: &[u8], what: impl fmt::Display) {
        self.done.push(Done {
            area,
            what: what.to_string(),
            path: None,
            ino: Some(dir),
            name: Some(String::from_utf8_lossy(name).into_owned()),
        });
    }

    /// Page `n` of the inode table is lost.
    pub(super) fn lose_page(&mut self, n: u64) {
        if self.lost_pages.insert(n) {
            self.lost_inodes += INODES_PER_PAGE;
        }
    }

    /// An inode is lost, if it is not among those of a page.
    pub(super) fn lose(&mut self, ino: Ino) {
        let page = ino / INODES_PER_PAGE;
        if !self.lost_pages.contains(&page) && self.lost_alone.insert(ino) {
            self.lost_inodes += 1;
        }
    }

    /// Something is not done. That alone is no reason for another pass.
    pub(super) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    fn push(&mut self, area: Area, ino: Option<Ino>, what: impl fmt::Display) {
        if ino.is_none() {
            let n = self.counts.entry(area).or_default();
            *n += 1;
            if *n > KEPT {
                self.unlisted += 1;
                return;
            }
        }
        self.done.push(Done {
            area,
            what: what.to_string(),
            path: None,
            ino,
            name: None,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Gives inodes their names.
    pub(super) fn resolve(&mut self, path: impl Fn(Ino) -> Option<String>) {
        for done in self.done.iter_mut().filter(|d| d.path.is_none()) {
            let Some(ino) = done.ino else {
                continue;
            };
            let found = path(ino);
            done.path = Some(match (&done.name, found) {
                (None, found) => found.unwrap_or_else(|| format!("inode {ino}")),
                (Some(name), None) => format!("#{ino}/{name}"),
                (Some(name), Some(dir)) => format!("{}/{name}", dir.trim_end_matches('/')),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_stay_on_their_line() {
        let mut journal = Journal::default();
        journal.of(Area::Directory, 7, "entry \"a\nb\" dropped");
        journal.resolve(|_| Some("/x\nrepaired: forged\x1b[2J".into()));
        let text = journal.done[0].to_string();
        let want = r#"directory: /x\nrepaired: forged\x1b[2J: entry "a\nb" dropped"#;
        assert_eq!(text, want);
    }
    #[test]
    fn what_differs_in_numbers_only_is_summed_up() {
        let mut journal = Journal::default();
        for n in 0..300u64 {
            let what = format!("LBN {n} has physical block {} again", n + 1000);
            journal.add(Area::PageTable, what);
            journal.of(Area::Content, n, format_args!("block {n} is healed"));
        }
        journal.add(Area::PageTable, "the log is closed");
        journal.resolve(|ino| Some(format!("/{ino}")));
        let mut report = RepairReport {
            outcome: Outcome::Repaired,
            ..RepairReport::default()
        };
        report.take(&mut journal);
        let text = report.to_string();
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("repaired: page-table: LBN "), EACH + 1, "{text}");
        let sum = "repaired: page-table: LBN N has physical block N again: 252 more of these\n";
        assert!(text.contains(sum), "{text}");
        // Of which there is no list either.
        assert!(text.contains("repaired: and 45 more\n"), "{text}");
        assert_eq!(count("repaired: content: /"), 300, "all files are named");
    }
}
