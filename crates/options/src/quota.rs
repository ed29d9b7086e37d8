//! Whether limits hold.

use std::fmt;

/// What is said of quotas. Options `quota`, as which `usrquota`, `grpquota`, `uquota` and `gquota` count too, and
/// `noquota`. Without any of them limits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Users and groups have to be counted: a volume that does not count them is not mounted.
    On,
    /// No limit holds, also none of a project. What there is is counted all the same.
    Off,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "quota",
            Self::Off => "noquota",
        })
    }
}
