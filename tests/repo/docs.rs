//! The documents and the book that is made of them: every link leads somewhere, every page is in the book, every command
//! and message in them is one that there is.

use crate::blocks::blocks;
use crate::program::Start as _;
use quayfs_options::{ACCEPTED, REFUSED};
use std::collections::BTreeSet;
use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder whose names end in `.md`.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(below(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            all.push(path);
        }
    }
    all
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = top
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    for folder in ["docs", "crates", "tests", "lab", "benches", ".github"] {
        all.extend(below(&root().join(folder)));
    }
    assert!(all.len() > 25, "{} documents", all.len());
    all
}

/// The lines of a document that are not code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((n + 1, line))
    })
}

/// A line without what is in backquotes.
fn spoken(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// What the links of a line lead to.
fn links(line: &str) -> Vec<String> {
    let line = spoken(line);
    let ends = line.split("](").skip(1);
    ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The text of a heading, with that of its links only.
fn heading(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_start_matches('#').trim();
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text + rest
}

/// The anchors of a document, as GitHub and mdbook make them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, l)| l.starts_with('#')) {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let text: String = heading(line).to_lowercase().chars().filter(kept).collect();
        let name = text.replace(' ', "-");
        let again = |n: usize| match n {
            0 => name.clone(),
            n => format!("{name}-{n}"),
        };
        let free = (0..).map(again).find(|name| !all.contains(name)).unwrap();
        all.insert(free);
    }
    all
}

/// The file that a page consists of, if it includes one, and the part of it.
fn included(line: &str) -> Option<(&str, Option<&str>)> {
    let what = line.strip_prefix("{{#include ")?.strip_suffix("}}")?;
    Some(match what.split_once(':') {
        Some((file, part)) => (file, Some(part)),
        None => (what, None),
    })
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    let mut seen = 0;
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        for (n, line) in prose(&text) {
            for link in links(line).iter().filter(|l| !l.contains("://")) {
                seen += 1;
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => page.clone(),
                    path => page.parent().unwrap().join(path),
                };
                let there = match anchor {
                    "" => target.exists(),
                    anchor => fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).contains(anchor)),
                };
                if !there {
                    dead.push(format!("{name}:{n}: {link}"));
                }
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(seen > 200, "{seen} links");
}

/// Folders of the repository that documents name files in.
const FOLDERS: [&str; 10] = [
    "benches",
    "crates",
    "docs",
    "fuzz",
    "lab",
    "packaging",
    "scripts",
    "src",
    "tests",
    ".ci",
];
/// Made by a run, so not always there.
const MADE: [&str; 1] = ["fuzz/artifacts"];

/// The paths in backquotes of a line. Words in capitals and stars stand for others; braces for several.
fn paths(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    for quoted in line.split('`').skip(1).step_by(2) {
        let path = quoted.split(' ').next().unwrap();
        let (folder, rest) = path.split_once('/').unwrap_or_default();
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
        let stands_for_others = |part: &str| part.chars().all(|c| c.is_ascii_uppercase());
        if !FOLDERS.contains(&folder)
            || !rest.chars().all(is_path)
            || rest
                .split('/')
                .any(|p| !p.is_empty() && stands_for_others(p))
            || MADE.contains(&path)
        {
            continue;
        }
        let braces = path
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
        match braces {
            Some((before, (names, after))) => {
                all.extend(names.split(',').map(|n| format!("{before}{n}{after}")));
            }
            None => all.push(path.to_owned()),
        }
    }
    all
}

#[test]
fn files_that_documents_name_are_there() {
    let (mut gone, mut seen) = (Vec::new(), 0);
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display();
        for (n, line) in prose(&text) {
            for path in paths(line) {
                seen += 1;
                let below = [root(), page.parent().unwrap()];
                if !below.iter().any(|folder| folder.join(&path).exists()) {
                    gone.push(format!("{name}:{n}: there is no {path}"));
                }
            }
        }
    }
    assert!(gone.is_empty(), "{}", gone.join("\n"));
    assert!(seen > 200, "{seen} paths");
}

#[test]
fn paths_are_recognized() {
    let line =
        "`src/a.rs` and `crates/x/src/{b,c}.rs`, `tests/NAME/d`, `a/b.rs`, `docs/*.md`, src/e";
    let all = paths(line);
    assert_eq!(all, ["src/a.rs", "crates/x/src/b.rs", "crates/x/src/c.rs"]);
}

