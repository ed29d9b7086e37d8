//! Calls that come while a commit runs, and are told when theirs is done; commits that are written while another one
//! waits for the device.

use crate::common;

use common::*;
use quayfs_journal::*;
use quayfs_layout::jsb::PROPOSALS;
use quayfs_pmem::{Backend, Observer, Region};
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Drains that wait for a word to go on, once the test has begun: `false` lets one fail.
struct Gate {
    /// A commit has been written.
    written: Sender<()>,
    begun: Sender<()>,
    go: Mutex<Option<Receiver<bool>>>,
}

impl Observer for Gate {
    fn store(&self, _: u64, _: &[u8], _: bool, _: &'static Location<'static>) {}
    fn flush(&self, _: u64, _: u64, _: &'static Location<'static>) {}
    fn fence(&self, _: &'static Location<'static>) {}
    fn drain(&self, _: &'static Location<'static>) {}

    fn settle_ranges(&self, _: &[Range<u64>], _: &'static Location<'static>) {
        // Most tests do not listen.
        let _ = self.written.send(());
    }

    fn drain_fault(&self) -> Option<io::Error> {
        let go = self.go.lock().unwrap();
        let go = go.as_ref()?;
        self.begun.send(()).unwrap();
        let fine = go.recv().unwrap();
        (!fine).then(|| io::ErrorKind::Other.into())
    }
}

/// A volume, what says that a drain has begun, and what lets it go on. One commit after the other.
fn gated() -> (Volume, Receiver<()>, Sender<bool>) {
    let (volume, _, begun, go) = gated_with(PROPOSALS as u8 - 1);
    (volume, begun, go)
}

/// The same with so many places of proposals, and what says that a commit has been written.
fn gated_with(places: u8) -> (Volume, Receiver<()>, Receiver<()>, Sender<bool>) {
    let recorder = formatted(Backend::File, Durability::Commit);
    let (image, device) = (recorder.region(), recorder.device());
    let bytes = image.read_vec(0, image.len());
    let ((written, is_written), (begun, has_begun)) = (channel(), channel());
    let (go, may_go) = channel();
    let gate = Arc::new(Gate {
        written,
        begun,
        go: Mutex::new(None),
    });
    let observer: Arc<dyn Observer> = gate.clone();
    let region = Arc::new(Region::from_image(&bytes, Some(observer), Backend::File));
    let options = JournalOptions {
        proposals: places,
        ..options(Durability::Commit)
    };
    let volume = Volume::recover_as(small().0, region, device, options, &"");
    *gate.go.lock().unwrap() = Some(may_go);
    assert!(is_written.try_recv().is_err(), "a commit before the test");
    (volume, is_written, has_begun, go)
}

/// Tells a channel.
fn tells(told: &Sender<Option<u64>>) -> impl FnOnce() -> Waiter {
    let told = told.clone();
    move || Box::new(move |done| told.send(done.ok()).unwrap())
}

/// Starts the thread of the queue, and waits until it serves.
fn serve<'s>(
    s: &'s std::thread::Scope<'s, '_>,
    j: &'s Journal,
    each: impl FnMut(Result<u64, JournalError>) + Send + 's,
) {
    s.spawn(move || j.serve_queue(each));
    while !j.serves_queue() {
        std::thread::yield_now();
    }
}

/// Waits for a first commit to begin and for a thread to serve the queue; `queue` calls then, and the result is what
/// they have been told when `after` is done.
fn while_one_commits(
    (volume, begun, go): &(Volume, Receiver<()>, Sender<bool>),
    queue: impl FnOnce(&Sender<Option<u64>>),
    after: impl FnOnce(),
) -> Vec<Option<u64>> {
    let j = &volume.journal;
    let (told, is_told) = channel();
    volume.write(1, &[1]);
    std::thread::scope(|s| {
        serve(s, j, drop);
        s.spawn(|| drop(j.commit(None)));
        begun.recv().unwrap();
        queue(&told);
        assert!(is_told.try_recv().is_err());
        go.send(true).unwrap();
        after();
        j.end_queue();
    });
    drop(told);
    is_told.iter().collect()
}

