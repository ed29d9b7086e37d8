//! What recovery makes of a slot, as one table over everything it can see of it.

/// The slot header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Header {
    /// Checksum, index or epoch do not fit.
    Invalid,
    /// Valid; and if a replayable record names the slot, it says the same.
    Valid,
    /// Valid, but a replayable record that names the slot says otherwise.
    Differs,
}

/// The committed word of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// Its check fails.
    Bad,
    /// Number 0: in no digested record yet.
    Never,
    /// At or below `retired_seq`.
    Retired,
    /// In (`retired_seq`, digested_seq].
    Digested,
    /// Above digested_seq.
    Above,
}

/// Whether a replayable record above digested_seq names the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vouch {
    /// No.
    Unnamed,
    /// Yes.
    Named,
}

/// What becomes of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// Its content belongs to a committed operation and is not on the data device.
    Live,
    /// As `Live`, and the header must be written again before digested_seq passes the record that vouches.
    LiveRewrite,
    /// Free: checkpointed, or never committed. An ordinary crash leaves these.
    Free,
    /// The committed word is unreadable: whether the slot was live cannot be told.
    DamagedWord,
    /// Live by its committed word, but what it holds cannot be told.
    DamagedHeader,
    /// Digested under a record above digested_seq which is not there.
    LostRecord,
}

/// The table. A record that vouches beats everything, because it was durable after the slot was;
/// digest then writes the committed word anyway.
pub(crate) fn classify(header: Header, word: Word, vouch: Vouch) -> Verdict {
    use Verdict::*;
    match (vouch, header, word) {
        (Vouch::Named, Header::Valid, _) => Live,
        (Vouch::Named, Header::Invalid | Header::Differs, _) => LiveRewrite,
        // Words are stored in one piece: no crash leaves half of one.
        (Vouch::Unnamed, _, Word::Bad) => DamagedWord,
        (Vouch::Unnamed, _, Word::Never | Word::Retired) => Free,
        (Vouch::Unnamed, Header::Valid | Header::Differs, Word::Digested) => Live,
        // A header is durable before the record that names it, and that before its digest.
        (Vouch::Unnamed, Header::Invalid, Word::Digested) => DamagedHeader,
        // Digest marks slots of durable records only, and a lane keeps a record until digested_seq has passed
        // it (ordering 1): if it is gone, it did not go by a crash.
        (Vouch::Unnamed, _, Word::Above) => LostRecord,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Header::*;
    use super::Verdict::*;
    use super::Vouch::*;
    use super::Word::*;
    use super::*;

    const HEADERS: [Header; 3] = [Invalid, Valid, Differs];
    const WORDS: [Word; 5] = [Bad, Never, Retired, Digested, Above];

    /// Every input with its expected verdict, written out: the function above may be clever, this
    /// may not.
    const TABLE: [(Vouch, Header, Word, Verdict); 30] = [
        (Unnamed, Invalid, Bad, DamagedWord),
        (Unnamed, Invalid, Never, Free),
        (Unnamed, Invalid, Retired, Free),
        (Unnamed, Invalid, Digested, DamagedHeader),
        (Unnamed, Invalid, Above, LostRecord),
        (Unnamed, Valid, Bad, DamagedWord),
        (Unnamed, Valid, Never, Free),
        (Unnamed, Valid, Retired, Free),
        (Unnamed, Valid, Digested, Live),
        (Unnamed, Valid, Above, LostRecord),
        // A header can only differ from a record that names the slot; for completeness.
        (Unnamed, Differs, Bad, DamagedWord),
        (Unnamed, Differs, Never, Free),
        (Unnamed, Differs, Retired, Free),
        (Unnamed, Differs, Digested, Live),
        (Unnamed, Differs, Above, LostRecord),
        (Named, Invalid, Bad, LiveRewrite),
        (Named, Invalid, Never, LiveRewrite),
        (Named, Invalid, Retired, LiveRewrite),
        (Named, Invalid, Digested, LiveRewrite),
        (Named, Invalid, Above, LiveRewrite),
        (Named, Valid, Bad, Live),
        (Named, Valid, Never, Live),
        (Named, Valid, Retired, Live),
        (Named, Valid, Digested, Live),
        (Named, Valid, Above, Live),
        (Named, Differs, Bad, LiveRewrite),
        (Named, Differs, Never, LiveRewrite),
        (Named, Differs, Retired, LiveRewrite),
        (Named, Differs, Digested, LiveRewrite),
        (Named, Differs, Above, LiveRewrite),
    ];

    #[test]
    fn every_input_has_exactly_one_row_and_the_function_agrees() {
        for vouch in [Unnamed, Named] {
            for header in HEADERS {
                for word in WORDS {
                    let rows: Vec<_> = TABLE
                        .iter()
                        .filter(|(v, h, w, _)| (*v, *h, *w) == (vouch, header, word))
                        .collect();
                    assert_eq!(rows.len(), 1, "{vouch:?} {header:?} {word:?}");
                    assert_eq!(classify(header, word, vouch), rows[0].3, "{:?}", rows[0]);
                }
            }
        }
    }

    #[test]
    fn only_a_record_or_a_digested_word_makes_a_slot_live() {
        for (vouch, header, word, verdict) in TABLE {
            let live = matches!(verdict, Live | LiveRewrite);
            assert_eq!(
                live,
                vouch == Named || (word == Digested && header != Invalid),
                "{vouch:?} {header:?} {word:?}"
            );
        }
    }
}
