//! The checks that stand between a damaged volume and wrong data, by name.
//!
//! In every usual build they all stand, which the compiler knows. A build with `--cfg mutants` leaves
//! out the one that the environment variable `QUAYFS_MUTANT` names, to find out whether its absence
//! is noticed (`make mutants`).

macro_rules! guards {
    ($($(#[$doc:meta])* $guard:ident = $name:literal,)*) => {
        /// Something that recovery, digest or a reader insists on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Guard {
            $($(#[$doc])* $guard,)*
        }

        impl Guard {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$guard,)*];

            /// How it is written in `QUAYFS_MUTANT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$guard => $name,)*
                }
            }
        }
    };
}

guards! {
    /// The checksum of the configuration table and of the data header.
    Config = "config-checksum",
    /// The check in a word of the journal superblock.
    SuperblockWord = "superblock-word-check",
    /// The checksum of a record's header.
    RecordHeader = "record-header-checksum",
    /// The checksum of a record's body.
    RecordBody = "record-body-checksum",
    /// That a record is of this epoch.
    RecordEpoch = "record-epoch",
    /// That a record is of this place in this lane.
    RecordPlace = "record-place",
    /// The checksum of a slot header.
    SlotHeader = "slot-header-checksum",
    /// The checksums of what the last record of a lane stages: without it the record has not happened.
    LastPayloads = "last-record-payloads",
    /// That a record agrees with the headers of the slots that it names, the epoch among them.
    SlotAgrees = "slot-header-agrees",
    /// The check in the committed word of a slot.
    CommittedWord = "committed-word-check",
    /// D: records at or below it are history, slots above it are not live by their words alone.
    Digested = "digested",
    /// `commit_ts`: records above it do not count.
    CommitTs = "commit-ts",
    /// That a proposed commit counts only if all of it is there.
    Proposal = "proposal-whole",
    /// `retired_seq`: slots at or below it are dead.
    Retired = "retired-seq",
    /// Credits: no operation takes slots or log space that are still in use.
    Credits = "credits",
    /// The check in an entry of the page table.
    MapEntry = "map-entry-check",
    /// The check in the commit word of the page table's log.
    LogWord = "log-word-check",
    /// The checksum of the log's start record.
    LogStart = "log-start-checksum",
    /// The checksum of an undo record.
    Undo = "undo-checksum",
    /// That an undo record is of the transaction that the start record began.
    UndoGeneration = "undo-generation",
    /// The check in an entry of the NAT.
    NatEntry = "nat-entry-check",
    /// The checksum of a node page.
    NodePage = "node-checksum",
    /// The checksum of a block of data.
    Block = "block-checksum",
}

impl Guard {
    /// Whether the check is made: always, but for one in a build with `--cfg mutants`.
    #[inline(always)]
    pub fn stands(self) -> bool {
        #[cfg(mutants)]
        return missing() != Some(self);
        #[cfg(not(mutants))]
        true
    }
}

/// The one that is left out.
#[cfg(mutants)]
fn missing() -> Option<Guard> {
    static MISSING: std::sync::OnceLock<Option<Guard>> = std::sync::OnceLock::new();
    *MISSING.get_or_init(|| {
        let name = std::env::var("QUAYFS_MUTANT")
            .ok()
            .filter(|name| !name.is_empty())?;
        let guard = Guard::ALL
            .iter()
            .copied()
            .find(|guard| guard.name() == name);
        Some(guard.unwrap_or_else(|| panic!("QUAYFS_MUTANT: no guard is called {name}")))
    })
}
