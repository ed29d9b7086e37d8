//! `quayfs dump`: what the structures of a volume hold.

use quayfs_fsck::dump::{Structure, Window, dump, open, text};

use super::args::{self, Kind};
use super::exit::{FAILED, Failure, USAGE, say, say_json};
use super::media;
use super::unopened::{unopened, unreached};
use crate::mount::table;

/// Shows one structure.
pub fn run(args: &args::Dump) -> Result<(), Failure> {
    let what = structure(args)?;
    let window = Window {
        first: args.first,
        lines: usize::try_from(args.lines).unwrap_or(usize::MAX),
    };
    media::expect_answers(&args.volume).map_err(Failure::with(FAILED))?;
    let path = table::resolve(&args.volume).map_err(|e| unreached(FAILED, &args.volume, &e))?;
    let volume = open(&path).map_err(unopened(FAILED))?;
    if let Structure::Inode(ino) | Structure::Directory(ino) = what
        && ino >= volume.config().geometry.inodes()
    {
        let most = volume.config().geometry.inodes() - 1;
        return Err(Failure::new(
            FAILED,
            format_args!("numbers of inodes end at {most}"),
        ));
    }
    let shown = dump(&volume, what, window);
    match args.json {
        true => say_json(serde_json::to_string(&shown).map_err(Failure::with(FAILED))?),
        false => say(text(&shown).trim_end()),
    }
    Ok(())
}

fn structure(args: &args::Dump) -> Result<Structure, Failure> {
    let usage = |why: &str| Failure::new(USAGE, format_args!("{why}: see `quayfs dump --help`"));
    let number = || {
        args.number
            .ok_or_else(|| usage("which one? Its number comes after the structure"))
    };
    let one = match args.structure {
        Kind::Node => {
            let id = u32::try_from(number()?);
            return id
                .map(Structure::Node)
                .map_err(|_| usage("a node id has 32 bits"));
        }
        Kind::Inode => return number().map(Structure::Inode),
        Kind::Directory => return number().map(Structure::Directory),
        Kind::Superblock => Structure::Superblock,
        Kind::Records => Structure::Records,
        Kind::Slots => Structure::Slots,
        Kind::Batches => Structure::Batches,
        Kind::TableLog => Structure::TableLog,
        Kind::PageTable => Structure::PageTable,
        Kind::Nodes => Structure::Nodes,
        Kind::Free => Structure::Free,
    };
    match args.number {
        Some(_) => Err(usage("only a node, an inode and a directory have a number")),
        None => Ok(one),
    }
}
