//! `quayfs tune`: what a volume says of itself, and how it is to be mounted.

use quayfs_fs::volume::{Access, SETTLING, Volume, config_of};
use quayfs_fsck::repair::{self, Failed, Upgraded};
use quayfs_layout::config::{ConfigTable, LABEL_MAX, OPTIONS_MAX};
use quayfs_options::stored;

use super::exit::{FAILED, Failure, USAGE, say};
use super::progress::Progress;
use super::unopened::unopened;
use super::{args, asking, media};
use std::path::Path;
use std::sync::Arc;

/// Changes what is asked for, or shows what is so.
pub fn run(args: &args::Tune) -> Result<(), Failure> {
    let (path, _) = asking::find(&args.volume, FAILED)?;
    media::expect_answers(&path).map_err(Failure::with(FAILED))?;
    if args.upgrade {
        return upgrade(&path);
    }
    if args.label.is_none() && args.options.is_none() {
        say(listing(&config_of(&path).map_err(unopened(FAILED))?));
        return Ok(());
    }
    check(args)?;
    let mut volume = Volume::open(&path, Access::ReadWrite, SETTLING).map_err(unopened(FAILED))?;
    volume
        .change_config(|config| {
            // Their lengths have been checked.
            if let Some(label) = &args.label {
                config.set_label(label);
            }
            if let Some(options) = &args.options {
                config.set_options(options);
            }
        })
        .map_err(Failure::with(FAILED))?;
    say(listing(volume.config()));
    Ok(())
}

fn upgrade(path: &Path) -> Result<(), Failure> {
    let meter = Arc::default();
    let shown = Progress::of(&meter, false);
    let upgraded = repair::upgrade(path, &meter);
    drop(shown);
    let shown = quayfs_shown::argument(path);
    let refused = |why: String| Err(Failure::new(FAILED, format_args!("{shown}: {why}")));
    match upgraded {
        Ok(Upgraded::Nothing) => say(format_args!("{shown} has all that this version adds")),
        Ok(Upgraded::BackedUp) => say(format_args!(
            "{shown}: the data device has copies of its tables from now on"
        )),
        Ok(Upgraded::Marked) => say(format_args!(
            "{shown}: a repair tells what files have never written from what others had there from now on"
        )),
        Ok(Upgraded::Done(report)) if report.check.is_clean() => say(format_args!(
            "{shown}: what users and groups have is counted from now on"
        )),
        Ok(Upgraded::Done(report)) => {
            let n = report.check.count();
            return refused(format!(
                "{} left: `quayfs fsck --repair {shown}`",
                quayfs_shown::count(n, "finding")
            ));
        }
        Ok(Upgraded::NoTable) => {
            return refused("it has no quota table: make a new volume, and copy the files".into());
        }
        Ok(Upgraded::TooMany { places, subjects }) => {
            return refused(format!(
                "{subjects} users, groups and projects have files, and its quota table has {places} places: make a new \
                 volume, and copy the files"
            ));
        }
        Ok(Upgraded::Unclean) => {
            return refused("it was not unmounted cleanly: mount it, and unmount it".into());
        }
        Ok(Upgraded::Damaged(_)) => {
            return refused(format!(
                "it is damaged: `quayfs fsck --repair {shown}` first"
            ));
        }
        Err(Failed::Volume(e)) => return Err(unopened(FAILED)(e)),
        Err(other) => {
            return refused(format!(
                "{other}; `quayfs fsck --repair {shown}` does the rest"
            ));
        }
    }
    Ok(())
}

fn check(args: &args::Tune) -> Result<(), Failure> {
    let too_long = |what, most: usize, len: usize| {
        Failure::new(
            USAGE,
            format_args!("{what} at most {most} bytes, this has {len}"),
        )
    };
    if let Some(label) = args.label.as_ref().filter(|label| label.len() > LABEL_MAX) {
        return Err(too_long("a label has", LABEL_MAX, label.len()));
    }
    let Some(options) = &args.options else {
        return Ok(());
    };
    if options.len() > OPTIONS_MAX {
        return Err(too_long("stored options have", OPTIONS_MAX, options.len()));
    }
    stored::check(options).map_err(Failure::with(USAGE))
}

fn listing(config: &ConfigTable) -> String {
    let shown = |text: String| match text.is_empty() {
        true => "-".into(),
        false => quayfs_shown::text(&text),
    };
    format!(
        "label           {}\nstored options  {}",
        shown(config.label()),
        shown(config.options())
    )
}
