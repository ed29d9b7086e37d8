use super::*;

const LIMITS: Limits = Limits {
    places: 2,
    run: 10,
    gap: 4,
    times: 1,
    sparse: 3,
    requests: 2,
    least: 8,
    segment: 8,
    streams: 3,
    idle: 4,
    ends: 8,
    rest: Duration::MAX,
};
const DEVICE: u64 = 10_000;

fn streams() -> Streams {
    Streams::new(LIMITS, DEVICE)
}

/// A request for this many blocks at each of these places; which of the runs are covered.
fn request(s: &mut Streams, places: &[u64], len: u64) -> Vec<usize> {
    let runs: Vec<_> = places.iter().map(|p| *p..p + len).collect();
    let covered = s.request(&runs).into_iter().map(|(i, _)| i);
    let mut covered: Vec<usize> = covered.collect();
    covered.sort_unstable();
    covered
}

/// What is to be read: from where up to where.
fn read(s: &mut Streams) -> Vec<(u64, u64)> {
    let batch = s.next(1000);
    let blocks = batch.iter().map(|s| (s.blocks.start, s.blocks.end));
    blocks.collect()
}

#[test]
fn who_goes_on_in_several_places_is_read_ahead() {
    let mut s = streams();
    assert_eq!(request(&mut s, &[100, 500, 900], 3), [0; 0]);
    assert!(read(&mut s).is_empty());
    // Goes on in two of them: with nothing in between, and with a little.
    assert_eq!(request(&mut s, &[103, 507, 908], 3), [0; 0]);
    assert_eq!(read(&mut s), [(106, 114), (510, 518)]);
    assert_eq!(request(&mut s, &[510, 911, 106], 3), [0, 2]);
    // The third has been found by now, and of the others less is left than should be.
    let next = [(114, 122), (518, 526), (914, 922)];
    assert_eq!(read(&mut s), next);
    assert_eq!(request(&mut s, &[109, 513, 914], 5), [0, 1, 2]);
    assert_eq!(read(&mut s), [(922, 930)]);
}

#[test]
fn who_goes_on_in_one_place_or_nowhere_is_not() {
    let mut s = streams();
    for i in 0..10 {
        // In order, but not in short pieces.
        assert_eq!(request(&mut s, &[100 + 3 * i], 3), [0; 0]);
        // Long runs.
        assert_eq!(request(&mut s, &[1000 + 10 * i, 3000 + 10 * i], 10), [0; 0]);
        // Far from each other, or backwards.
        let apart = [5000 + 20 * i, 6000 + 20 * i, 8000 - 20 * i];
        assert_eq!(request(&mut s, &apart, 3), [0; 0]);
        assert!(!s.has_next() && s.streams.is_empty());
    }
}

#[test]
fn one_request_alone_does_not_go_on() {
    let mut s = streams();
    // The runs of each place have gaps that are small enough, or just not.
    let _ = s.request(&[100..102, 104..106, 110..112, 117..119, 500..501]);
    assert!(s.streams.is_empty());
}

#[test]
fn a_stream_begins_where_requests_have_gone_on_more_than_once() {
    let mut s = Streams::new(Limits { times: 3, ..LIMITS }, DEVICE);
    for i in 0..4 {
        assert!(!s.has_next());
        request(&mut s, &[100 + 2 * i, 500 + 2 * i], 2);
    }
    assert_eq!(read(&mut s), [(108, 116), (508, 516)]);
}

#[test]
fn a_stream_is_read_for_a_good_part_of_it() {
    let mut s = Streams::new(Limits { times: 2, ..LIMITS }, DEVICE);
    // Of three blocks one is asked for here, of five there.
    let sparse = |s: &mut Streams, i: u64| request(s, &[100 + 3 * i, 500 + 5 * i], 1);
    for i in 0..3 {
        assert_eq!(sparse(&mut s, i), [0; 0]);
    }
    assert_eq!(read(&mut s), [(107, 115)]);
    for i in 3..5 {
        assert_eq!(sparse(&mut s, i), [0]);
    }
    assert_eq!(read(&mut s), [(115, 123)]);
    // A stream dries up: what is there is used, and that was it.
    assert_eq!(request(&mut s, &[118, 525], 1), [0]);
    assert!(!s.has_next() && s.streams.is_empty());
    // Where it becomes dense, it is read again, and so is the other.
    for i in 0..10 {
        request(&mut s, &[123 + 3 * i, 529 + 3 * i], 3);
    }
    assert_eq!(s.streams.len(), 2);
}

