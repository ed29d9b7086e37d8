use super::*;
use serde_json::json;

/// Two looks with two seconds between them.
pub fn looks() -> (Look, Look) {
    let look = |seconds, status| Look {
        at: Duration::from_secs(seconds),
        status,
        disk: Some(Disk {
            read: 0,
            written: seconds * 4096,
            busy: Duration::from_millis(seconds * 500),
        }),
    };
    let old = json!({
        "messages": { "write": 100, "getattr": 5 },
        "latencies": { "write": { "classes": [100], "nanos": 50_000 } },
        "tasks": { "7": 50, "9": 50 },
        "counters": { "bytes_written": 0, "blocks_staged": 10, "blocks_written": 3, "blocks_absorbed": 0 },
    });
    let new = json!({
        "volume": "/srv/vol", "transport": "dev", "uptime_ms": 61_000,
        "messages": { "write": 300, "getattr": 5, "read": 2 },
        "latencies": { "write": { "classes": [100, 0, 198, 0, 2], "nanos": 650_000 } },
        "tasks": { "7": 60, "9": 240 },
        "counters": { "bytes_written": 2 << 20, "blocks_staged": 522, "blocks_written": 6, "blocks_absorbed": 9 },
        "slots": 100, "slots_used": 25, "staged_blocks": 256,
    });
    (look(10, old), look(12, new))
}

#[test]
fn kinds_are_told_with_their_latencies() {
    let (old, new) = looks();
    let kinds = rates(&old, &new).kinds;
    assert_eq!(kinds.len(), 2, "what did not happen is left out");
    assert_eq!((kinds[0].name.as_str(), kinds[0].rate), ("write", 100.0));
    // 600 us by 200 requests, of which 198 are in the class up to 4096 ns.
    assert_eq!(kinds[0].mean, Duration::from_micros(3));
    assert_eq!(kinds[0].most, Some(Duration::from_nanos(4096)));
    assert_eq!((kinds[1].name.as_str(), kinds[1].rate), ("read", 1.0));
}

#[test]
fn counters_of_another_daemon_begin_at_nothing() {
    let (old, mut new) = looks();
    new.status["messages"]["write"] = json!(10);
    assert_eq!(rates(&old, &new).kinds[0].rate, 5.0);
}

#[test]
fn facts_are_rates() {
    let (old, new) = looks();
    let facts: BTreeMap<_, _> = rates(&old, &new).facts.into_iter().collect();
    for (name, said) in [
        ("write", "1 MiB/s"),
        ("  in", "1 MiB/s"),
        ("  drained", "6 KiB/s"),
        ("  absorbed", "75%"),
        ("staging", "25%"),
        ("staged", "1 MiB"),
        ("disk write", "4 KiB/s, busy 50%"),
    ] {
        assert_eq!(facts[name], said, "{name}");
    }
}

#[test]
fn threads_are_counted_for_their_process() {
    let (old, new) = looks();
    let tasks = rates(&old, &new).tasks;
    assert_eq!((tasks[0].number, tasks[0].rate), (9, 95.0));
    let together = by_process(&tasks, |_| Some((7, "tar".into())));
    assert_eq!(together, [("tar 7".to_string(), 100.0)]);
    let gone = by_process(&tasks, |_| None);
    assert_eq!(gone[0], ("(ended) 9".to_string(), 95.0));
}

#[test]
fn numbers_and_times_are_short() {
    for (n, text) in [
        (0.0, "0"),
        (0.5, "0.5"),
        (99.94, "99.9"),
        (99.96, "100"),
        (9999.0, "9999"),
        (12_345.0, "12k"),
        (2_500_000.0, "2.5M"),
    ] {
        assert_eq!(number(n), text);
    }
    for (us, text) in [
        (0, "0.0 us"),
        (99, "99.0 us"),
        (1500, "1500 us"),
        (20_000, "20 ms"),
        (61_000_000, "1 min 1 s"),
    ] {
        assert_eq!(time(Duration::from_micros(us)), text);
    }
}
