//! Targets for the structures of `quayfs-layout`, by family: what decodes must encode to something
//! that decodes to the same.
//!
//! A structure of its own decodes a million times a second and is exhausted in a minute, so a target
//! has several; the first byte of an input chooses among them.

use std::collections::BTreeSet;

pub mod journal;
pub mod nodes;
pub mod volume;

/// What inputs got past the checks of: one name for each thing that a structure's harness decodes.
#[derive(Debug, Default)]
pub struct Seen(BTreeSet<&'static str>);

impl Seen {
    fn add(&mut self, what: &'static str) {
        self.0.insert(what);
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().copied()
    }
}

/// A structure of the media, and what takes bytes for it.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Its name.
    pub name: &'static str,
    /// Its harness.
    pub parse: fn(&[u8], &mut Seen),
    /// All that the harness may say it has seen, sorted.
    pub decodes: &'static [&'static str],
}

const fn structure(
    name: &'static str,
    parse: fn(&[u8], &mut Seen),
    decodes: &'static [&'static str],
) -> Structure {
    Structure {
        name,
        parse,
        decodes,
    }
}

/// Structures that share a target. Their order is part of the meaning of an input.
pub type Family = &'static [Structure];

/// What a mount reads first.
pub const HEADERS: Family = &[
    structure("config", volume::config, &["table"]),
    structure("geometry", volume::geometry, &["computed", "made up"]),
    structure("data_header", volume::data_header, &["header"]),
    structure(
        "superblock",
        journal::superblock,
        &["batch", "copy", "epoch", "head", "number"],
    ),
];

/// Both logs: of the journal, and of the map.
pub const LOGS: Family = &[
    structure("slot", journal::slot, &["committed word", "header"]),
    structure("record", journal::record, &["header", "runs"]),
    structure(
        "items",
        journal::items,
        &["bits", "charge", "delta", "free node", "new node"],
    ),
    structure(
        "l2p",
        nodes::l2p,
        &["commit word", "entry", "start", "undo"],
    ),
];

/// Pages, and what is in them.
pub const OBJECTS: Family = &[
    structure("node", nodes::node, &["address", "no address", "page"]),
    structure("inode", nodes::inode, &["extent", "no extent"]),
    structure("dirent", nodes::dirent, &["entry", "index", "sound leaf"]),
    structure("extents", nodes::extents, &["extent"]),
    structure("intents", nodes::intents, &["intent", "none"]),
    structure("xattrs", nodes::xattrs, &["set"]),
];

/// The structure that an input is for, and the bytes to take for it.
pub fn choose(family: Family, data: &[u8]) -> (Structure, &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&0, &[]));
    (family[usize::from(*first) % family.len()], rest)
}

fn parse(family: Family, data: &[u8]) {
    let (structure, bytes) = choose(family, data);
    (structure.parse)(bytes, &mut Seen::default());
}

/// One of [`HEADERS`].
pub fn headers(data: &[u8]) {
    parse(HEADERS, data);
}

/// One of [`LOGS`].
pub fn logs(data: &[u8]) {
    parse(LOGS, data);
}

/// One of [`OBJECTS`].
pub fn objects(data: &[u8]) {
    parse(OBJECTS, data);
}