#[test]
fn of_streams_that_overlap_the_later_one_is_read() {
    let mut s = streams();
    let places = |i: u64| [100 + 2 * i, 118 + 2 * i];
    for i in 0..6 {
        request(&mut s, &places(i), 2);
        read(&mut s);
    }
    // The first has come up to where the other one began, and this goes on.
    assert_eq!(s.streams.len(), 2);
    for i in 6..20 {
        assert_eq!(request(&mut s, &places(i), 2), [0, 1]);
        read(&mut s);
    }
}

#[test]
fn what_was_long_ago_counts_less() {
    let mut s = streams();
    // Long enough that all that follows could be read for nothing.
    for i in 0..1000 {
        request(&mut s, &[100 + 4 * i, 5000 + 4 * i], 4);
        read(&mut s);
    }
    assert_eq!(s.streams.len(), 2);
    let mut at = 4100;
    while s.streams.len() == 2 {
        at += 5;
        assert!(at < 4100 + 3 * PASSED);
        request(&mut s, &[at, at + 4900], 1);
        read(&mut s);
    }
}

#[test]
fn runs_that_are_partly_there_are_not_covered() {
    let mut s = streams();
    request(&mut s, &[100, 500], 4);
    request(&mut s, &[104, 504], 4);
    assert_eq!(read(&mut s), [(108, 116), (508, 516)]);
    // One ends where the stream does, the other behind that: it is overtaken and begins anew.
    assert_eq!(s.request(&[108..116, 508..517]).len(), 1);
    assert_eq!(read(&mut s), [(116, 124), (517, 525)]);
    assert_eq!(request(&mut s, &[118, 519], 4), [0, 1]);
}

#[test]
fn no_more_than_what_is_soon_passed_is_read() {
    let mut s = streams();
    request(&mut s, &[100, 500], 2);
    request(&mut s, &[102, 502], 2);
    // Nothing has been read yet.
    for i in 0..2 {
        assert_eq!(request(&mut s, &[104 + 2 * i, 504 + 2 * i], 2), [0, 1]);
    }
    let all = [(104, 112), (504, 512), (112, 120), (512, 520)];
    assert_eq!(read(&mut s), all);
    request(&mut s, &[108, 508], 2);
    request(&mut s, &[110, 510], 2);
    assert!(!s.has_next());
    request(&mut s, &[112, 512], 1);
    assert_eq!(read(&mut s), [(120, 128), (520, 528)]);
}

#[test]
fn requests_may_come_in_another_order() {
    let mut s = streams();
    request(&mut s, &[100, 500], 2);
    request(&mut s, &[102, 502], 2);
    read(&mut s);
    assert_eq!(request(&mut s, &[107, 507], 3), [0, 1]);
    assert_eq!(request(&mut s, &[104, 504], 3), [0, 1]);
    assert_eq!(read(&mut s), [(112, 120), (512, 520)]);
    // All of the first segment is read, and it is given up.
    assert_eq!(request(&mut s, &[110, 510], 2), [0, 1]);
    assert_eq!(request(&mut s, &[104, 504], 1), [0; 0]);
}

#[test]
fn who_is_faster_leaves_what_is_there_to_who_comes_late() {
    let mut s = streams();
    request(&mut s, &[100, 500], 2);
    request(&mut s, &[102, 502], 2);
    read(&mut s);
    assert_eq!(request(&mut s, &[113, 513], 2), [0; 0]);
    assert_eq!(read(&mut s), [(115, 123), (515, 523)]);
    assert_eq!(request(&mut s, &[104, 504], 4), [0, 1]);
    // Not all of it is there.
    assert_eq!(request(&mut s, &[110, 510], 5), [0; 0]);
    assert_eq!(request(&mut s, &[115, 515], 4), [0, 1]);
    assert_eq!(s.streams.len(), 2);
}

