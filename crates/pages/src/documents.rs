//! Documents as they lie beside each other in an installation: their links lead to each other, and nowhere else.

use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag};

use super::Page;

/// These documents, without directories. What a link names that is not among them stays as its words.
///
/// # Errors
/// One of them cannot be read.
pub fn installed(documents: &[PathBuf]) -> io::Result<Vec<Page>> {
    let page = |path: &PathBuf| {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let text = std::fs::read_to_string(path)?;
        Ok(Page {
            path: Path::new("doc/quayfs").join(name),
            text: relinked(path, &text, documents).into_bytes(),
        })
    };
    documents.iter().map(page).collect()
}

fn relinked(path: &Path, text: &str, documents: &[PathBuf]) -> String {
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for (range, target) in links(text) {
        // What is inside a link that has been seen to.
        if range.start < done {
            continue;
        }
        out.push_str(&text[done..range.start]);
        done = range.end;
        let link = &text[range];
        let to = target.and_then(|target| installed_as(path, &target, documents));
        match (to, words(link)) {
            (Some(to), Some(words)) => out.push_str(&format!("[{words}]({to})")),
            // Without its link, a word in parentheses says nothing.
            (None, _) if out.ends_with(" (") && text[done..].starts_with(')') => {
                out.truncate(out.len() - 2);
                done += 1;
            }
            (None, Some(words)) => out.push_str(&relinked(path, words, documents)),
            (_, None) => {}
        }
    }
    out.push_str(&text[done..]);
    out
}

/// Where links to other documents and pictures are, and what links lead to.
fn links(text: &str) -> Vec<(Range<usize>, Option<String>)> {
    let found = |(event, range)| match event {
        Event::Start(Tag::Image { .. }) => Some((range, None)),
        Event::Start(Tag::Link { dest_url, .. }) if !dest_url.contains(':') => {
            Some((range, Some(dest_url.into_string())))
        }
        _ => None,
    };
    let all = Parser::new(text).into_offset_iter().filter_map(found);
    all.filter(|(_, to)| !to.as_ref().is_some_and(|to| to.starts_with('#')))
        .collect()
}

/// The words of a link; of a picture nothing.
fn words(link: &str) -> Option<&str> {
    Some(link.strip_prefix('[')?.rsplit_once("](")?.0)
}

/// What a link has to say in an installation.
fn installed_as(from: &Path, target: &str, documents: &[PathBuf]) -> Option<String> {
    let file = target.split('#').next().unwrap_or_default();
    let anchor = &target[file.len()..];
    let to = plain(&from.parent().unwrap_or(Path::new("")).join(file));
    // The book has a page that includes this one.
    let to = match to.ends_with("docs/changelog.md") {
        true => PathBuf::from("CHANGELOG.md"),
        false => to,
    };
    let to = documents.iter().find(|document| plain(document) == to)?;
    Some(format!("{}{anchor}", to.file_name()?.to_str()?))
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_there() {
        let documents = ["README.md", "CHANGELOG.md", "docs/a.md", "docs/b.md"].map(PathBuf::from);
        let of = |path: &str, text: &str| relinked(Path::new(path), text, &documents);
        for (text, want) in [
            (
                "see [the a](a.md#x) and [b\n`c`](./b.md)",
                "see [the a](a.md#x) and [b\n`c`](b.md)",
            ),
            (
                "[up](../README.md), [in](internals/x.md#y), [here](#z)",
                "[up](README.md), in, [here](#z)",
            ),
            (
                "![p](pictures/p.svg)\n\n[s](https://e.org/a.md)",
                "\n\n[s](https://e.org/a.md)",
            ),
            ("[![p](p.svg)](gone.md) x", " x"),
            (
                "so ([how](gone.md)), [m](mailto:a@b)",
                "so, [m](mailto:a@b)",
            ),
            (
                "[[x] y](gone.md), [news](changelog.md)",
                "[x] y, [news](CHANGELOG.md)",
            ),
            (
                "`[a](gone.md)`\n\n```sh\n[a](gone.md)\n```\n",
                "`[a](gone.md)`\n\n```sh\n[a](gone.md)\n```\n",
            ),
        ] {
            assert_eq!(of("docs/b.md", text), want);
        }
        assert_eq!(of("README.md", "[a](docs/a.md)"), "[a](a.md)");
    }
}