#[test]
fn what_pages_include_is_there() {
    let mut seen = 0;
    for page in below(&root().join("docs")) {
        let text = fs::read_to_string(&page).unwrap();
        for (file, part) in text.lines().filter_map(included) {
            seen += 1;
            let path = page.parent().unwrap().join(file);
            let whole =
                fs::read_to_string(&path).unwrap_or_else(|e| panic!("{page:?}: {file}: {e}"));
            for mark in part
                .iter()
                .flat_map(|p| [format!("ANCHOR: {p}"), format!("ANCHOR_END: {p}")])
            {
                let marked = whole.lines().filter(|l| l.contains(&format!("{mark} ")));
                assert_eq!(marked.count(), 1, "{page:?}: {mark} in {file}");
            }
        }
    }
    assert!(seen > 5, "{seen} includes");
}

/// The table on the first page is a part of the one that says how it was measured.
#[test]
fn figures_on_the_first_page_are_those_of_the_table() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let (first, rest) = page.split_once("## When is it durable?").unwrap();
    let (_, table) = rest.split_once("## How fast").unwrap();
    let (_, rows) = first.split_once("|---|---|---|---|\n").unwrap();
    let rows: Vec<&str> = rows.lines().take_while(|l| l.starts_with('|')).collect();
    assert!(rows.len() > 3, "{rows:?}");
    for row in rows {
        let there = table.lines().any(|l| l.starts_with(row));
        assert!(there, "no row under \"How fast\" begins so:\n{row}");
    }
}

/// The code of the page about embedding is that of the crate's documentation, which its own tests compile.
#[test]
fn code_on_the_page_about_embedding_is_tested_elsewhere() {
    let page = fs::read_to_string(root().join("docs/embedding.md")).unwrap();
    let code = fs::read_to_string(root().join("crates/fs/src/lib.rs")).unwrap();
    let tested: Vec<&str> = code
        .lines()
        .filter_map(|l| l.strip_prefix("//! "))
        .collect();
    let shown = blocks(&page);
    let shown: Vec<_> = shown.iter().filter(|b| b.word == "rust").collect();
    assert_eq!(shown.len(), 1);
    for line in shown
        .iter()
        .flat_map(|b| &b.lines)
        .filter(|l| !l.is_empty())
    {
        assert!(tested.contains(&line.as_str()), "{line}");
    }
}

#[test]
fn the_book_has_every_page_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = fs::read_to_string(&summary).unwrap();
    let mut listed: Vec<PathBuf> = text.lines().flat_map(links).map(|l| docs.join(l)).collect();
    listed.sort_unstable();
    let mut there = below(&docs);
    there.retain(|page| *page != summary);
    there.sort_unstable();
    assert_eq!(listed, there, "docs/SUMMARY.md");
}

#[test]
fn links_and_anchors_are_recognized() {
    assert_eq!(
        links("see [a](b.md#c), `[d](e)` and [`f`](g)"),
        ["b.md#c", "g"]
    );
    let all = anchors("# A `b`, c: [d](e)\n```\n# no\n```\n## Two\n## Two\n## O_DIRECT in each\n");
    let want = ["a-b-c-d", "o_direct-in-each", "two", "two-1"];
    assert_eq!(all.iter().map(String::as_str).collect::<Vec<_>>(), want);
    assert_eq!(
        included("{{#include ../x.md:use}}"),
        Some(("../x.md", Some("use")))
    );
    assert_eq!(included("{{#include ../x.md}}"), Some(("../x.md", None)));
}

/// The arguments of each call of the program in some code.
fn calls(code: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for line in code.lines() {
        let line = line.split(" #").next().unwrap();
        // One command a piece; quotes around several words do not occur in calls.
        for piece in line.split(['|', ';', '&', '(', ')', '<', '>']) {
            let words: Vec<&str> = piece.split_whitespace().collect();
            let words = match words[..] {
                ["$", ref rest @ ..] | ["sudo", ref rest @ ..] => rest,
                ref words => words,
            };
            if let ["quayfs", args @ ..] = words {
                all.push(args.iter().map(|a| a.to_string()).collect());
            }
        }
    }
    all
}

/// What is wrong with a call: a command or an option that there is not.
fn flaw(call: &[String]) -> Option<String> {
    let [quayfs, ..] = quayfs::cli::definitions();
    let (first, rest) = call.split_first()?;
    if !first.starts_with(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let Some(command) = quayfs.find_subcommand(first) else {
        return Some(format!("no command `{first}`"));
    };
    let known = |word: &str| match word.strip_prefix("--") {
        Some(long) => {
            let long = long.split('=').next().unwrap();
            long == "help" || command.get_arguments().any(|a| a.get_long() == Some(long))
        }
        None => {
            let short = word.chars().nth(1);
            short == Some('h') || command.get_arguments().any(|a| a.get_short() == short)
        }
    };
    let options = rest.iter().filter(|w| w.starts_with('-') && w.len() > 1);
    let trimmed = options.map(|w| w.trim_end_matches([',', '.', ']']));
    let mut wrong = trimmed.filter(|w| *w != "--" && !known(w));
    Some(format!("`{first}` has no `{}`", wrong.next()?))
}

/// The documents for users.
pub fn pages_of_users() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let mut all: Vec<PathBuf> = docs.map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "md"));
    all.extend(["README.md", "SECURITY.md"].map(|name| root().join(name)));
    all
}