#[test]
fn who_passes_much_has_as_much_before_him() {
    let limits = Limits {
        run: 100,
        gap: 10,
        ..LIMITS
    };
    let mut s = Streams::new(limits, DEVICE);
    // Much here, little there.
    let many = |s: &mut Streams, i: u64| {
        let little = 5000 + 4 * i;
        s.request(&[100 + 30 * i..130 + 30 * i, little..little + 4])
            .len()
    };
    assert_eq!((many(&mut s, 0), many(&mut s, 1)), (0, 0));
    read(&mut s);
    many(&mut s, 2);
    for i in 3..10 {
        read(&mut s);
        assert_eq!(many(&mut s, i), 2);
    }
}

#[test]
fn what_could_not_be_read_is_not_waited_for() {
    let mut s = streams();
    request(&mut s, &[100, 500], 4);
    request(&mut s, &[104, 504], 4);
    let batch = s.next(8);
    batch[0].data.set(None).unwrap();
    assert_eq!(request(&mut s, &[108, 508], 4), [1]);
}

#[test]
fn the_device_ends_somewhere() {
    let mut s = streams();
    request(&mut s, &[100, DEVICE - 12], 4);
    request(&mut s, &[104, DEVICE - 8], 4);
    assert_eq!(read(&mut s), [(108, 116), (DEVICE - 4, DEVICE)]);
    assert_eq!(request(&mut s, &[108, DEVICE - 4], 4), [0, 1]);
    read(&mut s);
    request(&mut s, &[112, 0], 4);
    assert_eq!(s.streams.len(), 1);
    // Up to its end, and no further.
    let mut s = streams();
    request(&mut s, &[100, DEVICE - 8], 4);
    request(&mut s, &[104, DEVICE - 4], 4);
    assert_eq!(read(&mut s), [(108, 116)]);
}

#[test]
fn what_is_written_is_forgotten() {
    let mut s = streams();
    request(&mut s, &[100, 500], 4);
    request(&mut s, &[104, 504], 4);
    for blocks in [107..108, 116..117, 200..300, 516..520] {
        s.forget(&blocks);
    }
    assert_eq!(s.streams.len(), 2);
    s.forget(&(115..200));
    assert_eq!(s.streams.len(), 1);
    // What was to be read for the forgotten stream is not wanted any more.
    assert_eq!(read(&mut s), [(508, 516)]);
    assert_eq!(request(&mut s, &[108, 508], 4), [1]);
    // A reader that goes on there is not forgotten.
    assert_eq!(read(&mut s), [(112, 120), (516, 524)]);
}

#[test]
fn streams_are_few_and_idle_ones_make_room() {
    let mut s = streams();
    let four = [100, 500, 900, 1300];
    request(&mut s, &four, 4);
    request(&mut s, &four.map(|p| p + 4), 4);
    assert_eq!(s.streams.len(), LIMITS.streams);
    read(&mut s);
    assert_eq!(request(&mut s, &four.map(|p| p + 8), 4), [0, 1, 2]);
    // Another reader comes, while the other streams are used and after that.
    let mut at = 5000;
    let mut other = |s: &mut Streams| {
        at += 4;
        request(s, &[at, at + 1000], 4);
        s.find(at + 4).is_some()
    };
    for _ in 0..LIMITS.idle {
        assert!(!other(&mut s));
    }
    assert!(other(&mut s));
}

#[test]
fn a_batch_has_as_much_as_fits() {
    let mut s = streams();
    request(&mut s, &[100, 500, 900], 4);
    request(&mut s, &[104, 504, 904], 4);
    assert_eq!(s.next(17).len(), 2);
    assert_eq!(s.next(17).len(), 1);
    assert!(!s.has_next());
}

#[test]
fn a_waiter_is_told_when_its_read_is_given_up() {
    let mut s = streams();
    request(&mut s, &[100, 500], 4);
    request(&mut s, &[104, 504], 4);
    let covered = s.request(&[108..110, 508..510]);
    assert_eq!(covered.len(), 2);
    // A segment of a forgotten stream is read all the same if a request waits for it.
    s.forget(&(110..111));
    assert_eq!(s.next(8).len(), 1);
    s.clear();
    assert!(!covered[0].1[0].is_settled());
    assert!(covered[1].1[0].data.get().is_some_and(Option::is_none));
}
