//! A value as text for people: a line for each fact, a table for each list of things that are alike.

use super::Shown;
use super::value::Fields;

/// The text of an object; what it has in it is indented below its name.
pub fn text(value: &Shown) -> String {
    let mut out = String::new();
    match value {
        Shown::Fields(fields) => object(fields, 0, &mut out),
        other => line(0, &scalar(other), &mut out),
    }
    out
}

fn line(indent: usize, text: &str, out: &mut String) {
    out.push_str(&" ".repeat(indent));
    // On one line, whatever a name has in it.
    out.push_str(&quayfs_shown::text(text));
    out.push('\n');
}

fn object(fields: &Fields, indent: usize, out: &mut String) {
    let short = fields.iter().filter(|(_, v)| !v.has_parts());
    let width = short.map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in fields {
        match value {
            Shown::Fields(inner) => {
                line(indent, &format!("{name}:"), out);
                object(inner, indent + 2, out);
            }
            Shown::List(all) if all.is_empty() => line(indent, &format!("{name}: none"), out),
            Shown::List(all) => {
                line(indent, &format!("{name}:"), out);
                list(all, indent + 2, out);
            }
            short => line(indent, &format!("{name:width$}  {}", scalar(short)), out),
        }
    }
}

/// A table, if all are objects without anything in them but scalars; else one after the other.
fn list(all: &[Shown], indent: usize, out: &mut String) {
    let flat = |v: &Shown| match v {
        Shown::Fields(fields) => fields.iter().all(|(_, v)| !v.has_parts()),
        _ => false,
    };
    if all.iter().all(flat) {
        table(all, indent, out);
        return;
    }
    for (n, value) in all.iter().enumerate() {
        match value {
            Shown::Fields(fields) => {
                if n > 0 {
                    out.push('\n');
                }
                object(fields, indent, out);
            }
            other => line(indent, &scalar(other), out),
        }
    }
}

fn table(all: &[Shown], indent: usize, out: &mut String) {
    let rows: Vec<&Fields> = all.iter().filter_map(Shown::fields).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().copied().flatten() {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let cell = |row: &Fields, name: &str| {
        let found = row.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| scalar(value)).unwrap_or_default()
    };
    let mut lines: Vec<Vec<String>> = vec![names.iter().map(|name| name.to_string()).collect()];
    lines.extend(
        rows.iter()
            .map(|row| names.iter().map(|name| cell(row, name)).collect()),
    );
    let width = |i: usize| {
        lines
            .iter()
            .map(|r| r[i].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    for row in lines {
        let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:w$}"));
        line(indent, cells.collect::<Vec<_>>().join("  ").trim_end(), out);
    }
}

fn scalar(value: &Shown) -> String {
    match value {
        Shown::Null | Shown::Fields(_) | Shown::List(_) => "-".into(),
        Shown::Text(s) if s.is_empty() => "-".into(),
        Shown::Text(s) => s.clone(),
        Shown::Flag(b) => b.to_string(),
        Shown::Number(n) => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_lines_and_things_that_are_alike_a_table() {
        let value = shown!({
            "a": 1u64, "bb": "x\ny", "c": None::<u64>, "d": shown!({ "e": true }),
            "f": Shown::List(Vec::new()), "g": vec!["h", "i"],
            "j": vec![
                shown!({ "k": 1u64, "l": "long" }),
                shown!({ "k": 100u64, "m": 2u64 }),
            ],
        });
        let want = [
            "a   1",
            "bb  x\\ny",
            "c   -",
            "d:",
            "  e  true",
            "f: none",
            "g:",
            "  h",
            "  i",
            "j:",
            "  k    l     m",
            "  1    long",
            "  100        2",
        ];
        let text = text(&value);
        assert_eq!(text.lines().collect::<Vec<_>>(), want);
    }
}
