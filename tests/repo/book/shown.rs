//! Whether a program prints what a document shows: the same lines, but for what differs from run to run.

/// Units of sizes and times, which go with the number before them.
const UNITS: [&str; 12] = [
    "B", "KiB", "MiB", "GiB", "TiB", "us", "ms", "s", "min", "h", "d", "days",
];

/// Lines of which only the name is compared: what they say depends on the moment.
const OF_THE_MOMENT: [&str; 2] = ["staged", "commit"];

/// A line without what differs from run to run: words with digits in them, with their units, are `#`.
pub fn shape(line: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        match (word.contains(|c: char| c.is_ascii_digit()), words.last()) {
            (true, Some(&"#")) => {}
            (true, _) => words.push("#"),
            (false, Some(&"#")) if UNITS.contains(&bare) => {}
            (false, _) => words.push(word),
        }
    }
    match words.first() {
        Some(first) if OF_THE_MOMENT.contains(first) => (*first).into(),
        _ => words.join(" "),
    }
}

/// Lines that were broken for want of room, in one piece: what goes on is indented as nothing else is.
fn unbroken(lines: &[String]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    for line in lines {
        match (line.strip_prefix("          "), whole.last_mut()) {
            (Some(more), Some(last)) => *last += &format!(" {}", more.trim_start()),
            _ => whole.push(line.clone()),
        }
    }
    whole
}

/// Whether the lines are those that are shown, where `...` stands for any lines.
pub fn matches(shown: &[String], printed: &[String]) -> bool {
    are_these(&unbroken(shown), &unbroken(printed))
}

fn are_these(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (Some((first, rest)), _) if first == "..." => {
            (0..=printed.len()).any(|n| are_these(rest, &printed[n..]))
        }
        (Some((first, rest)), Some((line, more))) => {
            shape(first) == shape(line) && are_these(rest, more)
        }
        (None, None) => true,
        _ => false,
    }
}

#[test]
fn numbers_and_their_units_do_not_matter() {
    assert_eq!(
        shape("  up 2 h 5 min, 0 restarts"),
        shape("  up 41 s, 3 restarts")
    );
    assert_eq!(shape("2 MiB of 9 GiB (<1%)"), "# of #");
    assert_eq!(
        shape("commit 2 s ago"),
        shape("  commit  none since the mount")
    );
    assert_ne!(shape("errors  none"), shape("errors  2 since the mount"));
    assert_ne!(shape("durable at fsync"), shape("durable"));
}

#[test]
fn some_lines_may_be_left_out() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let printed = lines("a\nb 1\nc");
    assert!(matches(&lines("a\nb 22\nc"), &printed));
    assert!(matches(&lines("a\n..."), &printed) && matches(&lines("...\nc"), &printed));
    assert!(matches(&lines("a\n...\nb 2\nc"), &printed));
    assert!(!matches(&lines("a\nb 1"), &printed) && !matches(&[], &printed));
    assert!(!matches(&lines("a\n...\nd"), &printed));
    let broken = lines("staging 1 MiB\n              (2%)\nx");
    assert!(matches(&lines("staging 900 KiB (2%)\nx"), &broken));
}
