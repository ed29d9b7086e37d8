//! Whether a program can go on with the mount of another one, asked before anything is given up: what the mount needs is
//! told by its daemon, what a program can by that program (`quayfs succession`, hidden).

use quayfs_fuse::{Negotiation, wanted};
use quayfs_layout::config::{FEATURE_ZERO_CRC, INCOMPAT_KNOWN, VERSION as FORMAT};
use quayfs_options::MountOptions;
use quayfs_restart::Connection;

use super::args;
use super::exit::{Failure, MOUNT_USAGE, say};

/// What daemons and supervisors leave and say to each other: to be counted up when one of another version would take it
/// for something else.
const HANDOVER: u64 = 1;
/// What daemons leave besides, which a program must know of that goes on: a fencing token (1), a reservation of the volume (2),
/// and checksums of zeros (4), where the volume has them: nothing would tell that they are not kept any more.
const LEAVES: u64 = 3;
const LEAVES_ZERO_CRC: u64 = 4;
/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What a program says first about itself, before its version.
const NAME: &str = "quayfs";

/// What a program has to be able to that goes on with this mount, of a volume with these features.
pub fn needs(connection: &Connection, [compatible, _, features]: [u64; 3]) -> String {
    let [a, b, c, d, e, ..] = *connection;
    let agreed = Negotiation::from_words([a, b, c, d, e]);
    let (offered, flags) = (agreed.offer.flags.bits(), agreed.flags.bits());
    let leaves = match compatible & FEATURE_ZERO_CRC {
        0 => LEAVES,
        _ => LEAVES | LEAVES_ZERO_CRC,
    };
    format!(
        "handover={HANDOVER:x} format={FORMAT:x} features={features:x} offered={offered:x} agreed={flags:x} leaves={leaves:x}"
    )
}

/// Runs `quayfs succession`.
pub fn run(args: &args::Succession) -> Result<(), Failure> {
    let words: Vec<&str> = args.options.iter().map(String::as_str).collect();
    let options = MountOptions::parse(&words).map_err(Failure::with(MOUNT_USAGE))?;
    say(can(&options));
    Ok(())
}

/// What this program can, for a mount with these options.
fn can(options: &MountOptions) -> String {
    let wanted = wanted(quayfs_server::wish(options, 0).flags).bits();
    let takes = LEAVES | LEAVES_ZERO_CRC;
    format!(
        "{NAME} {VERSION} handover={HANDOVER:x} format={FORMAT:x} features={INCOMPAT_KNOWN:x} wanted={wanted:x} takes={takes:x}"
    )
}

/// The version of a program that says this about itself, if it can go on with a mount that has these needs.
///
/// # Errors
/// Why it cannot.
pub fn judge(needs: &str, can: &str) -> Result<String, String> {
    let version = can
        .strip_prefix(NAME)
        .and_then(|rest| rest.split_whitespace().next())
        .filter(|version| !version.contains('='))
        .ok_or("it does not say what it can take over: it is no QuayFS, or one that is too old")?;
    let of = |text: &str, key: &str| {
        let value = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.and_then(|value| u64::from_str_radix(value, 16).ok())
    };
    let both = |key: &str| -> Result<(u64, u64), String> {
        let missing = || format!("it does not say what it knows of `{key}`");
        Ok((
            of(needs, key).ok_or("the mount does not say what it needs")?,
            of(can, key).ok_or_else(missing)?,
        ))
    };
    let (need, has) = both("handover")?;
    if need != has {
        return Err(format!(
            "its daemons leave each other something else (version {has}, not {need})"
        ));
    }
    let (need, has) = both("format")?;
    if need != has {
        return Err(format!(
            "it reads volumes of format {has}, this one has format {need}"
        ));
    }
    let (need, has) = both("features")?;
    if need & !has != 0 {
        let lacks = need & !has;
        return Err(format!(
            "the volume has features (mask {lacks:#x}) that it does not know"
        ));
    }
    // Programs that say nothing of it leave and know nothing.
    let left = of(needs, "leaves").unwrap_or(0);
    let lacks = left & !of(can, "takes").unwrap_or(0);
    if lacks != 0 {
        return Err(format!(
            "it is too old: the daemons of the mount leave each other more than it knows (mask {lacks:#x})"
        ));
    }
    let told = of(needs, "offered").zip(of(needs, "agreed"));
    let (offered, agreed) = told.ok_or("the mount does not say what it needs")?;
    let wanted = of(can, "wanted").ok_or("it does not say what it wants of the kernel")?;
    if offered & wanted != agreed {
        let other = (offered & wanted) ^ agreed;
        return Err(format!(
            "it would agree with the kernel on something else (flags {other:#x})"
        ));
    }
    Ok(version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_can_go_on_with_its_own_mounts() {
        for words in ["restart", "restart,open=elide,writeback", "restart,noacl"] {
            let options = MountOptions::parse(&[words]).unwrap();
            let wanted = wanted(quayfs_server::wish(&options, 0).flags);
            // A kernel that offers all, and one that offers less.
            for lacks in [0, wanted.bits() & wanted.bits().wrapping_neg()] {
                let offered = !lacks;
                let agreed = wanted.bits() & offered;
                let connection = [40, offered, 1 << 20, agreed, 1 << 20, 0, 0, 0];
                for features in [[0; 3], [FEATURE_ZERO_CRC, 0, INCOMPAT_KNOWN]] {
                    let needs = needs(&connection, features);
                    assert_eq!(judge(&needs, &can(&options)), Ok(VERSION.into()));
                    // One of a build that takes less, unless the volume has nothing of it.
                    let older = can(&options).replace("takes=7", "takes=3");
                    assert_eq!(judge(&needs, &older).is_ok(), features[0] == 0);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let needs = "handover=1 format=1 features=3 offered=ff agreed=f";
        let fits = "quayfs 7.0 handover=1 format=1 features=f wanted=f0f";
        assert_eq!(judge(needs, fits), Ok("7.0".into()));
        for (one, other, about) in [
            ("quayfs", "other", "no QuayFS"),
            ("quayfs 7.0", "quayfs", "no QuayFS"),
            ("handover=1", "handover=2", "version 2, not 1"),
            ("handover=1", "", "`handover`"),
            ("format=1", "format=2", "format 2, this one has format 1"),
            ("features=f", "features=1", "mask 0x2"),
            ("wanted=f0f", "wanted=1f", "flags 0x10"),
            ("wanted=f0f", "wanted=x", "wants of the kernel"),
        ] {
            let why = judge(needs, &fits.replace(one, other)).unwrap_err();
            assert!(why.contains(about), "{one} to {other}: {why}");
        }
        // One that leaves more needs one that takes as much.
        let needs = format!("{needs} leaves=3");
        let takes = |mask: &str| judge(&needs, &format!("{fits} takes={mask}"));
        assert_eq!(takes("7"), Ok("7.0".into()));
        assert!(takes("1").unwrap_err().contains("mask 0x2"));
        assert!(judge(&needs, fits).unwrap_err().contains("too old"));
        assert!(judge("", fits).is_err());
        assert!(judge("handover=1 format=1 features=0", fits).is_err());
        assert!(judge(&needs, "").is_err());
    }
}
