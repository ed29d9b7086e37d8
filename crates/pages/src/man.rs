//! A manual page of a command, from its definition: what clap knows of it, and the text that follows its help.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::readme;
use crate::roff::{entry, example, prose, section, strong, title};

/// What the help of `mount` begins its list of options with. The page has the longer list of the README instead.
const OPTIONS: &str = "Options after -o";

/// The page of a command in this section, with what the help says of `name`.
///
/// # Errors
/// None: the text is written to memory.
pub fn page(name: &str, number: u8, command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone());
    let help = After::of(command);
    let mut text = title(name, number);
    text += &section("name");
    let about = command.get_about().map(ToString::to_string);
    text += &named(name, &about.unwrap_or_default());
    text += &synopsis(command);
    text += &part(|w| man.render_description_section(w))?;
    text += &help.description;
    text += &part(|w| man.render_options_section(w))?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        text += &part(|w| man.render_subcommands_section(w))?;
    }
    if help.mounts {
        text += &mount_options();
    }
    text += &help.sections;
    text += &see_also(name);
    Ok(text)
}

/// How a command is written, with what its options take.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut words = vec![format!("`{name}`")];
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    words.extend(command.get_opts().filter(is_shown).map(option));
    words.extend(command.get_positionals().filter(is_shown).map(positional));
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        words.push("COMMAND".into());
    }
    section("synopsis") + &prose(&words.join(" "))
}

fn option(arg: &Arg) -> String {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = || arg.get_short().map(|short| format!("-{short}"));
    let name = long.or_else(short).unwrap_or_default();
    let values = match arg.get_action().takes_values() {
        true => arg.get_value_names().unwrap_or_default(),
        false => &[],
    };
    // In bold, in which a bracket does not begin a link.
    let value = |name: &clap::builder::Str| match name.contains('[') {
        true => format!(" `{name}`"),
        false => format!(" {name}"),
    };
    let values: String = values.iter().map(value).collect();
    match arg.is_required_set() {
        true => format!("`{name}`{values}"),
        false => format!("`[{name}`{values}`]`"),
    }
}

fn positional(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let more = match arg.get_num_args().is_some_and(|n| n.max_values() > 1) {
        true => "...",
        false => "",
    };
    match arg.is_required_set() {
        true => format!("{}{more}", names.join(" ")),
        false => format!("`[`{}{more}`]`", names.join(" ")),
    }
}

/// The section with the mount options.
pub fn mount_options() -> String {
    let rows = readme::mount_options();
    let rows = rows.iter().map(|row| entry(&row.term, &row.text));
    section("mount options")
        + &prose("Options after `-o`, separated by commas:")
        + &rows.collect::<String>()
}

/// The exit codes as the help of a command has them.
pub fn exit_status(command: &Command) -> String {
    After::of(command).exit_status
}

/// Where to read on.
pub fn see_also(but: &str) -> String {
    let pages = [
        ("quayfs", 1),
        ("quayfs-mount", 1),
        ("quayfs-fsck", 1),
        ("mount.quayfs", 8),
        ("fsck.quayfs", 8),
        ("mkfs.quayfs", 8),
        ("fuse", 4),
    ];
    let others = pages.iter().filter(|(name, _)| *name != but);
    let others: Vec<_> = others.map(|(name, n)| format!("`{name}`({n})")).collect();
    section("see also")
        + &prose(&others.join(", "))
        + &prose(
            "The documents in `/usr/share/doc/quayfs`, or below another prefix: `README.md`, `install.md`, `troubleshooting.md`.",
        )
}

/// The line by which apropos(1) finds a page, which is no sentence.
pub fn named(names: &str, about: &str) -> String {
    format!("{names} \\- {}\n", about.trim_end_matches('.'))
}