#[test]
fn what_is_queued_is_committed_together() {
    let gated = gated();
    let (volume, begun, go) = &gated;
    let mut last = 0;
    let told = while_one_commits(
        &gated,
        |told| {
            for op in 2..5 {
                last = volume.write(op, &[op]).seq;
                assert!(volume.journal.commit_or_queue(tells(told)).is_none());
            }
        },
        || {
            // One more commit, whose number alone tells that it covers all three.
            begun.recv().unwrap();
            go.send(true).unwrap();
        },
    );
    assert_eq!(told, [Some(last); 3]);
    assert_eq!(volume.journal.commit_ts(), last);
    assert!(begun.try_recv().is_err(), "a third drain");
}

#[test]
fn what_is_queued_is_told_of_a_failure() {
    let gated = gated();
    let (volume, begun, go) = &gated;
    let told = while_one_commits(
        &gated,
        |told| {
            volume.write(2, &[2]);
            assert!(volume.journal.commit_or_queue(tells(told)).is_none());
        },
        || {
            begun.recv().unwrap();
            go.send(false).unwrap();
        },
    );
    assert_eq!(told, [None]);
    let later = volume
        .journal
        .commit_or_queue(|| unreachable!("it fails at once"));
    assert!(later.expect("no thread serves").is_err());
}

#[test]
fn the_end_leaves_nothing_in_the_queue() {
    let gated = gated();
    let (volume, begun, go) = &gated;
    let mut last = 0;
    let told = while_one_commits(
        &gated,
        |told| {
            last = volume.write(2, &[2]).seq;
            assert!(volume.journal.commit_or_queue(tells(told)).is_none());
            volume.journal.end_queue();
        },
        || {
            begun.recv().unwrap();
            go.send(true).unwrap();
        },
    );
    assert_eq!(told, [Some(last)]);
    // From now on a call commits for itself.
    let last = volume.write(3, &[3]).seq;
    go.send(true).unwrap();
    let done = volume
        .journal
        .commit_or_queue(|| unreachable!("no thread serves"));
    assert_eq!(done.expect("at once").expect("commit"), last);
}

#[test]
fn what_is_durable_already_is_neither_queued_nor_committed() {
    let gated = gated();
    let (volume, _, _) = &gated;
    let mut first = None;
    let told = while_one_commits(
        &gated,
        |_| (),
        || {
            while volume.journal.commit_ts() == 0 {
                std::thread::yield_now();
            }
            first = volume
                .journal
                .commit_or_queue(|| unreachable!("it is durable"));
        },
    );
    assert_eq!(told, []);
    let durable = first.expect("at once").expect("commit");
    assert_eq!(durable, volume.journal.commit_ts());
}

#[test]
fn an_empty_queue_ends_while_a_commit_of_another_thread_runs() {
    // Its thread may see the end before or after that commit, so more than once.
    for _ in 0..20 {
        let (volume, begun, go) = gated();
        let j = &volume.journal;
        volume.write(1, &[1]);
        std::thread::scope(|s| {
            let service = s.spawn(|| j.serve_queue(|_| unreachable!("nothing is queued")));
            while !j.serves_queue() {
                std::thread::yield_now();
            }
            s.spawn(|| j.commit(None).unwrap());
            begun.recv().unwrap();
            j.end_queue();
            std::thread::sleep(std::time::Duration::from_millis(1));
            go.send(true).unwrap();
            service.join().unwrap();
        });
        j.serve_queue(|_| unreachable!("it has ended"));
    }
}