#[test]
fn commands_in_documents_are_there() {
    let (mut wrong, mut seen, mut scripts) = (Vec::new(), 0, 0);
    for page in pages_of_users() {
        let text = fs::read_to_string(&page).unwrap();
        let mut code: Vec<String> = prose(&text)
            .flat_map(|(_, line)| line.split('`').skip(1).step_by(2).map(str::to_owned))
            .collect();
        for block in blocks(&text) {
            code.push(match block.is_shell() {
                true => block.typed(),
                false => block.lines.join("\n"),
            });
            if block.is_shell() {
                scripts += 1;
                let script = Command::new("bash")
                    .args(["-n", "-c", &block.typed()])
                    .capture();
                let said = String::from_utf8(script.unwrap().stderr).unwrap();
                if !said.is_empty() {
                    wrong.push(format!("{}: {said}{}", page.display(), block.typed()));
                }
            }
        }
        for call in code.iter().flat_map(|code| calls(code)) {
            seen += 1;
            wrong.extend(flaw(&call).map(|why| format!("{}: {why}: {call:?}", page.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60 && scripts > 20, "{seen} calls, {scripts} scripts");
}

#[test]
fn calls_and_their_flaws_are_recognized() {
    let code = "$ quayfs mount v m -o a=b; quayfs frob\nmount -t quayfs x y && sudo quayfs fsck --mend v # quayfs z";
    let found: Vec<_> = calls(code).iter().map(|c| c.join(" ")).collect();
    assert_eq!(found, ["mount v m -o a=b", "frob", "fsck --mend v"]);
    let flaws: Vec<_> = calls(code).iter().map(|c| flaw(c)).collect();
    assert_eq!(flaws[0], None);
    assert_eq!(flaws[1].as_deref(), Some("no command `frob`"));
    assert_eq!(flaws[2].as_deref(), Some("`fsck` has no `--mend`"));
}

/// Messages that others print: the kernel's errors, and some of mount(8) and fusermount3.
fn of_others(message: &str) -> bool {
    let errors = [
        libc::ENOTCONN,
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EROFS,
        libc::EIO,
        libc::EACCES,
    ];
    let mut texts = errors
        .map(|e| Error::from_raw_os_error(e).to_string())
        .into_iter();
    const PROGRAMS: [&str; 3] = [
        "unknown filesystem type",
        "wrong fs type",
        "no write access to mountpoint",
    ];
    texts.any(|text| text.starts_with(message)) || PROGRAMS.iter().any(|m| message.contains(m))
}

/// The code of the product as one text, in which strings that are broken into lines are whole.
pub fn messages_of_the_code() -> String {
    let mut text = String::new();
    let mut folders = vec![root().join("src"), root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                text += &fs::read_to_string(path).unwrap();
            }
        }
    }
    let mut pieces = text.split("\\\n");
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |text, piece| text + piece.trim_start())
}

#[test]
fn messages_that_are_explained_are_in_the_code() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let messages: Vec<_> = page
        .lines()
        .filter_map(|l| l.strip_prefix("## `")?.strip_suffix('`'))
        .collect();
    assert_eq!(messages[0], "Transport endpoint is not connected");
    assert!(messages.len() > 20, "{messages:?}");
    let code = messages_of_the_code();
    for message in messages.into_iter().filter(|m| !of_others(m)) {
        for piece in message.split("...").map(str::trim) {
            assert!(code.contains(piece), "{message}: no {piece:?} in the code");
        }
    }
}

#[test]
fn the_options_of_others_are_listed() {
    let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let (_, rest) = page.split_once("<!-- accepted").unwrap();
    let (list, rest) = rest.split_once("\n\n").unwrap();
    let quoted = |text: &str| -> Vec<String> {
        text.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(quoted(list), ACCEPTED);
    let rows = rest.lines().skip_while(|l| *l != "| refused | |").skip(2);
    let rows = rows.map_while(|l| l.strip_prefix("| ")?.split(" | ").next());
    let mut listed: Vec<_> = rows.flat_map(quoted).collect();
    let mut refused = REFUSED.map(|(word, _)| word);
    listed.sort_unstable();
    refused.sort_unstable();
    assert_eq!(listed, refused);
}
