//! Whether a mount outlives its daemon.

use std::fmt;

use super::{MountOptions, Transport};

/// Whether another daemon goes on when the one of the mount dies. Options `restart` and `norestart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// It does; a mount for which that is not possible is refused.
    On,
    /// The mount ends with its daemon.
    Off,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "restart",
            Self::Off => "norestart",
        })
    }
}

impl MountOptions {
    /// Why the mount ends with its daemon, wherever it is; `None` if another one is to go on where that is possible.
    pub fn ends_with_daemon(&self) -> Option<&'static str> {
        match (self.restart, self.transport) {
            (Some(Restart::Off), _) => Some("norestart"),
            (None, Transport::Uring) => {
                Some("transport=uring: what the kernel has put into a ring is lost with the daemon")
            }
            _ => None,
        }
    }
}
