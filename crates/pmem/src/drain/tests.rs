use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

#[test]
fn each_lone_caller_gets_its_own_round() {
    let gate = DrainGate::default();
    let rounds = AtomicU64::new(0);
    for _ in 0..3 {
        let sync = || {
            rounds.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        gate.drain(sync).unwrap();
    }
    assert_eq!(rounds.into_inner(), 3);
}

/// Blocks the first round until `waiting` more callers have arrived, and counts the rounds.
fn rounds_with_callers_during_the_first(waiting: u64) -> u64 {
    let gate = DrainGate::default();
    let rounds = AtomicU64::new(0);
    let (entered, first_entered) = mpsc::channel();
    let sync = || {
        if rounds.fetch_add(1, Ordering::SeqCst) == 0 {
            entered.send(()).unwrap();
            // The latecomers sleep on the condition variable; each got the lock to do so.
            while gate.state.lock().waiting < waiting {
                thread::yield_now();
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let (gate, sync) = (&gate, &sync);
        scope.spawn(move || gate.drain(sync).unwrap());
        first_entered.recv().unwrap();
        for _ in 0..waiting {
            scope.spawn(move || gate.drain(sync).unwrap());
        }
    });
    rounds.into_inner()
}

#[test]
fn a_round_that_began_before_the_call_does_not_count() {
    assert_eq!(rounds_with_callers_during_the_first(1), 2);
}

#[test]
fn all_callers_during_one_round_share_the_next() {
    assert_eq!(rounds_with_callers_during_the_first(8), 2);
}

#[test]
fn the_first_failure_is_kept_and_nothing_is_tried_again() {
    let gate = DrainGate::default();
    let failed = gate.drain(|| Err(error(libc::ENOSPC))).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::ENOSPC));
    let later = gate
        .drain(|| panic!("synchronized after a failure"))
        .unwrap_err();
    assert_eq!(later.raw_os_error(), Some(libc::ENOSPC));
    gate.fail(&error(libc::EIO));
    assert_eq!(gate.failure().unwrap().raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn a_failure_reaches_everybody_who_waits_for_it() {
    let gate = DrainGate::default();
    let (entered, first_entered) = mpsc::channel();
    let sync = || {
        entered.send(()).unwrap();
        while gate.state.lock().waiting < 4 {
            thread::yield_now();
        }
        Err(error(libc::EIO))
    };
    thread::scope(|scope| {
        let (gate, sync) = (&gate, &sync);
        let mut callers = vec![scope.spawn(move || gate.drain(sync))];
        first_entered.recv().unwrap();
        for _ in 0..4 {
            callers.push(scope.spawn(move || gate.drain(|| panic!("tried again"))));
        }
        for caller in callers {
            let errno = caller.join().unwrap().unwrap_err().raw_os_error();
            assert_eq!(errno, Some(libc::EIO));
        }
    });
}

#[test]
fn an_error_without_a_number_keeps_its_kind() {
    let gate = DrainGate::default();
    let failed = gate
        .drain(|| Err(io::ErrorKind::TimedOut.into()))
        .unwrap_err();
    assert_eq!(
        (failed.raw_os_error(), failed.kind()),
        (None, io::ErrorKind::TimedOut)
    );
}
