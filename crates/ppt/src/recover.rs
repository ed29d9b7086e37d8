//! What to do with an unfinished transaction: the decision, apart from the media.

use quayfs_layout::checksum::WORD_MAX;

use crate::Damage;

/// Everything the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Generation in the commit word, if its check holds.
    pub(crate) commit: Option<u64>,
    /// Generation in its spare copy, if its check holds. It is stored once the commit word is
    /// durable, so it is never ahead and normally at most one behind.
    pub(crate) spare: Option<u64>,
    /// Generation of the start record, if it is intact.
    pub(crate) start: Option<u64>,
    /// Undo records that the start record announces.
    pub(crate) records: u64,
    /// Those that cannot be read.
    pub(crate) missing: u64,
    /// Whether the map or the extra word differs from what a readable record says it was.
    pub(crate) touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The map is as it should be.
    Keep,
    /// Restore every entry that has a record, and the extra word.
    Undo,
    /// What the map should be is not known: change nothing.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) action: Action,
    /// What was found damaged: repaired, unless the action is to refuse.
    pub(crate) damage: Option<Damage>,
    /// The generation to close, above every one that was ever used.
    pub(crate) close: u64,
}

/// The table. One fault in the log at a time is survived or refused, never guessed at; with two
/// faults a crash in the middle of writing the log cannot be told from damage to it.
///
/// | last finished | start record | undo records | map | |
/// |---|---|---|---|---|
/// | known, `g` | none, or at most `g` | - | - | keep: nothing is open |
/// | known, `g` | `g + 1` | all | - | undo |
/// | known, `g` | `g + 1` | some missing | as it was | keep: a crash before edge A |
/// | known, `g` | `g + 1` | some missing | touched | refuse: edge A was passed, records have rotted |
/// | known, `g` | above `g + 1` | - | - | refuse: the commit word has gone back |
/// | spare, `g` | none, or at most `g` | - | - | keep: the spare follows the commit word |
/// | spare or none | any other | - | as it was | keep: finished or not, the map is the same |
/// | spare or none | any other | - | touched | refuse: finished or not is not known |
/// | none | none | - | - | refuse: two words and a record cannot be read |
pub(crate) fn classify(e: &Evidence) -> Verdict {
    let last = e.commit.or(e.spare);
    let seen = last.max(e.start).unwrap_or(0);
    // A spare may be behind by the transaction that was finished and the one begun since.
    let close = (seen + if e.commit.is_some() { 1 } else { 2 }).min(WORD_MAX);
    let verdict = |action, damage| Verdict {
        action,
        damage,
        close,
    };
    let lost = Some(Damage::CommitWord);

    match (e.commit, last, e.start) {
        (Some(_), Some(g), Some(start)) if start == g + 1 => match (e.missing, e.touched) {
            (0, _) => verdict(Action::Undo, None),
            (_, false) => verdict(Action::Keep, None),
            (missing, true) => {
                let records = e.records;
                verdict(
                    Action::Refuse,
                    Some(Damage::MissingUndo { missing, records }),
                )
            }
        },
        (Some(_), Some(closed), Some(start)) if start > closed => {
            verdict(Action::Refuse, Some(Damage::Ahead { start, closed }))
        }
        (Some(_), ..) => verdict(Action::Keep, None),
        (None, Some(g), start) if start.is_none_or(|start| start <= g) => {
            verdict(Action::Keep, lost)
        }
        (None, _, Some(_)) if !e.touched => verdict(Action::Keep, lost),
        (None, ..) => verdict(Action::Refuse, lost),
    }
}
