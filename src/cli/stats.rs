//! `quayfs stats`: all that a mount counts, for people, programs and monitoring.

mod catalogue;
mod http;
mod openmetrics;

use super::args;
use super::asking::{self, Heard};
use super::exit::{FAILED, Failure, say, say_json};
use super::unserved::{self, Unserved};
use crate::mount::table::Entry;
use catalogue::{Family, Kind, families};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a mount may take to answer: with the look at its media it is less than what a monitoring system waits for, mostly
/// 10 seconds.
const SCRAPED: Duration = Duration::from_secs(5);

/// Shows the numbers of a mount, or serves them. Of one whose daemon does not answer it shows what is known without it,
/// and fails.
pub fn run(args: &args::Stats) -> Result<(), Failure> {
    let entry = asking::mount_at(&args.target, FAILED)?;
    if let Some(place) = &args.listen {
        return http::serve(place, || openmetrics_of(&entry));
    }
    let (status, why) = ask(&entry)?;
    let (volume, families) = (volume_of(&status), families(&status));
    if args.json {
        say_json(as_json(volume, &families));
    } else if args.openmetrics {
        say_json(openmetrics::text(&families, volume).trim_end());
    } else {
        say(table(&families).trim_end());
    }
    why.map_or(Ok(()), |why| Err(Failure::new(FAILED, why.line(&entry))))
}

/// What a mount says, or else what is known of it and why it says nothing.
fn ask(entry: &Entry) -> Result<(Value, Option<Unserved>), Failure> {
    let (mut status, why) = match asking::hear(entry, SCRAPED, FAILED)? {
        Heard::Status(status) => (status, None),
        Heard::Nothing(why @ Unserved::Dead) => {
            return Err(Failure::new(FAILED, why.line(entry)));
        }
        Heard::Nothing(why) => (unserved::facts(entry), Some(why)),
    };
    status["up"] = json!(why.is_none());
    Ok((status, why))
}

fn volume_of(status: &Value) -> &str {
    status["volume"].as_str().unwrap_or_default()
}

fn openmetrics_of(entry: &Entry) -> Result<String, Failure> {
    let (status, _) = ask(entry)?;
    Ok(openmetrics::text(&families(&status), volume_of(&status)))
}

fn as_json(volume: &str, families: &[Family]) -> Value {
    let samples = |f: &Family| -> Vec<Value> {
        let labels = |s: &catalogue::Sample| -> serde_json::Map<String, Value> {
            let pairs = s.labels.iter().map(|(k, v)| (k.to_string(), json!(v)));
            pairs.collect()
        };
        let one = |s: &catalogue::Sample| json!({ "suffix": s.suffix, "labels": labels(s), "value": s.value });
        f.samples.iter().map(one).collect()
    };
    let all: Vec<Value> = families
        .iter()
        .map(|f| {
            json!({
                "name": f.name, "type": f.kind.word(), "unit": f.unit, "help": f.help, "samples": samples(f),
            })
        })
        .collect();
    json!({ "schema": 1, "volume": volume, "metrics": all })
}

/// A line for each number; of how long requests took, their number and what they took together.
fn table(families: &[Family]) -> String {
    let mut lines = Vec::new();
    for f in families.iter().filter(|f| f.kind != Kind::Info) {
        for s in f.samples.iter().filter(|s| s.suffix != "_bucket") {
            let kind = s.labels.iter().map(|(_, v)| format!("{{{v}}}"));
            let name = format!("{}{}{}", f.name, s.suffix, kind.collect::<String>());
            lines.push((name, s.value.to_string(), &f.help));
        }
    }
    let width = |of: fn(&(String, String, &String)) -> usize| lines.iter().map(of).max();
    let (first, second) = (width(|l| l.0.len()), width(|l| l.1.len()));
    let (first, second) = (first.unwrap_or(0), second.unwrap_or(0));
    let line = |(name, value, help): &(String, String, &String)| {
        format!("{name:first$}  {value:>second$}  {help}\n")
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
#[path = "stats/openmetrics_tests.rs"]
mod tests;
