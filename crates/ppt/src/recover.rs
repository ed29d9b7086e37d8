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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination that matters: words and start record absent or around each other.
    fn every() -> impl Iterator<Item = Evidence> {
        let numbers = || std::iter::once(None).chain((3..=8).map(Some));
        numbers().flat_map(move |commit| {
            numbers().flat_map(move |spare| {
                numbers().flat_map(move |start| {
                    (0..=2).flat_map(move |missing| {
                        [false, true].into_iter().map(move |touched| Evidence {
                            commit,
                            spare,
                            start,
                            records: 2,
                            missing,
                            touched,
                        })
                    })
                })
            })
        })
    }

    /// The row of the documented table, stated once more and independently of the code's order.
    fn row(e: &Evidence) -> (Action, Option<Damage>) {
        let lost = Some(Damage::CommitWord);
        if let Some(closed) = e.commit {
            let missing = Damage::MissingUndo {
                missing: e.missing,
                records: e.records,
            };
            return match e.start {
                None => (Action::Keep, None),
                Some(start) if start <= closed => (Action::Keep, None),
                Some(start) if start > closed + 1 => {
                    (Action::Refuse, Some(Damage::Ahead { start, closed }))
                }
                Some(_) if e.missing == 0 => (Action::Undo, None),
                Some(_) if e.touched => (Action::Refuse, Some(missing)),
                Some(_) => (Action::Keep, None),
            };
        }
        let keep = match (e.spare, e.start) {
            (None, None) => false,
            (Some(_), None) => true,
            (Some(spare), Some(start)) if start <= spare => true,
            (_, Some(_)) => !e.touched,
        };
        (if keep { Action::Keep } else { Action::Refuse }, lost)
    }

    #[test]
    fn every_combination_follows_the_table() {
        let mut actions = [0; 3];
        for e in every() {
            let verdict = classify(&e);
            assert_eq!((verdict.action, verdict.damage), row(&e), "{e:?}");
            actions[verdict.action as usize] += 1;
        }
        assert_eq!(actions.iter().sum::<usize>(), 7 * 7 * 7 * 3 * 2);
        assert!(
            actions.iter().all(|&n| n > 10),
            "each action occurs: {actions:?}"
        );
    }

    /// A crash without any fault never looks like damage.
    #[test]
    fn an_ordinary_crash_is_no_damage() {
        for e in every() {
            let Some(closed) = e.commit else { continue };
            // Before edge A records may be missing, and the map is as it was; the start record is
            // of this transaction, or still of an older one, or torn.
            let before_a = e.start.is_none_or(|start| start <= closed + 1) && !e.touched;
            let after_a = e.start == Some(closed + 1) && e.missing == 0;
            let finished = e.start.is_some_and(|start| start <= closed);
            if before_a || after_a || finished {
                let verdict = classify(&e);
                assert_eq!(verdict.damage, None, "{e:?}");
                assert_ne!(verdict.action, Action::Refuse, "{e:?}");
            }
        }
    }

    /// What must never happen, whatever is found.
    #[test]
    fn nothing_is_guessed() {
        for e in every() {
            let verdict = classify(&e);
            let last = e.commit.or(e.spare);
            match verdict.action {
                Action::Undo => assert!(
                    e.commit.is_some_and(|g| e.start == Some(g + 1)) && e.missing == 0,
                    "undone although finished or incomplete: {e:?}"
                ),
                Action::Keep if e.touched => assert!(
                    last.is_some_and(|g| e.start.is_none_or(|start| start <= g)),
                    "a mixed map taken for whole: {e:?}"
                ),
                Action::Keep => {}
                Action::Refuse => assert!(verdict.damage.is_some(), "refused for nothing: {e:?}"),
            }
            // No generation is used twice. With the commit word lost, the transaction after the
            // spare may have been finished and the one after that begun.
            let begun = match e.commit {
                Some(g) => g + 1,
                None => last.map_or(0, |g| g + 2),
            };
            assert!(verdict.close >= begun, "{e:?}");
            assert!(e.start.is_none_or(|start| verdict.close > start), "{e:?}");
        }
    }

    #[test]
    fn generations_do_not_overflow_the_word() {
        let e = Evidence {
            commit: Some(WORD_MAX),
            spare: None,
            start: None,
            records: 0,
            missing: 0,
            touched: false,
        };
        assert_eq!(classify(&e).close, WORD_MAX);
    }
}
