//! Text as a manual page has it: what the formatter would obey is escaped, and Markdown's marks become fonts.

/// The beginning of a page.
pub fn title(name: &str, section: u8) -> String {
    let name = name.to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH \"{name}\" \"{section}\" \"\" \"quayfs {version}\" \"QuayFS\"\n")
}

/// The heading of a section.
pub fn section(name: &str) -> String {
    format!(".SH {}\n", name.to_uppercase())
}

/// Text that is filled, with Markdown's marks in it.
pub fn prose(text: &str) -> String {
    let lines = text.lines().map(|line| guard(&inline(line.trim())));
    lines.map(|line| line + "\n").collect()
}

/// Lines that stay as they are. What is marked as code is in quotes of the same width, so that columns stay columns.
pub fn example<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let lines = lines
        .into_iter()
        .map(|line| guard(&quoted(line)) + "\n")
        .collect::<String>();
    format!(".nf\n{lines}.fi\n")
}

/// A term and what is said of it, with Markdown's marks in both.
pub fn entry(term: &str, text: &str) -> String {
    format!(".TP\n{}{}", prose(term), prose(text))
}

/// Text that is escaped already, with code in it made bold.
pub fn strong(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (n, part) in text.split('`').enumerate() {
        match n {
            0 => {}
            n if n % 2 == 1 => out.push_str("\\fB"),
            _ => out.push_str("\\fR"),
        }
        out.push_str(part);
    }
    out
}

/// A page that is another one.
pub fn same_as(section: u8, name: &str) -> String {
    format!(".so man{section}/{name}.{section}\n")
}

/// Characters as themselves. In names and commands a hyphen has to be one that can be copied.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

/// A line that does not look like a request.
fn guard(line: &str) -> String {
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.into(),
    }
}

/// A line of Markdown: code and what is strong become bold, links their text.
fn inline(line: &str) -> String {
    let mut out = String::new();
    for (n, part) in line.split('`').enumerate() {
        match n % 2 {
            0 => out.push_str(&spoken(part)),
            _ => out.push_str(&bold(part)),
        }
    }
    out
}

fn quoted(line: &str) -> String {
    let mut out = String::new();
    for (n, part) in line.split('`').enumerate() {
        match n {
            0 => {}
            n if n % 2 == 1 => out.push_str("\\(oq"),
            _ => out.push_str("\\(cq"),
        }
        out.push_str(&escape(part));
    }
    out
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escape(text))
}

/// What is not code: an apostrophe and a hyphen may be typographic there.
fn spoken(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        plain.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let plain = plain.replace('[', "").replace("\\|", "|");
    let parts = plain.split("**").enumerate();
    parts
        .map(|(n, part)| match n % 2 {
            0 => part.replace('\\', "\\e"),
            _ => bold(part),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_fonts() {
        assert_eq!(
            prose("see `-o a` \\| [`b`](c.md#d), **not** it's"),
            "see \\fB\\-o a\\fR | \\fBb\\fR, \\fBnot\\fR it's\n"
        );
    }

    #[test]
    fn nothing_is_a_request() {
        assert_eq!(prose(".so x"), "\\&.so x\n");
        assert_eq!(
            example(["  .x 'y'", ".z \\ `a`"]),
            ".nf\n  .x \\(aqy\\(aq\n\\&.z \\e \\(oqa\\(cq\n.fi\n"
        );
    }
}
