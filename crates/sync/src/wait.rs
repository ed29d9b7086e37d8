//! Waiting for a device, which others may have to know of.

use std::sync::OnceLock;

static AROUND: OnceLock<fn(&mut dyn FnMut())> = OnceLock::new();

/// From now on, in the whole process, waits for devices run inside of `around`, which has to call what it is given
/// once. The first call counts.
pub fn run_waits_in(around: fn(&mut dyn FnMut())) {
    let _ = AROUND.set(around);
}

/// Runs something that waits for a device, or for a thread that does: so long that another thread could use this
/// thread's turn.
pub fn wait_for_device<R>(wait: impl FnOnce() -> R) -> R {
    let Some(around) = AROUND.get() else {
        return wait();
    };
    let (mut wait, mut result) = (Some(wait), None);
    around(&mut || result = wait.take().map(|wait| wait()));
    result.expect("it was called")
}
