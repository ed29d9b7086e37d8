//! A report on one screen: a line for each thing that an administrator asks about, at most 80 columns wide.

use super::health::Health;
use super::report::{Report, Scrub, State};
use crate::cli::units::{date, percent, seconds_since, span};
use quayfs_options::format_size;
use std::collections::BTreeSet;

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Columns before what is said.
const INDENT: usize = 14;

/// The lines about one volume.
pub fn block(r: &Report) -> String {
    let mut out = Lines(String::new());
    let name = match &r.mountpoint {
        Some(_) => r.shown_mountpoint(),
        None => r.shown_volume(),
    };
    let health = r.health.word();
    out.0 = format!("{name}: {health}\n");
    r.reasons.iter().for_each(|why| out.put("because", why));
    out.put("volume", &volume(r));
    if let Some(backend) = backend(r) {
        out.put("backend", &backend);
    }
    if let Some((power, death)) = survival(r) {
        out.put("power loss", &power);
        out.put("dead daemon", &death);
    }
    fill(r, &mut out);
    if let Some(commit) = commit(r) {
        out.put("commit", &commit);
    }
    out.put("scrub", &scrub(r));
    out.put("errors", &errors(r));
    if let Some(daemon) = daemon(r) {
        out.put("daemon", &daemon);
    }
    advise(r, &mut out);
    out.0
}

/// A line for each reason that something can be done about, in their order. What could be faster is no complaint.
fn advise(r: &Report, out: &mut Lines) {
    match (r.health, &r.advice) {
        (Health::Ok, Some(tip)) => out.put("tip", tip),
        (Health::Ok, None) => {}
        (Health::Degraded | Health::Failed, _) => {
            let mut said = BTreeSet::new();
            let new = r.todo.iter().flatten().filter(|todo| said.insert(*todo));
            new.for_each(|todo| out.put("advice", todo));
        }
    }
}

struct Lines(String);

