//! Every ordering, taken out once, and what becomes of that.

use crate::checker::Property;
use crate::ordering::Ordering::{self, *};

/// What taking an ordering out must lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A counterexample to this property.
    Breaks(Property),
    /// None within the bounds, and why.
    Holds(&'static str),
}

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The ordering under test, then those that back it up and are taken out with it.
    pub out: &'static [Ordering],
    /// The configuration it is run in.
    pub case: &'static str,
    /// The result.
    pub expect: Expect,
}

/// All experiments, in the order of `docs/internals/model.md`.
pub fn trials() -> Vec<Trial> {
    use Property::*;
    let breaks = |out, case, property| Trial {
        out,
        case,
        expect: Expect::Breaks(property),
    };
    let holds = |out, case, why| Trial {
        out,
        case,
        expect: Expect::Holds(why),
    };
    vec![
        breaks(&[DurableBeforeReply], "cut", AckedLost),
        breaks(&[PageBeforeNat], "cut", Unreadable),
        breaks(&[NatBeforeDigested], "cut", AckedLost),
        breaks(&[CommittedWordBeforeDigested], "cut", AckedLost),
        breaks(&[ReplayAboveDigested], "lanes-wrap", AckedLost),
        breaks(&[RingAfterDigested], "digest", AckedLost),
        breaks(&[OldPageAfterNat], "digest", Unreadable),
        holds(
            &[OldPageAfterDigested],
            "digest",
            "stronger than needed: the fence behind the NAT switch is enough, replay never reads \
             an old page",
        ),
        breaks(&[HeadBeforeRingReuse], "digest", AckedLost),
        breaks(&[HeadBeforeServing], "remount", AckedLost),
        breaks(&[BodyChecksumApart], "lanes-rot", SilentDamage),
        breaks(&[LookPastBadHeader], "lanes-rot", SilentDamage),
        breaks(&[SequenceAtAppend], "writers", AckedLost),
        breaks(&[FenceUnderLaneLock], "lanes", FalseDamage),
        breaks(&[NothingBlocksAfterNumber], "lanes-full", Stuck),
        breaks(&[NothingFailsAfterNumber], "lanes-commits", FalseDamage),
        breaks(&[BoundBeforeNumber], "lanes", AckedLost),
        breaks(&[BoundClearedAfterFence], "cut", AckedLost),
        breaks(&[CounterBeforeBounds], "lanes", AckedLost),
        breaks(&[DigestedWaitsForAppends], "lanes", AckedLost),
        breaks(&[CommitWaitsForAppends], "lanes-commits", FalseDamage),
        breaks(&[RecoverySkipsHoles], "lanes", AckedLost),
        breaks(&[LocksUntilDurable], "writers", Torn),
        breaks(&[FreedRecordBelowDigested], "direct", ForeignContent),
        holds(
            &[NumberReuseBelowDigested],
            "numbers",
            "records are replayed in order, so the release is replayed before the reuse; the \
             volume model reuses node ids above digested_seq as well. Needed for LBNs only",
        ),
        holds(
            &[NumberReuseBelowDigested],
            "numbers-commit",
            "the same: a commit is a prefix",
        ),
        breaks(&[BitsNotWords], "writers", Leaked),
        breaks(&[SharedPageByOwnRecord], "creators", Unreadable),
        breaks(&[CountersDerived], "two-files", WrongCounter),
        breaks(&[CountersDerived], "writers-delta", WrongCounter),
        breaks(&[CommitMutex], "writers", AckedLost),
        breaks(&[SizeReread], "writers", AckedLost),
        breaks(&[ImageAfterFence], "writers-read", ObservedLost),
        breaks(&[CreditsBeforeLocks], "slots", Stuck),
        breaks(&[CreditsAllOrNothing], "slots", Stuck),
        breaks(&[NoPinWhileWaiting], "slots", Stuck),
        breaks(&[DigestReserve], "pages", Stuck),
        breaks(&[BatchBeforeEnospc], "lbns", SpuriousEnospc),
        breaks(&[EpochLast], "remounts", NotIdempotent),
        breaks(&[EpochInRecords], "remount", AckedLost),
        breaks(&[SlotEpochUpToCurrent], "rot", FalseDamage),
        breaks(&[NumbersAboveDigested], "remount", NotTheCommit),
        holds(
            &[NumbersAboveSeen, DigestedRaisedToSeen],
            "remounts",
            "the epoch in the records makes digested_seq + 1 safe; then there is no gap, and digested_seq need not be \
             raised either",
        ),
        breaks(&[DigestedRaisedToSeen], "remount", FalseDamage),
        breaks(&[DigestedRaisedBeforeCommitTs], "remount", FalseDamage),
        holds(
            &[CommitTsIsDigested],
            "remounts",
            "commit_ts below digested_seq hides nothing: recovery looks at (digested_seq, commit_ts]. It only keeps \
             digested_seq <= commit_ts checkable",
        ),
        breaks(&[StoredModeRules], "remount", NotTheCommit),
        breaks(&[RecoveryDrainsFirst], "rot", NotIdempotent),
        breaks(&[RecoveryDrainsFirst], "log", NotIdempotent),
        breaks(&[HeaderRewriteBeforeDigested], "rot", FalseDamage),
        breaks(&[DigestedBelowCommitTs], "remount", NotTheCommit),
        breaks(&[DrainBeforeCommitTs], "remount", FalseDamage),
        breaks(&[OneCommitAtATime], "lanes-commits", AckedLost),
        breaks(&[CommitTsBeforeReply], "remount", NotTheCommit),
        breaks(&[RecordsBounded], "large-record", Stuck),
        breaks(&[IntentReserve], "intents", Stuck),
        breaks(&[IntentWithEffect], "truncate", Leaked),
        breaks(&[TailLockedUntilDone], "truncate", ForeignContent),
        breaks(&[TailLockedAfterCrash], "truncate", ForeignContent),
        breaks(&[IntentClearedLast], "truncate", Leaked),
        breaks(&[LastRecordWhole], "cut", Unreadable),
        breaks(&[ZeroTailInRecord], "truncate", ForeignContent),
        breaks(&[ReaderHoldsRange], "read-in-place", Torn),
        breaks(&[GraceBeforeSlotReuse], "read-in-place", ForeignContent),
        breaks(&[GraceBeforeInPlace], "read-in-place", ForeignContent),
        breaks(&[WriterPinned], "read-in-place", ForeignContent),
        breaks(&[RereadOnMismatch], "scrub-swap", FalseDamage),
        holds(
            &[GraceBeforeBlockReuse],
            "scrub-swap",
            "a reader that still holds the old entry finds a wrong checksum and looks again; under a \
             range lock no reader can hold one",
        ),
        breaks(&[UndoBeforeScan], "cut", AckedLost),
        breaks(&[UndoneTxnClosed], "log", Torn),
        breaks(&[RetiredUndone], "cut", AckedLost),
        breaks(&[DigestedNeverUndone], "round", AckedLost),
        breaks(&[UndoBeforeMap], "log", NotAPermutation),
        breaks(&[MapBeforeCommitWord], "log", NotAPermutation),
        breaks(&[OneCommitWord], "log", NotAPermutation),
        breaks(&[GenerationInRecords], "log", Torn),
        breaks(&[GenerationBurnt], "log", Torn),
        breaks(&[OneTxnAtATime], "log", NotAPermutation),
        breaks(&[UndoDurableBeforeClose], "log", NotAPermutation),
        breaks(&[DeviceFlushBeforeTxn], "cut", Unreadable),
        breaks(&[CutBelowDigested], "cut", AckedLost),
        breaks(&[AllBuffers], "buffers", ForeignContent),
        breaks(&[SupersededBelowDigested], "round", ForeignContent),
        breaks(&[FreedDropBelowDigested], "commit", NotTheCommit),
        holds(
            &[RoundDropsFreed],
            "reuse",
            "saves I/O only: an LBN that a live slot names is not handed out anyway",
        ),
        breaks(&[SlotReuseAfterRetired], "cut", Unreadable),
        breaks(&[PublishedBeforeRound], "cut", ForeignContent),
        breaks(&[BorrowedReserved], "borrow", Unreadable),
        breaks(&[BorrowedEndsZero], "batch", ForeignContent),
        breaks(&[ZeroBelowDigested], "direct", NotTheCommit),
        breaks(&[ZeroBeforeReallocation], "reuse", ForeignContent),
        breaks(&[ZeroDurableBeforeReallocation], "reuse", ForeignContent),
        breaks(&[ZeroNotDuringTxn], "batch", NotAPermutation),
        breaks(&[NoLiveSlotOnReuse], "reuse", ForeignContent),
        breaks(&[DirectToFresh], "direct", ForeignContent),
        breaks(&[DirectFlushBeforeEntry], "direct", Unreadable),
        breaks(&[CrcBeforeEntry, ScrubSkipsFree], "direct-op", FalseDamage),
        holds(
            &[CrcBeforeEntry],
            "direct-op",
            "both are durable before the record; in between only a scrub of blocks whose bit is \
             clear would notice",
        ),
        breaks(&[EntryBeforeRecord], "direct-op", AckedLost),
        holds(
            &[EntryBeforeRecord],
            "direct",
            "`commit`: the drain of the commit covers both",
        ),
        breaks(&[ScrubSkipsFree], "scrub", FalseDamage),
        breaks(&[PayloadsInBatch], "batches", AckedLost),
        breaks(&[BatchIsWhole], "batches", NotTheCommit),
        breaks(&[CommitRecordsAlternate], "batches", AckedLost),
        breaks(&[CommitVouchesForLast], "batches-rot", SilentDamage),
        holds(
            &[EpochInCommitRecord],
            "batches-again",
            "those of an older epoch are cleared before anything is appended, and until then say nothing above digested_seq",
        ),
        holds(
            &[CommitRecordsCleared],
            "batches-again",
            "those of an older epoch never validate, and nothing is concluded from one that is torn",
        ),
        breaks(
            &[EpochInCommitRecord, CommitRecordsCleared],
            "batches-again",
            AckedLost,
        ),
        breaks(&[OneBatchAhead], "batches-direct", AckedLost),
        breaks(&[OneWriteASector], "batches", AckedLost),
        breaks(&[BatchOwnsSectors], "batches", FalseDamage),
        breaks(&[CommitTsBeforeReply], "batches", AckedLost),
        breaks(&[RingAfterDigested], "batches", FalseDamage),
        breaks(&[DigestedBelowCommitTs], "batches", NotTheCommit),
        breaks(&[NatBeforeDigested], "batches", NotTheCommit),
        breaks(&[FreedRecordBelowDigested], "batches-direct", AckedLost),
        breaks(&[RecoveryDrainsFirst], "batches-again", NotTheCommit),
        breaks(&[AwayByBatch], "redo", AckedLost),
        breaks(&[BatchAfterLanding], "redo", AckedLost),
        breaks(&[HomeBeforeRetired], "redo", AckedLost),
        breaks(&[RetiredBeforeReuse], "redo", AckedLost),
        breaks(&[HeadsOneByOne], "redo", FalseDamage),
        breaks(&[IntactHeadLast], "redo-again", FalseDamage),
        breaks(&[ReplayInOrder], "redo", AckedLost),
        breaks(&[NotedBeforeRecord], "restarts", Twice),
        breaks(&[NotesClearedBeforeNumber], "restarts", AckedLost),
        breaks(&[NoteVoidWhileChanged], "restarts-parts", AckedLost),
        breaks(&[TwoNotes], "restarts-parts", Twice),
        breaks(&[AnsweredBeforeNext], "restarts", Twice),
        breaks(&[ResentLookedUp], "restarts", Twice),
        breaks(&[DigestedCountsAsCarriedOut], "restarts", Twice),
        breaks(&[JudgedBeforeAppend], "restarts", AckedLost),
        breaks(&[JudgedBeforeDigestedRaised], "restarts", AckedLost),
        breaks(&[RememberedBeforeForgotten], "restarts", Twice),
        breaks(&[RememberedOverDeaths], "restarts", Twice),
        breaks(&[PostedBeforeRecord], "behind", AckedLost),
        breaks(&[RetiredAfterDevice], "behind", AckedLost),
        breaks(&[FreeOfPostingsBeforeReuse], "behind", ForeignContent),
        breaks(&[WrittenAgainFirst], "behind", AckedLost),
        breaks(&[DeadTransfersAwaited], "behind", ForeignContent),
        breaks(&[RepeatedBeforeItCounts], "shadow", AckedLost),
        breaks(&[ForgottenWhenArrived], "shadow", AckedLost),
        breaks(&[ForgottenWhenHome], "shadow", AckedLost),
        breaks(&[StoresWaitForForgetting], "shadow", AckedLost),
    ]
}
