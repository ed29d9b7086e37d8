//! The mount options as the README has them.

const README: &str = include_str!("../../../README.md");

/// A row of its table of mount options, in Markdown.
#[derive(Debug, PartialEq, Eq)]
pub struct MountOption {
    /// How it is written.
    pub term: String,
    /// What it does.
    pub text: String,
}

/// All rows, in their order.
pub fn mount_options() -> Vec<MountOption> {
    rows(README, "| option | |")
}

fn rows(page: &str, header: &str) -> Vec<MountOption> {
    let rows = page.lines().skip_while(|line| *line != header).skip(2);
    rows.map_while(row).collect()
}

fn row(line: &str) -> Option<MountOption> {
    let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let (term, text) = cells.split_once(" | ")?;
    Some(MountOption {
        term: term.into(),
        text: text.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_with_the_table() {
        let page = "x\n| option | |\n|---|---|\n| `a` \\| `b` | c |\n| `d=` | e, [f](g) |\n\n| `no` | h |\n";
        let pairs: Vec<_> = rows(page, "| option | |")
            .into_iter()
            .map(|row| (row.term, row.text))
            .collect();
        let want = [("`a` \\| `b`", "c"), ("`d=`", "e, [f](g)")];
        assert_eq!(pairs, want.map(|(a, b)| (a.into(), b.into())));
    }
}
