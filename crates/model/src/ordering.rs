//! The orderings of `docs/internals/crash-consistency.md`, each with a name, so that each can be taken out.

macro_rules! orderings {
    ($($name:ident $section:literal $text:literal;)*) => {
        /// An ordering or rule of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Ordering {
            $(#[doc = concat!($text, " (", $section, ")")] $name,)*
        }

        impl Ordering {
            /// All of them, in the order of `docs/internals/model.md`.
            pub const ALL: &[Ordering] = &[$(Ordering::$name),*];

            /// `3.n` for ordering n, else the part of the protocol (`docs/internals/model.md`); `new` if the model
            /// asked for it.
            pub fn section(self) -> &'static str {
                match self { $(Ordering::$name => $section),* }
            }

            /// The rule in words.
            pub fn text(self) -> &'static str {
                match self { $(Ordering::$name => $text),* }
            }
        }
    };
}

orderings! {
    ReplayAboveDigested "3.1" "replay ignores records at or below digested_seq, in every lane";
    RingAfterDigested "3.1" "ring space is reused only after digested_seq is durable";
    OldPageAfterNat "3.1" "an old page is reused only after the NAT switch is durable";
    OldPageAfterDigested "3.1" "an old page is reused only after digested_seq is durable";
    HeadBeforeRingReuse "3.1" "the lane's head is durable before the space behind it is reused";
    BodyChecksumApart "3.1" "op: an invalid body before a valid record is damage, not a hole";
    LookPastBadHeader "new" "op: an invalid header before a valid record is damage too";
    FenceUnderLaneLock "3.2" "the lane's lock covers copy, flush and fence";
    NothingBlocksAfterNumber "3.2" "nothing blocks after the number is taken";
    NothingFailsAfterNumber "3.2" "nothing fails after the number is taken";
    BoundBeforeNumber "3.3" "a lane publishes a lower bound before it takes a number";
    BoundClearedAfterFence "3.3" "op: the bound is cleared after the fence";
    CounterBeforeBounds "3.3" "readers load the counter first, then all bounds";
    DigestedWaitsForAppends "3.3" "digested_seq and cuts pass n only when every number up to n has been appended";
    CommitWaitsForAppends "3.3" "a commit waits for the appends at or below its cut";
    RecoverySkipsHoles "3.3" "op: recovery, and only recovery, skips holes";
    LocksUntilDurable "3.4" "locks are held until the record is durable";
    FreedRecordBelowDigested "3.4" "an LBN is reused only once the record that freed it is below digested_seq";
    NumberReuseBelowDigested "3.4" "an inode number is reused only once its release is below digested_seq";
    BitsNotWords "3.4" "shared words are logged as bits set and cleared";
    SharedPageByOwnRecord "3.4" "a page that objects share is created by its own record first";
    CountersDerived "3.4" "group counters are derived from bits that flip, never logged";
    SequenceAtAppend "3.2" "sequence numbers are taken at append";
    CommitMutex "3.5" "a commit mutex covers image, number, append and fence";
    SizeReread "3.5" "the size is read again under the commit mutex";
    ImageAfterFence "3.5" "the new image is installed after the fence";
    DigestedBelowCommitTs "3.8" "digested_seq never passes the durable commit_ts";
    LastRecordWhole "4.3" "op: a lane's last record counts only if what it stages is there";
    DurableBeforeReply "3" "the record is durable before it is published and answered";
    PageBeforeNat "3" "a new page is durable before the NAT entry names it";
    NatBeforeDigested "3" "NAT entries are durable before digested_seq";
    CommittedWordBeforeDigested "3" "committed words are durable before digested_seq";
    DrainBeforeCommitTs "3.8" "everything at or below the cut is durable before commit_ts";
    OneCommitAtATime "3.8" "one commit at a time, so that commit_ts is monotonic";
    CommitTsBeforeReply "3.8" "fsync answers when commit_ts is durable";
    StoredModeRules "3.7" "recovery obeys the stored durability mode";
    EpochLast "3.7" "the new epoch is the last store of recovery";
    HeadBeforeServing "3.1" "lane heads are durable before the first record of a new epoch";
    EpochInRecords "3.7" "records of an older epoch never validate";
    SlotEpochUpToCurrent "3.7" "a slot header of any epoch up to the current one is good";
    NumbersAboveDigested "3.7" "numbers restart above digested_seq";
    NumbersAboveSeen "3.7" "numbers restart above every number seen anywhere";
    DigestedRaisedToSeen "new" "recovery raises digested_seq to the highest number seen";
    DigestedRaisedBeforeCommitTs "new" "the raised digested_seq is durable before commit_ts follows it";
    CommitTsIsDigested "3.7" "recovery makes commit_ts = digested_seq before the new epoch";
    RecoveryDrainsFirst "new" "recovery makes durable what it has read before it acts on it";
    HeaderRewriteBeforeDigested "new" "a damaged header that a record vouches for is rewritten before digested_seq";
    UndoBeforeScan "7" "the open page-table transaction is undone before retired_seq is read";
    UndoneTxnClosed "5" "an undone transaction is closed before any other store to the map";
    RetiredUndone "5" "the transaction's undo covers retired_seq";
    DigestedNeverUndone "5" "the transaction's undo does not cover digested_seq";
    UndoBeforeMap "5" "undo records are durable before the map changes";
    MapBeforeCommitWord "5" "map changes are durable before the commit word";
    OneCommitWord "5" "all lanes of a transaction commit by one word";
    GenerationInRecords "5" "page-table log records carry the generation of their round";
    GenerationBurnt "new" "attach closes the next generation even if no start record is found";
    OneTxnAtATime "5" "only rounds swap, one round at a time";
    UndoDurableBeforeClose "5" "attach: the undo is durable before the transaction is closed";
    DeviceFlushBeforeTxn "5" "the device is flushed before the page-table transaction";
    CutBelowDigested "5" "the cut of a round is at or below digested_seq";
    AllBuffers "5" "a round takes all live slots at or below its cut, in all buffers";
    SupersededBelowDigested "5" "a slot is dropped only for a newer one at or below digested_seq";
    FreedDropBelowDigested "5" "a slot is dropped only for an LBN that a record at or below digested_seq freed";
    RoundDropsFreed "5" "a round drops slots of freed LBNs";
    SlotReuseAfterRetired "5" "slots are reused only after retired_seq is durable";
    PublishedBeforeRound "new" "a round starts when everything at or below digested_seq is published";
    BorrowedReserved "5" "borrowed LBNs are reserved for the round";
    BorrowedEndsZero "5" "borrowed LBNs end the round in state zero";
    ZeroBelowDigested "5" "only LBNs freed at or below digested_seq are zeroed";
    ZeroBeforeReallocation "5" "a freed LBN is zeroed before it is handed out";
    ZeroDurableBeforeReallocation "5" "the zero state is durable before the LBN is handed out";
    ZeroNotDuringTxn "5" "zeroing passes never run during the page-table transaction of a round";
    NoLiveSlotOnReuse "5" "an LBN that a live slot names is not handed out";
    DirectToFresh "5" "direct data goes to fresh LBNs";
    DirectFlushBeforeEntry "5" "direct data is flushed before its entry is written";
    CrcBeforeEntry "5" "direct data: the CRC is durable before the entry";
    EntryBeforeRecord "5" "direct data: the entry is durable before the record";
    ReaderHoldsRange "4" "a reader holds the range lock until its copy is done";
    GraceBeforeSlotReuse "4" "a slot is reused only after the readers' grace period";
    GraceBeforeBlockReuse "4" "a physical block is reused only after a grace period";
    GraceBeforeInPlace "4" "a round waits a grace period between its cut and its first write";
    WriterPinned "new" "a writer is pinned from before its append until it has published";
    RereadOnMismatch "4" "on a checksum mismatch map, entry and CRC are read again";
    CreditsBeforeLocks "3.6" "credits are acquired before any lock";
    CreditsAllOrNothing "3.6" "credits are acquired all or nothing";
    NoPinWhileWaiting "3.6" "no epoch is pinned while waiting for credits";
    DigestReserve "3.6" "digest keeps the pages of the largest record in reserve";
    BatchBeforeEnospc "3.6" "a shortage of LBNs runs a zeroing pass before it is ENOSPC";
    RecordsBounded "3.9" "records are bounded";
    IntentReserve "3.9" "finishing an intent does not depend on the progress of others";
    IntentWithEffect "3.9" "the record of the visible effect carries the intent";
    TailLockedUntilDone "3.9" "[new size, inf) stays locked until the intent is done";
    TailLockedAfterCrash "3.9" "also after a crash";
    IntentClearedLast "3.9" "an intent is cleared only with its last step";
    ZeroTailInRecord "4" "a shrink into a block stages the zero-tailed block in its own record";
    ScrubSkipsFree "new" "fsck and scrub skip blocks whose bit is clear";
    PayloadsInBatch "disk" "a commit writes the payloads that its records name";
    BatchIsWhole "disk" "recovery believes a commit only if all of its batch is there";
    CommitRecordsAlternate "disk" "a commit record does not go where one of the last two is";
    CommitVouchesForLast "disk" "a commit record says what was durable when it was written: what that lacks is damage";
    EpochInCommitRecord "disk" "a commit record of an older epoch never validates";
    CommitRecordsCleared "disk" "recovery clears commit records, one of which may be torn, before it serves";
    OneBatchAhead "disk" "a batch begins when the last but one is durable";
    OneWriteASector "disk" "no sector has two writes in flight";
    BatchOwnsSectors "disk" "a batch begins in a sector of the log that no commit covers yet";
    AwayByBatch "redo" "a sector in a batch that counts is settled by another batch, not at home";
    BatchAfterLanding "redo" "no batch takes a sector while it is being written at home";
    HomeBeforeRetired "redo" "what a half has is durable at home before the head says that its lap is retired";
    RetiredBeforeReuse "redo" "the head is durable before sectors of the half are written at home and before the half is written again";
    HeadsOneByOne "redo" "the second copy of the head is written when the first is durable";
    IntactHeadLast "redo" "a replay writes the copy of the head that it has read after the other one";
    ReplayInOrder "redo" "batches are replayed in the order of their numbers";
    NotedBeforeRecord "restart" "a request notes the number of its record before that is written";
    NotesClearedBeforeNumber "restart" "notes of the last request are gone before the slot has the number of the next one";
    NoteVoidWhileChanged "restart" "a note has no number while it is changed";
    TwoNotes "restart" "of several records the note of the last but one stays while that of the last is written";
    AnsweredBeforeNext "restart" "a thread takes its next request when the last one is answered";
    ResentLookedUp "restart" "a request that comes again is looked up before it is carried out";
    DigestedCountsAsCarriedOut "restart" "space of records is reused: a number at or below digested_seq counts as there";
    JudgedBeforeAppend "restart" "requests are judged before anything is appended";
    JudgedBeforeDigestedRaised "restart" "requests are judged before digested_seq is raised over numbers without a record";
    RememberedBeforeForgotten "restart" "what became of a request is remembered before its slot is cleared";
    RememberedOverDeaths "restart" "what is remembered stays over the deaths that follow";
    PostedBeforeRecord "restart" "a large write is posted before its record is written";
    RetiredAfterDevice "restart" "what is posted is taken out when the device has it";
    FreeOfPostingsBeforeReuse "restart" "blocks come to belong to others when nothing is posted for them";
    WrittenAgainFirst "restart" "what is posted is written again before anything is served";
    DeadTransfersAwaited "restart" "what a dead daemon has under way is waited for before anything is written";
    RepeatedBeforeItCounts "restart" "what is stored to a region on a disk is in the shadow before the store counts";
    ForgottenWhenArrived "restart" "sectors are forgotten in the shadow when nothing of them is on its way";
    ForgottenWhenHome "restart" "what only a batch has is not forgotten in the shadow";
    StoresWaitForForgetting "restart" "nothing is stored to a page while it is forgotten in the shadow";
}

/// The set of orderings that a run observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept([u128; WORDS]);

const WORDS: usize = Ordering::ALL.len().div_ceil(128);

impl Kept {
    /// The whole protocol.
    pub const ALL: Kept = Kept([u128::MAX; WORDS]);

    /// The protocol with one ordering less.
    pub fn without(mut self, ordering: Ordering) -> Kept {
        self.0[ordering as usize / 128] &= !(1 << (ordering as u32 % 128));
        self
    }

    /// Whether an ordering is observed.
    pub fn has(self, ordering: Ordering) -> bool {
        self.0[ordering as usize / 128] >> (ordering as u32 % 128) & 1 == 1
    }
}