#[test]
fn a_commit_is_written_while_the_one_before_it_waits_for_the_device() {
    let (volume, written, begun, go) = gated_with(PROPOSALS as u8);
    let j = &volume.journal;
    let numbers = std::thread::scope(|s| {
        let commits = [1, 2].map(|op| {
            let seq = volume.write(op, &[op]).seq;
            let commit = s.spawn(move || j.commit(None).unwrap());
            written.recv().unwrap();
            if op == 1 {
                begun.recv().unwrap();
            }
            (seq, commit)
        });
        assert_eq!(j.commit_ts(), 0);
        go.send(true).unwrap();
        begun.recv().unwrap();
        go.send(true).unwrap();
        commits.map(|(seq, commit)| (seq, commit.join().unwrap()))
    });
    assert!(numbers.iter().all(|(seq, committed)| seq == committed));
    assert_eq!(j.commit_ts(), numbers[1].0);
}

#[test]
fn a_commit_that_waits_for_the_one_before_it_takes_along_what_comes() {
    let (volume, written, begun, go) = gated_with(PROPOSALS as u8);
    let j = &volume.journal;
    let (told, is_told) = channel();
    std::thread::scope(|s| {
        serve(s, j, drop);
        for op in [1, 2] {
            volume.write(op, &[op]);
            s.spawn(|| j.commit(None).unwrap());
            written.recv().unwrap();
        }
        begun.recv().unwrap();
        let last = volume.write(3, &[3]).seq;
        assert!(j.commit_or_queue(tells(&told)).is_none());
        // The second commit is written again, with the third operation in it, and no third one is made.
        written.recv().unwrap();
        go.send(true).unwrap();
        begun.recv().unwrap();
        go.send(true).unwrap();
        assert_eq!(is_told.recv().unwrap(), Some(last));
        j.end_queue();
    });
    assert!(written.try_recv().is_err() && begun.try_recv().is_err());
}

#[test]
fn an_exact_cut_takes_nothing_along() {
    let (volume, written, begun, go) = gated_with(PROPOSALS as u8);
    let j = &volume.journal;
    let (told, is_told) = channel();
    std::thread::scope(|s| {
        serve(s, j, drop);
        volume.write(1, &[1]);
        s.spawn(|| j.commit(None).unwrap());
        written.recv().unwrap();
        let second = volume.write(2, &[2]).seq;
        let exact = s.spawn(move || j.commit(Some(second)).unwrap());
        written.recv().unwrap();
        let last = volume.write(3, &[3]).seq;
        assert!(j.commit_or_queue(tells(&told)).is_none());
        for _ in 0..3 {
            begun.recv().unwrap();
            go.send(true).unwrap();
        }
        assert_eq!(exact.join().unwrap(), second);
        assert_eq!(is_told.recv().unwrap(), Some(last));
        j.end_queue();
    });
}

#[test]
fn the_failure_of_a_commit_is_that_of_the_one_behind_it() {
    let (volume, written, begun, go) = gated_with(PROPOSALS as u8);
    let j = &volume.journal;
    std::thread::scope(|s| {
        let commits = [1, 2].map(|op| {
            volume.write(op, &[op]);
            let commit = s.spawn(|| j.commit(None));
            written.recv().unwrap();
            commit
        });
        begun.recv().unwrap();
        go.send(false).unwrap();
        for commit in commits {
            assert!(commit.join().unwrap().is_err());
        }
    });
    assert_eq!(j.commit_ts(), 0);
    assert!(j.commit(None).is_err());
}

#[test]
fn a_call_that_the_waiting_commit_covers_makes_none_of_its_own() {
    let (volume, written, begun, go) = gated_with(PROPOSALS as u8);
    let j = &volume.journal;
    let (told, is_told) = channel();
    let seq = volume.write(1, &[1]).seq;
    std::thread::scope(|s| {
        serve(s, j, |_| unreachable!("there is nothing to commit"));
        s.spawn(|| j.commit(None).unwrap());
        written.recv().unwrap();
        begun.recv().unwrap();
        assert!(j.commit_or_queue(tells(&told)).is_none());
        go.send(true).unwrap();
        assert_eq!(is_told.recv().unwrap(), Some(seq));
        j.end_queue();
    });
}
