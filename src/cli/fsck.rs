//! `quayfs fsck`.

use quayfs_fs::uuid_text;
use quayfs_fs::volume::{Place, VolumeError, config_of, locate, refusal};
use quayfs_fsck::repair::{self, Failed, Outcome, RepairReport};
use quayfs_fsck::{FsckOptions, FsckReport};

use super::args;
use super::exit::{
    FSCK_CANCELLED, FSCK_DAMAGE, FSCK_FAILED, FSCK_REPAIRED, Failure, OK, say, say_json, warn,
};
use super::interrupted;
use super::log;
use super::media;
use super::progress::Progress;
use super::status::{Blocks, Checked, Damage, Logged, RepairBegins, RepairFailed, Repaired};
use super::unopened::unopened;
use std::path::PathBuf;
use std::sync::Arc;

/// So much of what a repair has done is in the log.
const NAMED: usize = 1000;

/// Checks or repairs a volume and returns the exit code.
pub fn run(args: &args::Fsck) -> Result<u8, Failure> {
    let options = FsckOptions {
        check_data: args.data,
    };
    if args.repair {
        return mend(args, &options);
    }
    let line = "the check has not come to its end, and has changed nothing";
    interrupted::says(FSCK_CANCELLED, line.into())?;
    wait_for_media(args);
    let (meter, quiet) = (Arc::default(), args.quiet || args.json);
    let shown = Progress::of(&meter, quiet);
    let report = quayfs_fsck::check_measured(&args.volume, &options, &meter);
    drop(shown);
    let report = report.map_err(|e| match e {
        VolumeError::Beheaded(_) => Failure::new(FSCK_DAMAGE, e),
        e => unopened(FSCK_FAILED)(e),
    })?;
    let shown = show(&report, args.json);
    let known = remember(args, &report, None);
    shown?;
    if report.is_clean() {
        say_what_was_left_out(args, known);
        return Ok(OK);
    }
    if !args.json {
        say(advice(args, &report));
    }
    Ok(FSCK_DAMAGE)
}

/// Says so if the media do not answer: nothing can be checked without them.
fn wait_for_media(args: &args::Fsck) {
    if let Err(line) = media::expect_answers(&args.volume) {
        warn(format_args!("{line}, and is waited for"));
    }
}

/// What to do about what was found.
fn advice(args: &args::Fsck, report: &FsckReport) -> String {
    let volume = quayfs_shown::argument(&args.volume);
    let data = if args.data { " --data" } else { "" };
    let repair = format!("`quayfs fsck --repair{data} {volume}`");
    if report.put_right_by_mount() == report.count() {
        if let Some(why) = refusal(&args.volume) {
            return format!("neither a mount nor a repair puts that right: {why}");
        }
        return format!("the next mount puts that right, if it may write, and so does {repair}");
    }
    // A repair leaves what no copy has.
    match report.lost_findings == report.count() {
        true => format!(
            "{repair} heals blocks of which one bit has changed; what the others had is nowhere else: write the files named above anew, \
             from a backup, or remove them"
        ),
        false => format!("{repair} repairs what can be repaired"),
    }
}

fn mend(args: &args::Fsck, options: &FsckOptions) -> Result<u8, Failure> {
    let volume = quayfs_shown::argument(&args.volume);
    let line = format!(
        "the volume is as it was, or only `quayfs fsck --repair {volume}` can go on with it"
    );
    interrupted::says(FSCK_CANCELLED, line)?;
    wait_for_media(args);
    let (meter, quiet) = (Arc::default(), args.quiet || args.json);
    let shown = Progress::of(&meter, quiet);
    let mut begins = |found: &FsckReport| note_before(args, found);
    let report = repair::repair_telling(&args.volume, options, &meter, &mut begins);
    drop(shown);
    if let Err(failed) = &report {
        note_failure(args, failed);
    }
    let report = report.map_err(|failed| match failed {
        Failed::Volume(e @ VolumeError::Header { .. }) => Failure::new(
            FSCK_FAILED,
            format_args!(
                "{e}; nor does what is in it look like the data of this region: it is another device, or its content is gone, and \
                 that is in a backup, if anywhere"
            ),
        ),
        Failed::Volume(e) => unopened(FSCK_FAILED)(e),
        other => Failure::new(FSCK_FAILED, other),
    })?;
    let shown = show(&report, args.json);
    let known = remember(args, &report.check, Some(&report));
    shown?;
    if report.outcome != Outcome::Left {
        say_what_was_left_out(args, known);
    }
    Ok(match report.outcome {
        Outcome::Clean => OK,
        Outcome::Repaired if report.losses().is_none() => FSCK_REPAIRED,
        // As damage that is left, a loss has to be seen to.
        Outcome::Repaired | Outcome::Left => FSCK_DAMAGE,
    })
}

