//! Exit codes, and errors of one line.

use std::fmt::Display;

pub use quayfs_shown::command::{Failure, one_line, say, say_json, unprinted};

/// What messages begin with, whatever name the program was called by.
pub const PROGRAM: &str = "quayfs";

/// Success of every command.
pub const OK: u8 = 0;
/// `mkfs`, `info`, `scrub`, `quota`: failed.
pub const FAILED: u8 = 1;
/// `mkfs`, `info`, `scrub`, `quota`: wrong usage.
pub const USAGE: u8 = 2;
/// `scrub`: damage was found.
pub const SCRUB_DAMAGE: u8 = 4;
/// `status`: something is to be looked at.
pub const STATUS_DEGRADED: u8 = 1;
/// `status`: a volume does not do what it is there for.
pub const STATUS_FAILED: u8 = 2;
/// `status`: wrong usage, no such volume, or one that this user may not ask.
pub const STATUS_UNKNOWN: u8 = 3;
/// `doctor`: something could be better, or is to be known.
pub const DOCTOR_NOTE: u8 = 1;
/// `doctor`: something will not work, or not be durable.
pub const DOCTOR_PROBLEM: u8 = 2;
/// `doctor`: wrong usage.
pub const DOCTOR_USAGE: u8 = 3;
/// `mount`, `umount`: wrong usage, as of mount(8).
pub const MOUNT_USAGE: u8 = 1;
/// `mount`, `umount`: failed, as of mount(8).
pub const MOUNT_FAILED: u8 = 32;
/// A daemon that was to go on with a mount: it cannot now, and another one may; or it has left the mount to another one.
pub const NOT_NOW: u8 = 75;
/// `fsck --repair`: damage was found and repaired, and nothing is lost, as of fsck(8).
pub const FSCK_REPAIRED: u8 = 1;
/// `fsck`: damage was found and is still there, or a repair could not keep everything, as of fsck(8).
pub const FSCK_DAMAGE: u8 = 4;
/// `fsck`: could not check, as of fsck(8).
pub const FSCK_FAILED: u8 = 8;
/// `fsck --repair`: a signal has ended it, as of fsck(8).
pub const FSCK_CANCELLED: u8 = 32;
/// `fsck`: wrong usage, as of fsck(8).
pub const FSCK_USAGE: u8 = 16;

/// Prints a warning of one line on the standard error.
pub fn warn(message: impl Display) {
    quayfs_shown::command::warn(PROGRAM, message);
}

/// What clap has to say, in one line that names the help to read.
pub fn usage_line(error: &clap::Error, command: Option<&str>) -> String {
    let command = command.map_or_else(|| PROGRAM.into(), |c| format!("{PROGRAM} {c}"));
    quayfs_shown::command::usage_line(&error.to_string(), &command)
}
