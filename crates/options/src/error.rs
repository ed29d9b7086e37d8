//! Why a list of options is refused.

/// Why a list of mount options is refused. Prints as one line that says what is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option `{0}`: see `quayfs mount --help` for the list")]
    Unknown(String),
    /// The option exists, its value does not.
    #[error("mount option `{option}` cannot be `{value}`: use {expected}")]
    Value {
        /// Name of the option.
        option: String,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// Known to mount(8), but a FUSE file system cannot do it.
    #[error("mount option `{option}` cannot be honoured: {why}")]
    Unsupported {
        /// Name of the option.
        option: String,
        /// The reason and the way out.
        why: &'static str,
    },
    /// A mount has it otherwise and keeps it so.
    #[error(
        "mount option `{option}` cannot be changed by `remount`, only ro, nosuid, nodev, noexec, nosymfollow and their opposites can: {why}"
    )]
    Fixed {
        /// The option as it was said.
        option: String,
        /// The way out.
        why: &'static str,
    },
    /// Two options exclude each other.
    #[error("mount options `{first}` and `{second}` contradict each other: {why}")]
    Contradiction {
        /// What was said first.
        first: String,
        /// What was said then.
        second: String,
        /// Which one to drop.
        why: &'static str,
    },
}
