//! The text format of OpenMetrics 1.0.

use super::catalogue::Family;
use std::fmt::Write as _;

/// What a server says that it is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All families with their samples, each of which is told to be of this volume.
pub fn text(families: &[Family], volume: &str) -> String {
    let mut out = String::new();
    for family in families {
        let name = &family.name;
        // A `String` takes everything.
        let _ = writeln!(out, "# TYPE {name} {}", family.kind.word());
        if !family.unit.is_empty() {
            let _ = writeln!(out, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(out, "# HELP {name} {}", escaped(&family.help));
        for sample in &family.samples {
            let _ = write!(
                out,
                "{name}{}{{volume=\"{}\"",
                sample.suffix,
                escaped(volume)
            );
            for (label, value) in &sample.labels {
                let _ = write!(out, ",{label}=\"{}\"", escaped(value));
            }
            let _ = writeln!(out, "}} {}", sample.value);
        }
    }
    out.push_str("# EOF\n");
    out
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}
