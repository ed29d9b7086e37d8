//! Advice on options that are not the default because they cost something elsewhere. It is given only where the messages that
//! came so far show that an option would matter.

use serde_json::Value;
use std::path::Path;

/// Fewer messages than this say nothing.
const LEAST: u64 = 10_000;
/// What is less than this share of them, in percent, is not worth an option.
const SHARE: u64 = 20;
/// Where the kernel says whether it passes requests through rings.
pub const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// Advice for a mount with this status, one sentence each.
pub fn advice(status: &Value) -> Vec<String> {
    let switched_off = offers_no_rings();
    given(status, switched_off)
}

fn given(status: &Value, rings_are_off: bool) -> Vec<String> {
    let messages = |kinds: &[&str]| -> u64 {
        let count = |kind: &&str| status["messages"][*kind].as_u64().unwrap_or(0);
        kinds.iter().map(count).sum()
    };
    let total = status["counters"]["requests"].as_u64().unwrap_or(0);
    let percent = |kinds: &[&str]| messages(kinds) * 100 / total.max(1);
    let options = status["options"].as_str().unwrap_or_default();
    let has = |option: &str| options.split(',').any(|o| o == option);
    if total < LEAST {
        return Vec::new();
    }
    let mut advice = Vec::new();
    let would_use_rings = has("transport=auto") && has("norestart");
    if status["transport"] == "dev" && would_use_rings && rings_are_off {
        advice.push(format!(
            "requests come by /dev/fuse; Linux can pass them through rings, which cost less: `echo Y > {RINGS}` as root, then mount again"
        ));
    }
    let opens = percent(&["open", "release"]);
    // These exclude it, and were asked for.
    let elidable = has("open=answer") && !has("strictatime") && !has("atomic_writes");
    if elidable && opens >= SHARE {
        advice.push(format!(
            "{opens} % of the messages are open and release: `open=elide` saves them; O_DIRECT writes to one file are then made one after the other, and O_SYNC does not count for fallocate and copy_file_range"
        ));
    }
    let checks = percent(&["getattr"]);
    let alone = !has("allow_other") && !has("permissions=owner") && !has("acl") && !has("idmap");
    if alone && checks >= SHARE {
        advice.push(format!(
            "{checks} % of the messages are getattr: `permissions=owner` saves those that check permissions; the user who mounted may then do everything, and other users still cannot enter"
        ));
    }
    advice
}

/// Whether the kernel says so; where it says nothing, nothing is known.
pub fn offers_no_rings() -> bool {
    std::fs::read_to_string(Path::new(RINGS)).is_ok_and(|on| on.trim() == "N")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(options: &str, messages: Value) -> Value {
        let total: u64 = messages
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_u64)
            .sum();
        json!({
            "transport": "dev",
            "options": options,
            "messages": messages,
            "counters": { "requests": total },
        })
    }

    /// The words that each piece of advice is about.
    fn about(options: &str, messages: Value, rings_are_off: bool) -> Vec<&'static str> {
        let words = ["rings", "open=elide", "permissions=owner"];
        let given = given(&status(options, messages), rings_are_off);
        let word = |text: &String| words.into_iter().find(|word| text.contains(word)).unwrap();
        given.iter().map(word).collect()
    }

    #[test]
    fn advice_is_given_where_messages_show_that_it_matters() {
        let mail = || json!({ "open": 2000, "create": 1000, "release": 3000, "getattr": 5000, "write": 6000 });
        let auto = "rw,open=answer,transport=auto,norestart";
        assert_eq!(
            about(auto, mail(), true),
            ["rings", "open=elide", "permissions=owner"]
        );
        assert_eq!(
            about(auto, mail(), false),
            ["open=elide", "permissions=owner"]
        );
        let streams = || json!({ "open": 1000, "release": 1000, "write": 60_000 });
        assert_eq!(about(auto, streams(), false), [""; 0]);
        let young = || json!({ "open": 2000, "release": 2000 });
        assert_eq!(about(auto, young(), true), [""; 0]);
    }

    #[test]
    fn no_advice_is_against_what_was_asked_for() {
        let mail = || json!({ "open": 3000, "release": 3000, "getattr": 4000, "write": 6000 });
        for (options, left) in [
            ("open=elide,transport=dev", &["permissions=owner"][..]),
            (
                "open=answer,transport=auto,norestart,atomic_writes,allow_other",
                &["rings"],
            ),
            ("open=elide,transport=auto,allow_other", &[]),
            ("open=answer,strictatime,permissions=owner", &[]),
            ("open=answer,acl", &["open=elide"]),
        ] {
            assert_eq!(about(options, mail(), true), left, "{options}");
        }
        let mut rings = status("open=elide,transport=auto,norestart,allow_other", mail());
        rings["transport"] = json!("uring");
        assert_eq!(given(&rings, true), [""; 0]);
    }
}
