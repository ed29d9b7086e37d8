//! `fsck --repair`: what it puts right, that it does so once, and that a crash in between does not
//! change where it ends.

mod crash;
mod limits;
mod loss;
mod read_only;
mod support;
