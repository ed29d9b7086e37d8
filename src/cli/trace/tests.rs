use super::*;
use clap::Parser;

fn args(words: &[&str]) -> args::Trace {
    let words = ["quayfs", "trace", "/mnt"].iter().chain(words);
    match args::Cli::try_parse_from(words).unwrap().command {
        args::Command::Trace(args) => args,
        other => panic!("{other:?}"),
    }
}

/// What is printed of these answers of a daemon.
fn printed(words: &[&str], answers: &[Value]) -> Vec<String> {
    let args = args(words);
    let mut trace = Trace {
        args: &args,
        files: Files::default(),
        processes: Processes::default(),
        missing: 0,
        out: Vec::new(),
    };
    for answer in answers {
        assert_eq!(trace.line(&answer.to_string()), None);
    }
    let text = String::from_utf8(trace.out).unwrap();
    text.lines().map(str::to_string).collect()
}

/// No task has this number.
const NONE: u32 = u32::MAX;

fn sample() -> Value {
    let events = json!([
        [
            1_000_000, 1_500, "lookup", NONE, 1, 5, null, null, 0, "dir", false
        ],
        [
            2_000_000,
            2_000,
            "create",
            NONE,
            5,
            6,
            null,
            null,
            0,
            "fi\u{1b}le",
            false
        ],
        [
            3_000_000, 45_000_000, "write", NONE, 6, 0, 4096, 3, 3, null, false
        ],
        [
            4_000_000, 900, "lookup", NONE, 5, 0, null, null, -2, "none", false
        ],
        [
            5_000_000, 900, "getattr", NONE, 77, 0, null, null, 0, null, false
        ],
        [
            6_000_000,
            900,
            "unlink",
            NONE,
            5,
            0,
            null,
            null,
            0,
            "fi\u{1b}le",
            false
        ],
        [7_000_000, 900, "read", NONE, 6, 0, 0, 9, 3, null, false],
    ]);
    json!({ "trace": 1, "missing": 0, "events": events })
}

#[test]
fn lines_say_what_was_asked_of_which_file() {
    let lines = printed(&[], &[sample()]);
    let expected = [
        ("00:00:01.000000", "lookup", "/dir inode 1 = 0"),
        ("00:00:02.000000", "create", "/dir/fi\\x1ble inode 5 = 0"),
        (
            "00:00:03.000000",
            "write",
            "/dir/fi\\x1ble inode 6 4096+3 = 3",
        ),
        (
            "00:00:04.000000",
            "lookup",
            "/dir/none inode 5 = no such file or directory (2)",
        ),
        ("00:00:05.000000", "getattr", "- inode 77 = 0"),
        ("00:00:06.000000", "unlink", "/dir/fi\\x1ble inode 5 = 0"),
        // It has no name any more that is known.
        ("00:00:07.000000", "read", "- inode 6 0+9 = 3"),
    ];
    assert_eq!(lines.len(), expected.len());
    for (line, (time, op, rest)) in lines.iter().zip(expected) {
        assert!(line.starts_with(time) && line.ends_with(rest), "{line}");
        assert!(line.contains(&format!(" {op} ")), "{line}");
    }
    assert!(lines[2].contains(" 45 ms "), "{}", lines[2]);
}

#[test]
fn only_what_is_asked_for_is_shown_and_all_of_it_is_learnt_from() {
    for (words, n) in [
        (&["--op", "write"][..], 1),
        (&["--op", "write", "--op", "lookup"], 3),
        (&["--slower", "40ms"], 1),
        (&["--slower", "1s"], 0),
        (&["--pid", "4294967295"], 7),
        (&["--pid", "1"], 0),
    ] {
        let lines = printed(words, &[sample()]);
        assert_eq!(lines.len(), n, "{words:?}: {lines:?}");
    }
    let lines = printed(&["--op", "write"], &[sample()]);
    assert!(lines[0].contains("/dir/"), "{lines:?}");
}

#[test]
fn programs_get_objects() {
    let mut more = sample();
    more["missing"] = 5.into();
    let lines = printed(&["--json", "--op", "write"], &[more]);
    let lines: Vec<Value> = lines
        .iter()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let expected = json!({
        "time": "1970-01-01T00:00:03.000000Z", "op": "write", "pid": null, "task": NONE, "process": null,
        "inode": 6, "path": "/dir/fi\u{1b}le", "name": null, "offset": 4096, "length": 3, "bytes": 3, "errno": null,
        "latency_us": 45_000.0,
    });
    assert_eq!(lines, [expected, json!({ "missing": 5 })]);
    let lines = printed(&["--json", "--slower", "0s"], &[sample()]);
    let failed: Value = serde_json::from_str(&lines[3]).unwrap();
    assert_eq!(
        (&failed["errno"], &failed["bytes"]),
        (&2.into(), &Value::Null)
    );
}

#[test]
fn operations_are_known_by_their_names() {
    let words = ["quayfs", "trace", "/mnt", "--op", "wirte"];
    let error = args::Cli::try_parse_from(words).unwrap_err().to_string();
    assert!(error.contains("; write may be meant"), "{error}");
}

#[test]
fn it_says_why_it_does_not_begin() {
    let args = args(&[]);
    let mut trace = Trace {
        args: &args,
        files: Files::default(),
        processes: Processes::default(),
        missing: 0,
        out: Vec::new(),
    };
    assert_eq!(trace.line("errno 1\n"), Some(End::Refused(Errno::PERM)));
    assert_eq!(trace.line("too many\n"), Some(End::TooMany));
    assert_eq!(trace.line("half a li"), None);
}