/// A section as clap_mangen has it, without the definitions that it puts before each, and with code in bold.
fn part(render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<String> {
    let mut bytes = Vec::new();
    render(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    let from = text.find(".SH ").unwrap_or(text.len());
    Ok(strong(&text[from..]))
}

/// The text that follows the help of a command, in the sections of a page.
#[derive(Default)]
struct After {
    /// Paragraphs for DESCRIPTION.
    description: String,
    /// Whether there is a list of mount options.
    mounts: bool,
    /// The section with exit codes, if there is one.
    exit_status: String,
    /// EXAMPLES, and the section with exit codes.
    sections: String,
}

impl After {
    fn of(command: &Command) -> Self {
        let text = command.get_after_help().map(ToString::to_string);
        let mut after = Self::default();
        for paragraph in paragraphs(&text.unwrap_or_default()) {
            after.take(&paragraph);
        }
        after.sections += &after.exit_status.clone();
        after
    }

    fn take(&mut self, lines: &[&str]) {
        match lines {
            [first, rest @ ..] if *first == "Examples:" => {
                self.sections += &section("examples");
                self.sections += &example(rest.iter().copied());
            }
            [first, ..] if first.starts_with("Exit codes") => {
                self.exit_status = section("exit status") + &prose(&lines.join("\n"));
            }
            [first, ..] if first.starts_with(OPTIONS) => self.mounts = true,
            _ => self.description += &described(lines),
        }
    }
}

/// Paragraphs, by the empty lines between them; exit codes are one of their own.
fn paragraphs(text: &str) -> Vec<Vec<&str>> {
    let mut all = vec![Vec::new()];
    for line in text.lines() {
        if line.is_empty() || line.starts_with("Exit codes") {
            all.push(Vec::new());
        }
        if let (false, Some(last)) = (line.is_empty(), all.last_mut()) {
            last.push(line);
        }
    }
    all.retain(|lines| !lines.is_empty());
    all
}

/// Prose, with what is indented in it as it is.
fn described(lines: &[&str]) -> String {
    let mut text = String::new();
    for run in lines.chunk_by(|a, b| a.starts_with(' ') == b.starts_with(' ')) {
        text += ".PP\n";
        text += &match run[0].starts_with(' ') {
            true => example(run.iter().copied()),
            false => prose(&run.join("\n")),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    #[test]
    fn a_synopsis_says_what_options_take() {
        let arg = |name: &'static str| Arg::new(name).value_name("WHAT");
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let command = Command::new("x").args([
            arg("volume").required(true),
            arg("dir"),
            arg("size").long("size"),
            arg("label").short('L'),
            arg("owner").short('o').value_name("USER[:GROUP]"),
            flag("force"),
            flag("hidden").hide(true),
        ]);
        let text = synopsis(&command);
        let want = "`x` `[--size` WHAT`]` `[-L` WHAT`]` `[-o` `USER[:GROUP]``]` `[--force``]` WHAT `[`WHAT`]`";
        assert_eq!(text, section("synopsis") + &prose(want));
    }

    fn command() -> Command {
        let help = "First.\n  x  a table\nSecond.\n\nOptions after -o:\n  ro  no\n\nExamples:\n  do it\n\
                    Exit codes: 0 done,\n1 not.";
        Command::new("x").about("Does it.").after_help(help)
    }

    #[test]
    fn help_becomes_sections() {
        let text = page("x-y", 1, &command()).unwrap();
        let order = [
            ".TH \"X-Y\" \"1\"",
            "\nx-y \\- Does it\n",
            ".SH SYNOPSIS",
            ".SH DESCRIPTION\nDoes it.\n.PP\nFirst.\n.PP\n.nf\n  x  a table\n.fi\n.PP\nSecond.\n",
            ".SH MOUNT OPTIONS",
            ".SH EXAMPLES\n.nf\n  do it\n.fi\n",
            ".SH EXIT STATUS\nExit codes: 0 done,\n1 not.\n",
            ".SH SEE ALSO",
        ];
        let mut rest = &text[..];
        for want in order {
            let at = rest
                .find(want)
                .unwrap_or_else(|| panic!("{want:?}: {text}"));
            rest = &rest[at..];
        }
        assert!(!text.contains("  ro  no"), "{text}");
    }
}
