use super::*;
use quayfs_fuse::Errno;
use quayfs_fuse::wire::{InHeader, WriteIn};

fn request(op: Op<'_>, opcode: Opcode) -> Request<'_> {
    let header = InHeader {
        opcode: opcode as u32,
        nodeid: 7,
        pid: 4711,
        ..InHeader::default()
    };
    Request { header, op }
}

fn lookup(name: &[u8]) -> Request<'_> {
    request(Op::Lookup { name }, Opcode::Lookup)
}

fn carry_out(trace: &Trace, request: &Request<'_>, answer: Answer, content: &[u8]) -> bool {
    let begun = trace.begin(request);
    let seen = begun.is_some();
    let mut room = [0; 512];
    let mut out = Out::new(&mut room);
    out.bytes(content).unwrap();
    trace.end(begun, request, &answer, &out);
    seen
}

fn fetch(trace: &Trace, number: u64) -> Value {
    serde_json::from_slice(&trace.fetch(number)).unwrap()
}

fn watch(trace: &Trace) -> u64 {
    fetch(trace, 0)["trace"].as_u64().unwrap()
}

#[test]
fn nothing_is_kept_while_nobody_watches() {
    let trace = Trace::default();
    assert!(!carry_out(&trace, &lookup(b"a"), Ok(()), &[]));
    let me = watch(&trace);
    assert!(fetch(&trace, me)["events"].as_array().unwrap().is_empty());
    assert!(carry_out(&trace, &lookup(b"a"), Ok(()), &[]));
}

#[test]
fn each_request_is_told_once_to_all_who_watch() {
    let trace = Trace::default();
    let (one, other) = (watch(&trace), watch(&trace));
    assert_ne!(one, other);
    let write = WriteIn {
        offset: 4096,
        size: 3,
        ..WriteIn::default()
    };
    let op = Op::Write {
        args: write,
        data: b"abc",
    };
    carry_out(&trace, &lookup(b"file"), Ok(()), &9u64.to_le_bytes());
    carry_out(&trace, &request(op, Opcode::Write), Ok(()), &[0; 8]);
    carry_out(&trace, &lookup(&[b'x'; 60]), Err(Errno::new(2)), &[]);
    for number in [one, other] {
        let told = fetch(&trace, number);
        assert_eq!(
            (&told["trace"], &told["missing"]),
            (&number.into(), &0.into())
        );
        let events = told["events"].as_array().unwrap();
        // Without the times.
        let facts: Vec<_> = events
            .iter()
            .map(|e| e.as_array().unwrap()[2..].to_vec())
            .collect();
        let expected = [
            json!(["lookup", 4711, 7, 9, null, null, 0, "file", false]),
            json!(["write", 4711, 7, 0, 4096, 3, 3, null, false]),
            json!(["lookup", 4711, 7, 0, null, null, -2, "x".repeat(NAME), true]),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|e| e.as_array().unwrap().clone())
            .collect();
        assert_eq!(facts, expected);
        assert!(
            fetch(&trace, number)["events"]
                .as_array()
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn what_is_too_much_is_counted() {
    let trace = Trace::default();
    let me = watch(&trace);
    for _ in 0..BEHIND + 5 {
        carry_out(&trace, &lookup(b"a"), Ok(()), &[]);
    }
    let mut told = 0;
    let first = trace.fetch(me);
    assert!(first.len() <= ROOM);
    let mut part: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(part["missing"], 5);
    while let n @ 1.. = part["events"].as_array().unwrap().len() {
        told += n;
        part = fetch(&trace, me);
        assert_eq!(part["missing"], 0);
    }
    assert_eq!(told, BEHIND);
}

#[test]
fn who_does_not_ask_does_not_watch() {
    let trace = Trace::default();
    let all: Vec<u64> = (0..SEATS).map(|_| watch(&trace)).collect();
    assert!(fetch(&trace, 0)["trace"].is_null(), "all seats are taken");
    let mut trace = trace;
    // As if it had begun long ago.
    trace.since -= 2 * LAPSE;
    trace.fetch(all[0]);
    assert!(carry_out(&trace, &lookup(b"a"), Ok(()), &[]));
    assert!(fetch(&trace, all[1])["trace"].is_null());
    assert_eq!(fetch(&trace, all[0])["events"].as_array().unwrap().len(), 1);
    trace.since -= 2 * LAPSE;
    assert!(carry_out(&trace, &lookup(b"a"), Ok(()), &[]));
    assert!(!carry_out(&trace, &lookup(b"a"), Ok(()), &[]));
    assert!(fetch(&trace, all[0])["trace"].is_null());
}

#[test]
fn those_who_watch_do_not_see_themselves() {
    let trace = Trace::default();
    watch(&trace);
    // Of whatever is seen of the mount.
    for (name, is_traced) in [(&b"quayfs.trace.7"[..], false), (b"user.trace", true)] {
        let asks = request(Op::Getxattr { size: 9, name }, Opcode::Getxattr);
        assert_eq!(carry_out(&trace, &asks, Ok(()), &[]), is_traced);
    }
}
