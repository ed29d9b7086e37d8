//! How long a thread is on a CPU at a time.
#![allow(unsafe_code)]

use std::time::Duration;

/// What [`yield_to_short_turns`] asks for. The kernel takes up to 100 ms; others take their 0.7 to 3 ms.
const LONG: Duration = Duration::from_millis(20);

/// From now on this thread runs for long at a time, and so behind threads that have just been woken: since Linux 6.12 a
/// thread with a shorter turn does not wait for the end of a longer one. Each gets as much of a CPU as before. Work in
/// the background otherwise keeps an answer waiting for a whole turn once in a while, where there are few CPUs.
///
/// Without effect on an older kernel, and on a thread with real-time scheduling; where the kernel refuses, all is as before.
pub fn yield_to_short_turns() {
    if let Some(mut attr) = of_this_thread()
        && [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&attr.sched_policy.cast_signed())
    {
        attr.sched_runtime = LONG.as_nanos() as u64;
        // SAFETY: the kernel reads as many bytes as `size` says, which is the size of what is there.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    }
}

fn of_this_thread() -> Option<libc::sched_attr> {
    // SAFETY: it consists of integers.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr);
    // SAFETY: the kernel stores at most `size` bytes there, and all of them are ours.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    attr.size = size as u32;
    (result == 0).then_some(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel says since 6.12 how long turns are; before that it says 0.
    #[test]
    fn turns_are_long_from_then_on_and_all_else_is_as_before() {
        let now = || of_this_thread().expect("every thread may ask for its own");
        let test = move || {
            let before = now();
            yield_to_short_turns();
            let after = now();
            let all_else =
                |attr: libc::sched_attr| (attr.sched_policy, attr.sched_nice, attr.sched_flags);
            assert_eq!(all_else(after), all_else(before));
            let long = LONG.as_nanos() as u64;
            let expected = if before.sched_runtime > 0 { long } else { 0 };
            assert_eq!(after.sched_runtime, expected);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
