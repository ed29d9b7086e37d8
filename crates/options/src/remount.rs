//! What `-o remount` changes of a live mount: a few flags that the kernel keeps. Whatever else it asks for has to be so
//! already.

use super::parse::Parser;
use super::{Acls, AtimePolicy, Durability, MountOptions, OptionError, Permissions, Restart};

/// Flags that a remount changes, each with its opposite.
pub const CHANGEABLE: [(&str, &str); 5] = [
    ("ro", "rw"),
    ("nosuid", "suid"),
    ("nodev", "dev"),
    ("noexec", "exec"),
    ("nosymfollow", "symfollow"),
];

/// A live mount, as far as it decides what a remount may say.
#[derive(Clone, Debug)]
pub struct Live {
    /// What it was mounted with.
    pub options: MountOptions,
    /// The durability in force.
    pub durability: Durability,
    /// Nothing may be changed, by an option or after a failure.
    pub read_only: bool,
    /// What the mount table says of the file system, as words with commas between them.
    pub table: String,
}

/// What a remount is to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remount {
    /// Flags to set, by the names in [`CHANGEABLE`].
    pub set: Vec<&'static str>,
    /// Flags to clear, by the same names.
    pub clear: Vec<&'static str>,
}

impl Remount {
    /// Reads the values of any number of `-o` arguments that have passed [`MountOptions::parse`]. mount(8) repeats
    /// there what the mount table and fstab say, so whatever is so already may be said.
    ///
    /// # Errors
    /// [`OptionError::Fixed`] for whatever would have to change and cannot.
    pub fn parse(lists: &[&str], live: &Live) -> Result<Self, OptionError> {
        let words = lists.iter().flat_map(|l| l.split(','));
        let mut remount = Self::default();
        for word in words.filter(|w| !w.is_empty() && *w != "remount") {
            if !remount.flag(word) && changes(word, live)? {
                return Err(OptionError::Fixed {
                    option: word.into(),
                    why: "unmount, then mount with it",
                });
            }
        }
        remount.clear_unsaid(lists);
        if remount.clear.contains(&"ro") && live.read_only {
            return Err(OptionError::Fixed {
                option: "rw".into(),
                why: if live.options.read_only {
                    "it was mounted with `ro` and only reads the media: unmount, then mount without `ro`"
                } else {
                    "a failure has made it read-only: unmount, look into its log, then mount again"
                },
            });
        }
        Ok(remount)
    }

    /// mount(8) says all that is to be so, with `rw` or `ro` in front, and leaves out a flag that was asked to go: of
    /// `noexec` in the mount table and `exec` on its command line nothing is left. So what is not in such a list goes. In
    /// another one it stays.
    fn clear_unsaid(&mut self, lists: &[&str]) {
        let first = lists
            .iter()
            .flat_map(|l| l.split(','))
            .find(|w| !w.is_empty());
        if !first.is_some_and(|word| ["rw", "ro"].contains(&word)) {
            return;
        }
        for (on, _) in CHANGEABLE {
            if on != "ro" && !self.set.contains(&on) && !self.clear.contains(&on) {
                self.clear.push(on);
            }
        }
    }

    /// Notes a flag that can be changed; of several about one thing the last one counts.
    fn flag(&mut self, word: &str) -> bool {
        let found = CHANGEABLE
            .iter()
            .find(|(on, off)| [*on, *off].contains(&word));
        let Some((on, _)) = found else {
            return false;
        };
        self.set.retain(|w| w != on);
        self.clear.retain(|w| w != on);
        if *on == word {
            self.set.push(on);
        } else {
            self.clear.push(on);
        }
        true
    }
}

/// Whether a word asks for what is not so.
fn changes(word: &str, live: &Live) -> Result<bool, OptionError> {
    let key = word.split('=').next().unwrap_or(word);
    if super::parse::FROM_THE_TABLE.contains(&key) {
        return Ok(!live.table.split(',').any(|w| w == word));
    }
    let mut now = live.options.clone();
    now.durability = Some(live.durability);
    now.restart = Some(match now.ends_with_daemon() {
        Some(_) => Restart::Off,
        None => Restart::On,
    });
    now.acls = Some(if now.has_acls() { Acls::On } else { Acls::Off });
    match word {
        "async" => Ok(now.sync),
        "nostrictatime" => Ok(now.atime == AtimePolicy::StrictAtime),
        "default_permissions" => Ok(now.permissions == Permissions::Owner),
        _ => {
            let then = Parser::onto(now.clone()).with(word)?;
            Ok(then != now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mount(8) says all that is to be so, another caller only what is to change.
    #[test]
    fn what_mount8_leaves_out_goes() {
        let live = Live {
            options: MountOptions::default(),
            durability: Durability::Op,
            read_only: false,
            table: "user_id=0,group_id=0".into(),
        };
        let parsed = |list: &str| {
            let r = Remount::parse(&[list], &live).unwrap();
            (r.set.join(","), r.clear.join(","))
        };
        let all = "nosuid,nodev,noexec,nosymfollow";
        assert_eq!(
            parsed("rw,relatime,remount,user_id=0"),
            (String::new(), format!("ro,{all}"))
        );
        let set = |set: &str, clear: &str| (set.to_string(), clear.to_string());
        assert_eq!(
            parsed("ro,nosuid,remount"),
            set("ro,nosuid", "nodev,noexec,nosymfollow")
        );
        assert_eq!(parsed("remount,exec"), set("", "noexec"));
        assert_eq!(parsed("remount,ro"), set("ro", ""));
        assert_eq!(parsed("remount"), set("", ""));
    }
}
