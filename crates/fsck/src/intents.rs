//! The intent table.

use std::collections::HashSet;

use quayfs_fs::attr::dirent_kind;
use quayfs_layout::inode::S_IFREG;
use quayfs_layout::intent::{Intent, IntentKind, PER_PAGE, SIZE};
use quayfs_layout::node::HEADER;

use super::pages::{Got, Pages};
use super::table::{Status, Table};
use super::{Area, Check};

/// Checks every intent and notes it at its inode.
pub(super) fn check(pages: &Pages<'_>, table: &mut Table, c: &mut Check) {
    let g = &pages.media.geo;
    let mut seen = HashSet::new();
    let mut gap = false;
    for page in 0..g.intent_pages {
        let id = g.intent_base + page;
        let bytes = match pages.read(id as u32) {
            Got::Page(bytes) => bytes,
            Got::Damaged => continue,
            Got::Missing => {
                gap = true;
                continue;
            }
        };
        if gap {
            // The table is read up to the first page that does not exist.
            let what = format_args!("node {id}: the intent page before it does not exist");
            c.findings.error(Area::Intents, what);
        }
        for i in 0..PER_PAGE {
            let at = HEADER + i * SIZE;
            let slot = page as usize * PER_PAGE + i;
            match Intent::decode(&bytes[at..at + SIZE]) {
                Ok(None) => {}
                Ok(Some(intent)) => {
                    let verdict = match seen.insert((intent.ino, intent.kind as u64)) {
                        true => one(intent, table),
                        false => Err("a second one of this kind"),
                    };
                    if let Err(why) = verdict {
                        let Intent { ino, kind } = intent;
                        let what = format_args!("intent {slot}, {kind:?} of inode {ino}: {why}");
                        c.findings.error(Area::Intents, what);
                    }
                }
                Err(e) => {
                    c.findings
                        .error(Area::Intents, format_args!("intent {slot}: {e}"));
                }
            }
        }
    }
}

fn one(intent: Intent, table: &mut Table) -> Result<(), &'static str> {
    let known = match table.status(intent.ino) {
        Status::Unknown => return Ok(()),
        Status::Free => return Err("the inode does not exist"),
        Status::Live(known) => known,
    };
    match intent.kind {
        IntentKind::Orphan if known.nlink > 0 => return Err("the inode has a name"),
        IntentKind::Truncate if known.kind != dirent_kind(S_IFREG) => {
            return Err("the inode is not a regular file");
        }
        _ => {}
    }
    table.note(intent.ino, |k| match intent.kind {
        IntentKind::Orphan => k.orphan = true,
        IntentKind::Truncate => k.truncate = true,
    });
    Ok(())
}
