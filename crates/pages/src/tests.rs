//! The files as programs read them: groff, bash.

use std::io::Write as _;
use std::process::{Command, Stdio};

use quayfs_options::{MountOptions, OptionError, REFUSED};

use super::*;

fn text_of(path: &str) -> String {
    let page = pages()
        .unwrap()
        .into_iter()
        .find(|p| p.path == Path::new(path));
    let page = page.unwrap_or_else(|| panic!("no {path}"));
    String::from_utf8(page.text).unwrap()
}

/// What a program says of a text: on the standard output, then on the standard error.
fn filtered(program: &str, args: &[&str], text: &[u8]) -> (String, String) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}, which `make deps` installs: {e}"));
    let mut input = child.stdin.take().unwrap();
    let text = text.to_vec();
    // Apart, since the program may say more than a pipe holds before it has read all.
    let writer = std::thread::spawn(move || input.write_all(&text));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(output.status.success(), "{program} {args:?}: {err}");
    (out, err)
}

#[test]
fn every_command_has_a_page_and_nothing_else_has() {
    let all = pages().unwrap();
    let mut found: Vec<_> = all
        .iter()
        .filter_map(|p| p.path.to_str()?.strip_prefix("man/man1/"))
        .map(str::to_owned)
        .collect();
    let [quayfs, ..] = quayfs::cli::definitions();
    let mut want: Vec<_> = shown(&quayfs)
        .map(|c| format!("quayfs-{}.1", c.get_name()))
        .chain(["quayfs.1".into()])
        .collect();
    assert!(want.len() > 7, "{want:?}");
    found.sort_unstable();
    want.sort_unstable();
    assert_eq!(found, want);
    for name in ["mount", "umount", "mkfs", "fsck"] {
        text_of(&format!("man/man8/{name}.quayfs.8"));
    }
}

/// The names under which the program is installed, as the Makefile has them.
#[test]
fn every_helper_has_a_page() {
    let makefile = include_str!("../../../Makefile");
    let helpers = makefile.lines().find_map(|l| l.strip_prefix("HELPERS := "));
    for name in helpers.unwrap().split(' ') {
        text_of(&format!("man/man8/{name}.8"));
    }
}

#[test]
fn options_of_commands_are_in_their_pages() {
    let [quayfs, ..] = quayfs::cli::definitions();
    let mut seen = 0;
    for command in shown(&quayfs) {
        let page = text_of(&format!("man/man1/quayfs-{}.1", command.get_name()));
        for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
            if let Some(long) = arg.get_long() {
                seen += 1;
                let shown = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.contains(&shown), "{}: {shown}", command.get_name());
            }
        }
    }
    assert!(seen > 20, "{seen} options");
}

#[test]
fn groff_has_nothing_to_complain_of() {
    for page in pages().unwrap() {
        let path = page.path.display().to_string();
        let text = String::from_utf8_lossy(&page.text);
        if !path.starts_with("man/") || text.starts_with(".so ") {
            continue;
        }
        let (out, err) = filtered(
            "groff",
            &["-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou"],
            &page.text,
        );
        assert_eq!(err, "", "{path}");
        for word in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"] {
            assert!(out.lines().any(|l| l == word), "{path}: {word}: {out}");
        }
        // A mark of Markdown, or an escape that none of both understood.
        for odd in ["`", "](", "**", "\\f"] {
            let line = out.lines().find(|l| l.contains(odd));
            assert_eq!(line, None, "{path}: {odd}");
        }
    }
}

#[test]
fn mount_options_are_those_that_there_are() {
    let options = readme::mount_options();
    assert!(options.len() > 20, "{options:?}");
    for option in &options {
        for word in option.term.split('`').skip(1).step_by(2) {
            let said = MountOptions::parse(&[word]);
            assert!(
                !matches!(said, Err(OptionError::Unknown(_))) || option.term.contains('='),
                "{word}"
            );
        }
    }
    let mount = text_of("man/man8/mount.quayfs.8");
    assert_eq!(
        mount.matches(".TP\n").count(),
        options.len() + REFUSED.len() + helpers::LETTERS.len() + helpers::LETTERS_OF_UMOUNT.len()
    );
    assert!(
        mount.contains("\\fBdurability=op\\fR | \\fBcommit\\fR\nwhen an operation is durable"),
        "{mount}"
    );
}

/// Every option that the help of `mount` lists, which has them all, has a row in the README.
#[test]
fn the_readme_has_the_options_of_the_help() {
    let [quayfs, ..] = quayfs::cli::definitions();
    let help = quayfs
        .find_subcommand("mount")
        .unwrap()
        .get_after_help()
        .unwrap()
        .to_string();
    let list = help
        .lines()
        .skip_while(|l| !l.starts_with("Options after -o"))
        .skip(1);
    let rows = readme::mount_options();
    let terms: String = rows
        .iter()
        .map(|row| row.term.clone() + " " + &row.text + "\n")
        .collect();
    let mut seen = 0;
    for line in list.take_while(|l| !l.is_empty()) {
        let Some(line) = line.strip_prefix("  ").filter(|l| !l.starts_with(' ')) else {
            continue;
        };
        let words = line.split("  ").next().unwrap();
        for word in words.split([' ', ',']).filter(|w| !w.is_empty()) {
            seen += 1;
            let key = word.split('=').next().unwrap();
            let has = [format!("`{key}`"), format!("`{key}=")]
                .iter()
                .any(|t| terms.contains(t));
            assert!(has, "{word}");
        }
    }
    assert!(seen > 30, "{seen} options");
}

#[test]
fn bash_completes_commands_and_options() {
    let script = text_of("bash-completion/completions/quayfs");
    filtered("bash", &["-n"], script.as_bytes());
    let complete = |line: &str| {
        let words = line.split(' ').collect::<Vec<_>>();
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let calls = format!(
            "\ncomplete -p quayfs >&2\nCOMP_WORDS=({line})\nCOMP_CWORD={}\n_quayfs quayfs '{last}' '{before}'\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            words.len() - 1
        );
        let (out, err) = filtered(
            "bash",
            &["--norc", "-s"],
            (script.clone() + &calls).as_bytes(),
        );
        assert!(err.contains("-F _quayfs"), "{err}");
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("quayfs fs"), ["fsck"]);
    assert_eq!(complete("quayfs scrub --ra"), ["--rate"]);
    // What people do not call is not offered.
    assert!(complete("quayfs turn").is_empty() || complete("quayfs turn") == [""]);
    for name in ["mkfs.quayfs", "fsck.quayfs"] {
        filtered(
            "bash",
            &["-n"],
            text_of(&format!("bash-completion/completions/{name}")).as_bytes(),
        );
    }
}
