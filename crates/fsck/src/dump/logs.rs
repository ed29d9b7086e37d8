//! Record lanes, slots, batch log and page-table log, as they lie on the media.

use quayfs_fs::recovery::{batch_log, journal_geometry};
use quayfs_journal::{Journal, Record, Scan};
use quayfs_layout::batch::{Batch, HEADS, LogHead, SECTOR, halves};
use quayfs_layout::item::{self, Item};
use std::sync::Arc;

use super::{Fields, Lines, Shown, Window};
use crate::logs::{L2pLog, undo_at, undo_places};
use crate::media::Media;

fn scan(media: &Media) -> Result<Scan, String> {
    let geometry = journal_geometry(&media.geo, media.salt);
    Journal::scan(Arc::clone(&media.region), &geometry).map_err(|e| e.to_string())
}

/// What both of the following begin with.
fn found(scan: &Scan) -> Fields {
    let damage = scan.damage.iter().map(|d| shown!(d.to_string()));
    vec![
        ("digested_seq", shown!(scan.digested)),
        ("retired_seq", shown!(scan.retired)),
        ("highest_seq", shown!(scan.max_seq_seen)),
        ("damage", damage.collect()),
    ]
}

/// Records above digested_seq, in order of number.
pub(super) fn records(media: &Media, window: Window) -> Fields {
    let scan = match scan(media) {
        Ok(scan) => scan,
        Err(e) => return vec![("error", shown!(e))],
    };
    let mut fields = found(&scan);
    let mut lines = Lines::new(window);
    for r in &scan.records {
        if !lines.push(r.seq, record(r)) {
            break;
        }
    }
    lines.finish("records", &mut fields);
    fields
}

fn record(r: &Record) -> Shown {
    let slots = r.runs.iter().flat_map(|run| {
        let at = |(i, (lbn, _)): (u64, &(u64, u32))| {
            shown!(format!(
                "LBN {lbn} in slot {} of buffer {}",
                run.pos + i,
                run.buffer
            ))
        };
        (0..).zip(&run.blocks).map(at)
    });
    let items = item::decode(&r.items).map(|item| match item {
        Ok(item) => shown!(told(&item)),
        Err(e) => shown!(e.to_string()),
    });
    shown!({ "seq": r.seq, "slots": slots.collect::<Shown>(), "items": items.collect::<Shown>() })
}

fn told(item: &Item<'_>) -> String {
    match *item {
        Item::Delta { id, at, bytes } => {
            format!("node {id}: bytes {at} to {} replaced", at + bytes.len())
        }
        Item::NodeNew { id, kind, owner } => {
            format!("node {id}: new {kind:?} page of inode {owner}")
        }
        Item::NodeFree { id } => format!("node {id}: freed"),
        Item::Bits {
            id,
            start,
            count,
            set,
        } => {
            let how = if set { "set" } else { "cleared" };
            format!(
                "node {id}: bits {start} to {} {how}",
                u64::from(start) + u64::from(count)
            )
        }
        Item::Charge { .. } => format!("{item:?}"),
    }
}

/// Slots that are live: digested and not retired, or named by a record that is not digested.
pub(super) fn slots(media: &Media, window: Window) -> Fields {
    let mut scan = match scan(media) {
        Ok(scan) => scan,
        Err(e) => return vec![("error", shown!(e))],
    };
    let mut fields = found(&scan);
    scan.live.sort_by_key(|s| (s.lbn, s.seq));
    let mut lines = Lines::new(window);
    for s in &scan.live {
        let line = shown!({
            "lbn": s.lbn, "seq": s.seq, "buffer": s.buffer, "position": s.pos, "crc": hex(s.crc),
        });
        if !lines.push(s.lbn, line) {
            break;
        }
    }
    lines.finish("slots", &mut fields);
    fields
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

/// Both heads, and the batches that a replay would apply, in order of number.
pub(super) fn batches(media: &Media, window: Window) -> Fields {
    let g = &media.geo;
    if batch_log(g, media.salt).is_none() {
        return vec![("batch_log", shown!("there is none"))];
    }
    let heads = HEADS.map(|at| {
        let bytes = media.region.read_vec(g.batch_log_off + at, SECTOR as u64);
        LogHead::decode(&bytes, media.salt)
    });
    let told = heads.map(|head| {
        head.map_or(shown!({ "generation": "damaged" }), |h| {
            shown!({ "generation": h.generation, "life": format!("{:016x}", h.life), "retired_lap": h.retired })
        })
    });
    let mut fields = vec![("heads", shown!(Vec::from(told)))];
    let Some(head) = heads.into_iter().flatten().max_by_key(|h| h.generation) else {
        return fields;
    };
    let mut all: Vec<(u64, Shown)> = Vec::new();
    for half in halves(g.batch_log_bytes) {
        let bytes = media
            .region
            .read_vec(g.batch_log_off + half.start, half.end - half.start);
        let mut at = 0;
        while at < bytes.len() {
            let Some(batch) = Batch::decode(&bytes[at..], head.life, media.salt) else {
                at += SECTOR;
                continue;
            };
            if batch.id.lap > head.retired {
                all.push((batch.id.seq, summary(&batch, half.start + at as u64)));
            }
            at += batch.len;
        }
    }
    all.sort_by_key(|(seq, _)| *seq);
    let mut lines = Lines::new(window);
    for (seq, line) in all {
        if !lines.push(seq, line) {
            break;
        }
    }
    lines.finish("batches", &mut fields);
    fields
}

fn summary(batch: &Batch<'_>, at: u64) -> Shown {
    let bytes: usize = batch.pieces.iter().map(|(_, content)| content.len()).sum();
    shown!({
        "seq": batch.id.seq, "lap": batch.id.lap, "at": at, "bytes": batch.len,
        "pieces": batch.pieces.len(), "content_bytes": bytes,
    })
}

/// Commit words and start records, and what an unfinished transaction would put back.
pub(super) fn table_log(media: &Media, window: Window) -> Fields {
    let log = L2pLog::read(media);
    let word = |w: Option<u64>| w.map_or(shown!("damaged"), |n| shown!(n));
    let starts = log.starts.map(|start| {
        start.map_or(Shown::Null, |s| {
            Shown::Fields(vec![
                ("generation", shown!(s.generation)),
                ("records", shown!(s.records)),
                ("per_lane", shown!(s.per_lane)),
                ("word_offset", shown!(s.word.map(|w| w.off))),
            ])
        })
    });
    let mut fields = vec![
        ("commit", word(log.commit)),
        ("spare", word(log.spare)),
        (
            "starts",
            starts.into_iter().filter(|s| *s != Shown::Null).collect(),
        ),
    ];
    let mut lines = Lines::new(window);
    if let Some(start) = log.open() {
        for (n, place) in (0..).zip(undo_places(media, &start)) {
            let line = match undo_at(media, place, start.generation) {
                Some(u) => shown!({ "n": n, "lbn": u.lbn, "crc": hex(u.crc) }),
                None => shown!({ "n": n, "lbn": "damaged" }),
            };
            if !lines.push(n, line) {
                break;
            }
        }
    }
    lines.finish("undo", &mut fields);
    fields
}
