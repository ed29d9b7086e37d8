//! `quayfs info`: what a volume is. How it is, `quayfs status` says.

use quayfs_fs::volume::{Access, Volume, glance};
use quayfs_options::format_size;

use super::advice::advice;
use super::args;
use super::asking::{self, Heard, UNLINKED};
use super::exit::{FAILED, Failure, say, say_json};
use super::media;
use super::units::date;
use super::unopened::unopened;
use super::unserved::{self, Unserved};
use crate::mount::server::PATIENCE;
use crate::mount::table::Entry;
use quayfs_layout::BLOCK;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Shows what lies at the target: a mount point, a mounted volume, or a volume at rest. Of a mount whose daemon does not
/// answer it shows what is known without it, and fails.
pub fn run(args: &args::Info) -> Result<(), Failure> {
    let (facts, unserved) = facts(&args.target)?;
    if args.json {
        say_json(facts);
    } else {
        say(listing(&facts).trim_end());
    }
    unserved.map_or(Ok(()), Err)
}

fn facts(target: &Path) -> Result<(Value, Option<Failure>), Failure> {
    let (path, entry) = asking::find(target, FAILED)?;
    if let Some(entry) = entry {
        return of_mount(&entry);
    }
    media::expect_answers(&path).map_err(Failure::with(FAILED))?;
    let volume = Volume::open(&path, Access::ReadOnly, Duration::ZERO).map_err(unopened(FAILED))?;
    let mut facts = at_rest(&path, &volume);
    let left = glance(&path).ok().and_then(|volume| volume.left);
    facts["staged_bytes"] = json!(left.and_then(|left| left.staged).map(|n| n * BLOCK as u64));
    Ok((facts, None))
}

fn of_mount(entry: &Entry) -> Result<(Value, Option<Failure>), Failure> {
    match asking::hear(entry, PATIENCE, FAILED)? {
        Heard::Status(status) => Ok((live(entry, status), None)),
        Heard::Nothing(why @ Unserved::Dead) => Err(Failure::new(FAILED, why.line(entry))),
        Heard::Nothing(why) => {
            let mut facts = unserved::facts(entry);
            facts["unserved"] = json!(why.word());
            Ok((facts, Some(Failure::new(FAILED, why.line(entry)))))
        }
    }
}

/// The status of a mount, with its mount point and advice added.
fn live(entry: &Entry, mut status: Value) -> Value {
    let advice = advice(&status);
    let volume = Path::new(status["volume"].as_str().unwrap_or_default());
    let parts = (media::names_itself(volume))
        .then(|| media::parts_in_time(volume))
        .flatten();
    let removed = asking::unlinked(&status).into_iter();
    let removed: Vec<_> = removed.map(|part| format!("{part}: {UNLINKED}")).collect();
    if let Some(map) = status.as_object_mut() {
        let mountpoint = entry.target.to_string_lossy();
        map.insert("mountpoint".into(), json!(mountpoint));
        map.insert("advice".into(), json!(advice));
        map.insert("parts".into(), json!(parts));
        map.insert("removed".into(), json!(removed));
        if entry.is_read_only() {
            // The kernel tells no daemon of `mount -o remount,ro`.
            map.insert("read_only".into(), json!(true));
        }
    }
    status
}

fn at_rest(path: &Path, volume: &Volume) -> Value {
    let config = volume.config();
    let device = volume.device().describe();
    // It is this command that cannot change it.
    let device = device.strip_suffix(", read-only").unwrap_or(&device);
    let g = &config.geometry;
    json!({
        "volume": path.to_string_lossy(),
        "mountpoint": null,
        "uuid": uuid::Uuid::from_bytes(config.uuid).to_string(),
        "label": config.label(),
        "created": config.created,
        "stored_options": config.options(),
        "backend": volume.region().backend().to_string(),
        "device": device,
        "parts": media::parts(path),
        "pmem_bytes": g.pmem_len,
        "data_bytes": g.data_blocks * BLOCK as u64,
        "capacity_bytes": g.visible_blocks() * BLOCK as u64,
        "inodes": g.inodes(),
        "buffers": g.buffers,
        "staging_bytes": g.buffers * g.slots_per_buffer * BLOCK as u64,
    })
}

/// What people are told, in this order; `--json` has all.
const SHOWN: [&str; 24] = [
    "volume",
    "mountpoint",
    "uuid",
    "label",
    "created",
    "backend",
    "device",
    "parts",
    "removed",
    "durability",
    "ends_with_daemon",
    "options",
    "stored_options",
    "transport",
    "pmem_bytes",
    "data_bytes",
    "capacity_bytes",
    "staging_bytes",
    "staged_bytes",
    "metadata_bytes",
    "buffers",
    "inodes",
    "unserved",
    "advice",
];

/// One line a fact, with sizes in units and dates as dates.
fn listing(facts: &Value) -> String {
    let mut lines = Vec::new();
    for name in SHOWN {
        tell(name, &fact(facts, name), &mut lines);
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines
        .iter()
        .map(|(name, text)| format!("{name:width$}  {text}\n"))
        .collect()
}

/// A daemon counts in blocks what is told in bytes.
fn fact(facts: &Value, name: &str) -> Value {
    let blocks = match name {
        "capacity_bytes" => &facts["blocks"],
        "staging_bytes" => &facts["slots"],
        "staged_bytes" => &facts["staged_blocks"],
        "metadata_bytes" => &facts["node_pages"],
        _ => &Value::Null,
    };
    match blocks.as_u64() {
        Some(n) => json!(n * BLOCK as u64),
        None => facts[name].clone(),
    }
}

fn tell(name: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Null => return,
        Value::String(s) if s.is_empty() => return,
        // A sentence each.
        Value::Array(all) => {
            let texts = all.iter().filter_map(Value::as_str);
            lines.extend(texts.map(|text| (name.into(), text.into())));
            return;
        }
        // On one line, whatever its origin.
        Value::String(s) => quayfs_shown::text(s),
        Value::Number(n) => match (n.as_u64(), name.strip_suffix("_bytes")) {
            (Some(n), Some(name)) => {
                lines.push((name.into(), format_size(n)));
                return;
            }
            (Some(n), None) if name == "created" => date(n),
            _ => n.to_string(),
        },
        other => other.to_string(),
    };
    lines.push((name.into(), text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_become_lines_in_the_order_of_interest() {
        let text = listing(&json!({
            "label": "x", "mountpoint": null, "pmem_bytes": 1536, "counters": { "reads": 3 }, "created": 0,
            "advice": ["do this", "and that"], "transport": "", "blocks": 256,
        }));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "label     x",
                "created   1970-01-01 00:00:00 UTC",
                "pmem      1.5 KiB",
                "capacity  1 MiB",
                "advice    do this",
                "advice    and that",
            ]
        );
    }
}