/// Leaves to the log what was found before anything is changed: a repair that does not come to its end tells nothing itself.
fn note_before(args: &args::Fsck, found: &FsckReport) {
    let Ok(Place { path: volume, .. }) = locate(&args.volume) else {
        return;
    };
    let files = found.files.iter().map(|file| file.to_string());
    let named = found.findings.iter().map(ToString::to_string).chain(files);
    let named = named.take(NAMED).map(|what| format!("found: {what}"));
    let mut lines: Vec<String> = named.collect();
    lines.push(RepairBegins(found.count()).to_string());
    let _ = log::add(&volume, &found.uuid, &lines);
}

/// Leaves it to the log that nothing could be done, or no more, unless something else is in the way.
fn note_failure(args: &args::Fsck, failed: &Failed) {
    let is_final = match failed {
        Failed::Volume(e) => matches!(e, VolumeError::Header { .. }),
        Failed::Device(_) | Failed::Pmem(_) | Failed::Ppt(_) | Failed::Pages { .. } => true,
    };
    if let Ok(Place { path: volume, .. }) = locate(&args.volume)
        && let Ok(config) = config_of(&args.volume)
        && is_final
    {
        let line = RepairFailed(failed.to_string()).to_string();
        let _ = log::add(&volume, &uuid_text(config.uuid), &[line]);
    }
}

/// Leaves what is wrong to `quayfs status`, or that it is not any more, and what a repair has done. A log that cannot be
/// written is no reason not to check. What it knew before.
fn remember(args: &args::Fsck, report: &FsckReport, repair: Option<&RepairReport>) -> Damage {
    let Ok(Place { path: volume, .. }) = locate(&args.volume) else {
        return Damage::default();
    };
    let to = log::destination(&volume, None)
        .ok()
        .and_then(|to| to.path());
    let read = |path: PathBuf| Logged::read(&path, Some(&report.uuid)).damage;
    let before = to.map(read).unwrap_or_default();
    let done = repair.filter(|repair| repair.outcome != Outcome::Clean);
    if report.is_clean() && done.is_none() && before == Damage::default() {
        return before;
    }
    let lost = done.map_or(0, |done| done.lost_blocks);
    // What could not be looked at may be as bad as before.
    let all_read = args.data && report.skipped.is_empty();
    let checked = Checked {
        // Status would tell of what is not there any more.
        structure: report.count() - report.lost_findings - report.put_right_by_mount(),
        blocks: match all_read {
            true => Blocks::All(report.lost_findings),
            false => Blocks::Some(report.lost_findings.max(lost)),
        },
    };
    let mut lines = Vec::new();
    if let Some(repair) = done {
        let named = repair.done.iter().take(NAMED);
        lines.extend(named.map(|done| format!("repaired: {done}")));
        let (found, losses) = (repair.found, repair.losses());
        lines.push(Repaired { found, losses }.to_string());
    }
    lines.push(checked.to_string());
    let _ = log::add(&volume, &report.uuid, &lines);
    before
}

/// A check of the structure is easily taken for one of everything. `known`: what the log has.
fn say_what_was_left_out(args: &args::Fsck, known: Damage) {
    if !args.data && !args.json {
        let known = damage_in_files(known).map_or(String::new(), |known| format!("; {known}"));
        say(format_args!(
            "what is in files was not read: that takes --data{known}"
        ));
    }
}

/// What the log says against the content of files, and nothing has taken back.
fn damage_in_files(known: Damage) -> Option<String> {
    match known {
        Damage { blocks: 0, .. } if known.cut_short => {
            Some("the log says that the data device was cut short".into())
        }
        Damage { blocks: 0, .. } if known.reads => {
            Some("the log says that reads of files have failed".into())
        }
        Damage { blocks: 0, .. } => None,
        Damage { blocks, .. } => {
            let blocks = match blocks {
                1 => "1 damaged block or page".into(),
                n => format!("{n} damaged blocks or pages"),
            };
            Some(format!(
                "the log says that the last scrub or check of it found {blocks}"
            ))
        }
    }
}

fn show<T: serde::Serialize + std::fmt::Display>(report: &T, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(report).map_err(Failure::with(FSCK_FAILED))?;
        say_json(text);
    } else {
        say(report);
    }
    Ok(())
}