impl Lines {
    /// A line, and those that it takes beyond the width.
    fn put(&mut self, name: &str, said: &str) {
        let mut line = format!("  {name:<width$}", width = INDENT - 2);
        let mut is_empty = true;
        for word in quayfs_shown::text(said).split(' ') {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.end(&line);
                line = " ".repeat(INDENT);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.end(&line);
    }

    fn end(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }
}

fn volume(r: &Report) -> String {
    let mut said = r.shown_volume();
    if let Some(label) = &r.label {
        said = format!("{said}, label {label}");
    }
    let state = match (r.state, r.clean) {
        (State::Mounted, _) if r.read_only => ", mounted read-only",
        (State::Mounted, _) => "",
        (State::Closing, _) => ", unmounted, being closed",
        (State::Stopped | State::Silent, _) if r.mountpoint.is_none() && !r.is_served => {
            ", unmounted, not closed yet"
        }
        (State::Unmounted, Some(true)) => ", not mounted, nothing to recover",
        (State::Unmounted, _) => ", not mounted",
        _ => ", not served",
    };
    said + state
}

fn backend(r: &Report) -> Option<String> {
    let what = match r.backend.as_deref()? {
        "dax" => "dax: the region is persistent memory",
        "file" => "file: the region is on a disk",
        "volatile" => "volatile: the region is in ordinary memory",
        other => other,
    };
    Some(match r.durability.as_deref() {
        Some(durability) => format!("{what}; durability={durability}"),
        None => what.into(),
    })
}

/// What outlives a power failure, and the death of the daemon.
fn survival(r: &Report) -> Option<(String, String)> {
    let options = r.options.as_deref().unwrap_or_default();
    let has = |option: &str| options.split(',').any(|o| o == option);
    let collects = has("writeback");
    let by_op = r.durability.as_deref()? == "op";
    let data_last = has("data=writeback");
    if r.state != State::Mounted {
        return None;
    }
    if !r.unlinked.is_empty() || r.region_missing_bytes > 0 {
        let lost = || "the volume is lost".to_string();
        return Some((lost(), lost()));
    }
    let power = match (r.backend.as_deref()?, by_op) {
        ("volatile", _) => "the volume is lost",
        (_, true) if collects => "all calls survive; written data from fsync on",
        (_, true) => "every call that has returned survives",
        (_, false) if collects || data_last => {
            "all up to the last commit survives, of data what was synced"
        }
        (_, false) => "all up to the last commit survives; fsync is one",
    };
    if let Some(obstructed) = obstructed(r, power) {
        return Some(obstructed);
    }
    let fails = r.has_failed || r.stopped_supervisor.is_some();
    let goes_on = r.goes_on.unwrap_or(has("restart")) && !fails;
    let death = match (by_op, goes_on) {
        (_, true) => "another one goes on, and nothing is lost",
        (true, false) => "every call that has returned survives; mount again",
        (false, false) => "all up to the last commit survives; mount again",
    };
    let ends = match (&r.successor_lost, r.stopped_supervisor) {
        (Some(_), _) => "ends the mount; ",
        (None, Some(_)) => "ends the mount unless its supervisor goes on; ",
        (None, None) => "",
    };
    Some((power.into(), format!("{ends}{death}")))
}

/// The same where something is known that the next mount, or the next daemon, would meet.
fn obstructed(r: &Report, power: &str) -> Option<(String, String)> {
    // Nothing of one in ordinary memory survives.
    let and = |rest: &str| match r.backend.as_deref() {
        Some("volatile") => power.to_string(),
        _ => format!("{power}{rest}"),
    };
    let is_damaged = r.passed_over.is_some() || r.errors.damage > 0;
    let has_rotted = r.scrub.as_ref().is_some_and(|s| s.metadata > 0);
    Some(if r.device_missing_bytes > 0 {
        (
            and("; what is behind the cut is lost"),
            "ends the mount; the device has to be as long again before the next one".into(),
        )
    } else if r.hindrance.is_some() {
        (
            and("; what is in the way has to be put right before the next mount"),
            "ends the mount, unless what is in the way is put right before".into(),
        )
    } else if has_rotted || is_damaged {
        (
            and(", but for what is damaged; the next mount may be refused"),
            "may end the mount: another one may refuse what is damaged".into(),
        )
    } else {
        return None;
    })
}

fn fill(r: &Report, out: &mut Lines) {
    let share = |used: u64, total: u64| {
        let (used_text, total_text) = (format_size(used), format_size(total));
        format!("{used_text} of {total_text} ({})", percent(used, total))
    };
    if let Some(d) = &r.data {
        let mut said = share(d.used_bytes, d.total_bytes);
        if let Some(i) = &r.inodes {
            let part = percent(i.used, i.total);
            said += &format!("; inodes {} of {} ({part})", i.used, i.total);
        }
        out.put("data", &said);
    }
    if let Some(region) = &r.region {
        let staging = share(region.staging_used_bytes, region.staging_bytes);
        let metadata = share(region.metadata_used_bytes, region.metadata_bytes);
        out.put("region", &format!("metadata {metadata}; staging {staging}"));
    }
    if let Some(s) = &r.staged {
        let size = format_size(s.bytes);
        let said = match (s.bytes, s.drain_seconds, s.drain_bytes_per_second) {
            (0, ..) => "nothing".into(),
            _ if r.state == State::Unmounted => format!("{size}, until it is mounted again"),
            (_, Some(seconds), Some(rate)) => {
                let (time, rate) = (span(seconds.max(1)), format_size(rate));
                format!("{size} to be drained, in about {time} at {rate}/s")
            }
            _ => format!("{size} to be drained; how fast is not known yet"),
        };
        out.put("staged", &said);
    }
}

fn commit(r: &Report) -> Option<String> {
    let durability = r.durability.as_deref()?;
    if r.state != State::Mounted {
        return None;
    }
    let last = match (durability, r.last_commit_seconds) {
        ("op", _) => return Some("each call is one".into()),
        (_, Some(ago)) => format!("{} ago", span(ago)),
        (_, None) => "none since the mount".into(),
    };
    let is_over = r.read_only_reason.is_some() || r.shut_down;
    Some(match r.uncommitted {
        Some(true) if is_over => {
            format!(
                "{last}; there will be none any more, and what was done after it is not durable"
            )
        }
        Some(true) => format!("{last}; something waits for the next one"),
        Some(false) => format!("{last}; nothing waits for one"),
        None => last,
    })
}

fn ago(time: u64) -> String {
    format!("{} ({} ago)", date(time), span(seconds_since(time)))
}

fn scrub(r: &Report) -> String {
    let logged = r.log.as_ref().and_then(|log| log.last_scrub.as_ref());
    match &r.scrub {
        Some(s) if s.state != "never" => this_mounts(s),
        _ => match (logged, &r.log) {
            (Some(line), _) => format!("{}: {}", ago(line.time), logged_scrub(&line.what)),
            (None, Some(log)) if log.is_hidden() => "unknown: the log cannot be read".into(),
            (None, Some(_)) => "never, as far as the log goes".into(),
            (None, None) => "unknown: the log was not looked at".into(),
        },
    }
}

fn found(findings: u64) -> String {
    match findings {
        0 => "nothing found".into(),
        1 => "1 block or page damaged".into(),
        n => format!("{n} blocks or pages damaged"),
    }
}

/// A line of the log, in the words for a scrub of this mount.
fn logged_scrub(what: &str) -> String {
    let told = || {
        let (state, rest) = what.split_once(" after ")?;
        let (bytes, findings) = rest.split_once(" bytes, damaged blocks and pages: ")?;
        let (bytes, findings) = (format_size(bytes.parse().ok()?), findings.parse().ok()?);
        Some(match state {
            "Finished" => format!("{bytes} verified, {}", found(findings)),
            state => format!(
                "{} after {bytes}, {}",
                state.to_lowercase(),
                found(findings)
            ),
        })
    };
    told().unwrap_or_else(|| what.into())
}

fn this_mounts(s: &Scrub) -> String {
    let found = found(s.findings);
    let read = format_size(s.bytes);
    match (s.state.as_str(), s.ended) {
        ("running", _) => {
            let part = percent(s.bytes, s.total_bytes);
            format!(
                "running, {part} of about {}, {found}",
                format_size(s.total_bytes)
            )
        }
        ("finished", Some(time)) => format!("{}: {read} verified, {found}", ago(time)),
        (state, Some(time)) => format!("{}: {state} after {read}, {found}", ago(time)),
        (state, None) => format!("{state} after {read}, {found}"),
    }
}

fn errors(r: &Report) -> String {
    let e = &r.errors;
    let mut said = match (r.state, e.damage + e.reads, e.recent.last()) {
        (State::Mounted, 0, None) => "none since the mount".to_string(),
        (State::Mounted, n, None) => format!("{n} since the mount"),
        (State::Mounted, n, Some(last)) => {
            let n = n.max(e.recent.iter().map(|r| r.count).sum());
            format!(
                "{n} since the mount, last {}: {}",
                ago(last.time),
                last.what
            )
        }
        _ => String::new(),
    };
    let Some(log) = &r.log else {
        return if said.is_empty() {
            "unknown: the log was not looked at".into()
        } else {
            said
        };
    };
    if !said.is_empty() {
        said += "; ";
    }
    match (&log.unreadable, &log.last_error) {
        (_, Some(last)) if e.recent.is_empty() => {
            let (n, path) = (log.errors, &log.path);
            format!(
                "{said}{n} in {path}, last {}: {}",
                ago(last.time),
                last.what
            )
        }
        (_, Some(_)) => format!("{said}{} in {}", log.errors, log.path),
        (Some(why), None) if log.is_hidden() => {
            format!("{said}the log {} cannot be read: {why}", log.path)
        }
        (Some(why), None) => format!("{said}no log: {} ({why})", log.path),
        (None, None) => format!("{said}none in {}", log.path),
    }
}

fn daemon(r: &Report) -> Option<String> {
    let d = r.daemon.as_ref()?;
    let (pid, up) = (d.pid, span(d.uptime_seconds));
    let process = Some(format!("pid {pid}, up {up}"));
    let restarts = d.restarts.map(|n| quayfs_shown::count(n, "restart"));
    let known = [d.version.clone(), process, restarts];
    Some(known.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    #[test]
    fn a_volume_that_is_well_fits_a_screen() {
        let text = block(&sample());
        assert!(text.starts_with("/mnt/q: ok\n"), "{text}");
        assert!((10..=15).contains(&text.lines().count()), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        for said in [
            "  data        1000 KiB of 3.9 MiB (25%); inodes 10 of 100 (10%)",
            "  staged      120 KiB to be drained, in about 3 s at 40 KiB/s",
            "  commit      2 s ago; nothing waits for one",
            "  daemon      0.1.0, pid 17, up 1 min 5 s, 0 restarts",
        ] {
            assert!(text.lines().any(|l| l == said), "{said}\n{text}");
        }
    }

    #[test]
    fn a_mount_that_no_other_daemon_would_serve_ends() {
        let mut r = sample();
        (r.goes_on, r.successor_lost) = (Some(false), Some("gone".into()));
        let text = block(&r);
        assert!(
            text.contains("dead daemon ends the mount; all up to the last commit survives;"),
            "{text}"
        );
    }

    #[test]
    fn what_the_next_daemon_would_meet_is_in_the_lines_about_it() {
        type Change = fn(&mut Report);
        let cases: [(Change, &str, &str); 4] = [
            (
                |r| r.device_missing_bytes = 4096,
                "; what is behind the cut is lost",
                "ends the mount; the device",
            ),
            (
                |r| r.hindrance = Some("moved".into()),
                "before the next mount",
                "ends the mount, unless",
            ),
            (
                |r| r.scrub.as_mut().unwrap().metadata = 1,
                "; the next mount may be refused",
                "may end the mount",
            ),
            (
                |r| r.stopped_supervisor = Some(7),
                "fsync is one",
                "ends the mount unless its supervisor goes on; ",
            ),
        ];
        for (change, power, death) in cases {
            let mut r = sample();
            r.goes_on = Some(true);
            change(&mut r);
            let said = survival(&r).unwrap();
            assert!(
                said.0.ends_with(power) && said.1.starts_with(death),
                "{said:?}"
            );
        }
    }

    #[test]
    fn each_reason_has_its_advice() {
        let mut r = sample();
        r.health = Health::Failed;
        let same = Some("do this".to_string());
        r.todo = vec![same.clone(), None, Some("and that".into()), same];
        let text = block(&r);
        assert!(
            text.ends_with("\n  advice      do this\n  advice      and that\n"),
            "{text}"
        );
    }

    #[test]
    fn a_scrub_of_the_log_is_told_like_one_of_the_mount() {
        let what = "Finished after 308310016 bytes, damaged blocks and pages: 0";
        assert_eq!(logged_scrub(what), "294 MiB verified, nothing found");
        let what = "Stopped after 4096 bytes, damaged blocks and pages: 2";
        assert_eq!(
            logged_scrub(what),
            "stopped after 4 KiB, 2 blocks or pages damaged"
        );
        assert_eq!(logged_scrub("odd"), "odd");
    }

    #[test]
    fn nothing_waits_for_a_commit_that_will_not_come() {
        let mut r = sample();
        r.uncommitted = Some(true);
        assert!(commit(&r).unwrap().ends_with("waits for the next one"));
        r.read_only_reason = Some("the disk broke".into());
        assert!(commit(&r).unwrap().ends_with("is not durable"));
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let mut out = Lines(String::new());
        out.put("dead daemon", &"word ".repeat(40));
        let lines: Vec<_> = out.0.lines().collect();
        assert!(lines.len() > 2 && lines.iter().all(|l| l.len() <= WIDTH));
        assert!(lines[0].starts_with("  dead daemon word "), "{}", lines[0]);
        assert!(lines[1].starts_with(&format!("{}word", " ".repeat(INDENT))));
        assert_eq!(out.0.matches("word").count(), 40);
    }

    #[test]
    fn what_survives_depends_on_backend_and_options() {
        let said = |backend: &str, durability: &str, options: &str| {
            let mut r = sample();
            r.backend = Some(backend.into());
            r.durability = Some(durability.into());
            r.options = Some(options.into());
            survival(&r).unwrap()
        };
        assert!(said("dax", "op", "rw").0.contains("every call"));
        assert!(said("dax", "op", "rw,writeback").0.contains("fsync"));
        assert!(
            said("dax", "op", "rw,data=writeback")
                .0
                .contains("every call")
        );
        assert!(said("file", "commit", "rw").1.contains("last commit"));
        assert!(
            said("file", "commit", "rw,restart")
                .1
                .contains("nothing is lost")
        );
        // Without the option it depends on what the daemon has found.
        let mut r = sample();
        r.backend = Some("file".into());
        r.durability = Some("commit".into());
        r.options = Some("rw".into());
        r.goes_on = Some(true);
        assert!(survival(&r).unwrap().1.contains("nothing is lost"));
        r.goes_on = Some(false);
        assert!(survival(&r).unwrap().1.contains("mount again"));
        assert_eq!(said("volatile", "op", "rw").0, "the volume is lost");
        assert!(!said("volatile", "commit", "rw").1.contains("power"));
    }
}
