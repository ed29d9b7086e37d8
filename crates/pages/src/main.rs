//! Writes the manual pages, the completions of shells, and documents for an installation: `quayfs-pages DIRECTORY
//! [DOCUMENT...]`.
//!
//! The former come from the definition of the command line, and the mount options from the README, so a new command or
//! option needs nothing here. The program is apart from `quayfs` so that `quayfs` need not contain what makes pages.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use clap::Command;
use clap_complete::Shell;

mod documents;
mod helpers;
mod man;
mod readme;
mod roff;

/// The programs that shells complete the arguments of.
const NAMES: [&str; 3] = ["quayfs", "mkfs.quayfs", "fsck.quayfs"];

/// A file to be written, below `share` of an installation.
struct Page {
    path: PathBuf,
    text: Vec<u8>,
}

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(dir) = args.next() else {
        eprintln!("usage: quayfs-pages DIRECTORY [DOCUMENT...]");
        return ExitCode::from(2);
    };
    let documents: Vec<PathBuf> = args.map(PathBuf::from).collect();
    match write(Path::new(&dir), &documents) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("quayfs-pages: {}: {e}", Path::new(&dir).display());
            ExitCode::FAILURE
        }
    }
}

fn write(dir: &Path, documents: &[PathBuf]) -> io::Result<()> {
    for page in pages()?.into_iter().chain(documents::installed(documents)?) {
        let path = dir.join(page.path);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(path, page.text)?;
    }
    Ok(())
}

/// All files but documents.
fn pages() -> io::Result<Vec<Page>> {
    let [mut quayfs, mkfs, fsck] = quayfs::cli::definitions();
    quayfs.build();
    let mut all = vec![manual("quayfs", 1, man::page("quayfs", 1, &quayfs)?)];
    for command in shown(&quayfs) {
        let name = format!("quayfs-{}", command.get_name());
        all.push(manual(&name, 1, man::page(&name, 1, command)?));
    }
    for command in [&mkfs, &fsck] {
        let name = command.get_name();
        all.push(manual(name, 8, man::page(name, 8, command)?));
    }
    let mount = quayfs
        .find_subcommand("mount")
        .ok_or(io::ErrorKind::NotFound)?;
    all.push(manual("mount.quayfs", 8, helpers::mount(mount)));
    for (name, other) in [
        ("umount.quayfs", "mount.quayfs"),
        ("mount.fuse.quayfs", "mount.quayfs"),
        ("umount.fuse.quayfs", "mount.quayfs"),
        ("fsck.fuse.quayfs", "fsck.quayfs"),
    ] {
        all.push(manual(name, 8, roff::same_as(8, other)));
    }
    let commands = NAMES.into_iter().zip(quayfs::cli::definitions());
    all.extend(commands.flat_map(|(name, command)| completions(name, &command)));
    Ok(all)
}

/// The commands that people call.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

fn manual(name: &str, section: u8, text: String) -> Page {
    Page {
        path: format!("man/man{section}/{name}.{section}").into(),
        text: text.into_bytes(),
    }
}

/// Where each shell looks for what completes a command of this name.
fn completions(name: &'static str, command: &Command) -> [Page; 3] {
    let places = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (
            Shell::Fish,
            format!("fish/vendor_completions.d/{name}.fish"),
        ),
    ];
    places.map(|(shell, path)| {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut public(name, command), name, &mut text);
        Page {
            path: path.into(),
            text,
        }
    })
}

/// The command without those of its subcommands that people do not call: a shell would offer them.
fn public(name: &'static str, command: &Command) -> Command {
    let copy = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .disable_version_flag(command.is_disable_version_flag_set());
    copy.args(command.get_arguments().cloned())
        .subcommands(shown(command).cloned())
}

#[cfg(test)]
mod tests;
