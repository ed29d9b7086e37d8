//! A part of a volume that is being copied to another place while a mount uses it, and what has been written to it since
//! it was copied.
//!
//! The part is cut into pieces. Each has a word with a mark, that it has to be copied, and a count of the writes that are
//! under way in it. A write counts before it begins, and marks the piece when it has ended. What copies a piece takes
//! the mark away before it reads: a write that it does not see, or sees in part, ends later and marks the piece again. A
//! daemon that dies leaves counts behind. The next one marks these pieces when nothing is under way any more
//! ([`Moves::attach`]), so nothing that was written is ever taken for copied.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, fallocate, fcntl_lock, memfd_create};

use crate::memory::Words;

/// What the memory begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"quaymov1");
const PIECE: usize = 1;
const BLOCKS: usize = 2;
const PART: usize = 3;
/// Which file or device the new place is.
const NUMBER: usize = 4;
/// A daemon keeps the marks.
const ATTACHED: usize = 6;
/// How often a daemon has begun to go on from the new place.
const TRIES: usize = 7;
const DONE: usize = 8;
const TOTAL: usize = 9;
const RESULT: usize = 10;
/// Where texts are, with their length in front: the new place, and why it is of no use.
const PATH: usize = 16;
const WHY: usize = PATH + TEXT;
const TEXT: usize = 1024;
/// Where the pieces are.
const PIECES: usize = 4096;

/// A piece has to be copied.
const MARK: u64 = 1 << 63;
/// Most pieces, so that their words take at most 8 MiB.
const MOST: u64 = 1 << 20;
/// Blocks of a piece at least.
const LEAST: u64 = 16;

/// What has become of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing yet.
    Open,
    /// The volume is in the new place.
    Moved,
    /// It stays in the old place, for this reason.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub struct Moves {
    file: File,
    words: Words,
    pieces: u64,
    piece: u64,
    blocks: u64,
}

impl Moves {
    /// Memory for a part of so many blocks, all of which have to be copied. `part` and `number` mean something to what
    /// copies; so does the new place, `path`.
    ///
    /// # Errors
    /// Those of the system, which has no memory; the path is too long.
    pub fn new(part: u64, blocks: u64, path: &Path, number: [u64; 2]) -> io::Result<Self> {
        let piece = blocks.div_ceil(MOST).max(LEAST).next_power_of_two();
        let file = File::from(memfd_create("quayfs-move", MemfdFlags::CLOEXEC)?);
        // Of this process, unlike other locks, and ends with it, whatever other process holds the file.
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let pieces = blocks.div_ceil(piece);
        file.set_len((PIECES as u64 + pieces) * size_of::<u64>() as u64)?;
        let words = Words::map(&file, PIECES + pieces as usize)?;
        for (at, word) in [(PIECE, piece), (BLOCKS, blocks), (PART, part)] {
            words.at(at).store(word, Ordering::Relaxed);
        }
        let moves = Self {
            file,
            words,
            pieces,
            piece,
            blocks,
        };
        (0..pieces).for_each(|n| moves.word(n).store(MARK, Ordering::Relaxed));
        moves.words.at(NUMBER).store(number[0], Ordering::Relaxed);
        moves
            .words
            .at(NUMBER + 1)
            .store(number[1], Ordering::Relaxed);
        moves.put_text(PATH, path.as_os_str().as_bytes())?;
        moves.words.at(0).store(MAGIC, Ordering::Release);
        Ok(moves)
    }

    /// The memory that another process has made.
    ///
    /// # Errors
    /// It is not such a memory; those of the system.
    pub fn left(file: File) -> io::Result<Self> {
        let unknown = || io::Error::other("the memory of a move is of another kind");
        let head = Words::map(&file, PIECES)?;
        let word = |at| head.at(at).load(Ordering::Acquire);
        let (piece, blocks) = (word(PIECE), word(BLOCKS));
        if word(0) != MAGIC || piece == 0 || blocks == 0 || blocks.div_ceil(piece) > MOST {
            return Err(unknown());
        }
        let pieces = blocks.div_ceil(piece);
        let words = Words::map(&file, PIECES + pieces as usize)?;
        Ok(Self {
            file,
            words,
            pieces,
            piece,
            blocks,
        })
    }

    /// The file, for processes that hold it.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn word(&self, piece: u64) -> &AtomicU64 {
        self.words.at(PIECES + piece as usize)
    }

    /// What is moved, as it was told to [`Moves::new`].
    pub fn part(&self) -> u64 {
        self.words.at(PART).load(Ordering::Acquire)
    }

    /// The new place.
    pub fn path(&self) -> PathBuf {
        OsStr::from_bytes(&self.text(PATH)).into()
    }

    /// Which file or device that is, as it was told to [`Moves::new`].
    pub fn number(&self) -> [u64; 2] {
        [NUMBER, NUMBER + 1].map(|at| self.words.at(at).load(Ordering::Acquire))
    }

    /// How many blocks are moved.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// From here on this process marks what it writes. Nothing is under way of the one before it.
    pub fn attach(&self) {
        for piece in 0..self.pieces {
            let word = self.word(piece);
            if word.load(Ordering::SeqCst) & !MARK != 0 {
                word.store(MARK, Ordering::SeqCst);
            }
        }
        self.words.at(ATTACHED).store(1, Ordering::SeqCst);
    }

    /// Whether a process has marked what it writes ever since there is this memory, if all that had the part open to write
    /// had this memory.
    pub fn is_attached(&self) -> bool {
        self.words.at(ATTACHED).load(Ordering::SeqCst) != 0
    }

    fn touched(&self, blocks: &Range<u64>) -> Range<u64> {
        let end = blocks.end.min(self.blocks);
        match blocks.start < end {
            true => blocks.start / self.piece..(end - 1) / self.piece + 1,
            false => 0..0,
        }
    }

    /// A write of these blocks begins; it has ended when [`Moves::end`] is called.
    pub fn begin(&self, blocks: &Range<u64>) {
        for piece in self.touched(blocks) {
            self.word(piece).fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A write of these blocks has ended, whether it has succeeded or not.
    pub fn end(&self, blocks: &Range<u64>) {
        for piece in self.touched(blocks) {
            // First the mark: what looks in between finds one of both.
            self.word(piece).fetch_or(MARK, Ordering::SeqCst);
            self.word(piece).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Blocks that have to be copied, at most about `most`, in order from block `from` on. Their marks are gone: they have
    /// to be read after this call, and a process that dies then has left them out.
    pub fn take(&self, from: u64, most: u64) -> Vec<Range<u64>> {
        self.find(from, most, |word| word.fetch_and(!MARK, Ordering::SeqCst))
    }

    /// As [`Moves::take`], and the marks stay until [`Moves::copied`]: for a time in which nothing writes.
    pub fn peek(&self, from: u64, most: u64) -> Vec<Range<u64>> {
        self.find(from, most, |word| word.load(Ordering::SeqCst))
    }

    /// These need not be copied again; nothing has been written meanwhile.
    pub fn copied(&self, blocks: &[Range<u64>]) {
        for piece in blocks.iter().flat_map(|range| self.touched(range)) {
            self.word(piece).fetch_and(!MARK, Ordering::SeqCst);
        }
    }

    fn find(&self, from: u64, most: u64, look: impl Fn(&AtomicU64) -> u64) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut blocks = 0;
        for piece in from / self.piece..self.pieces {
            if blocks >= most {
                break;
            }
            if look(self.word(piece)) & MARK == 0 {
                continue;
            }
            let range = piece * self.piece..self.blocks.min((piece + 1) * self.piece);
            blocks += range.end - range.start;
            match found.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => found.push(range),
            }
        }
        found
    }

    /// These have to be copied after all.
    pub fn put_back(&self, blocks: &[Range<u64>]) {
        for piece in blocks.iter().flat_map(|range| self.touched(range)) {
            self.word(piece).fetch_or(MARK, Ordering::SeqCst);
        }
    }

    /// How many blocks have to be copied, about.
    pub fn marked(&self) -> u64 {
        let is_marked = |piece: &u64| self.word(*piece).load(Ordering::SeqCst) != 0;
        (0..self.pieces).filter(is_marked).count() as u64 * self.piece
    }

    /// A daemon begins to go on from the new place: how often that has been so before.
    pub fn count_try(&self) -> u64 {
        self.words.at(TRIES).fetch_add(1, Ordering::SeqCst)
    }

    /// How far the daemon is that goes on from the new place: bytes, of how many.
    pub fn tell(&self, done: u64, total: u64) {
        self.words.at(TOTAL).store(total, Ordering::SeqCst);
        self.words.at(DONE).store(done, Ordering::SeqCst);
    }

    /// What was told last.
    pub fn told(&self) -> (u64, u64) {
        let word = |at| self.words.at(at).load(Ordering::SeqCst);
        (word(DONE), word(TOTAL))
    }

    /// Notes what has become of it.
    pub fn conclude(&self, outcome: &Outcome) {
        let word = match outcome {
            Outcome::Open => 0,
            Outcome::Moved => 1,
            Outcome::Failed(why) => {
                let mut cut = why.len().min((TEXT - 1) * size_of::<u64>());
                while !why.is_char_boundary(cut) {
                    cut -= 1;
                }
                // It fits.
                let _ = self.put_text(WHY, &why.as_bytes()[..cut]);
                2
            }
        };
        self.words.at(RESULT).store(word, Ordering::SeqCst);
    }

    /// What has become of it.
    pub fn outcome(&self) -> Outcome {
        match self.words.at(RESULT).load(Ordering::SeqCst) {
            0 => Outcome::Open,
            1 => Outcome::Moved,
            _ => Outcome::Failed(String::from_utf8_lossy(&self.text(WHY)).into_owned()),
        }
    }

    /// Whether nothing has become of it yet.
    pub fn is_open(&self) -> bool {
        self.words.at(RESULT).load(Ordering::Relaxed) == 0
    }

    /// Whether the process that has made the memory lives. To be asked by another one.
    pub fn is_attended(&self) -> bool {
        let free = fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Else the process would seem to live in which this one is asked.
        let _ = fcntl_lock(&self.file, FlockOperation::NonBlockingUnlock);
        !free
    }

    /// Gives the memory of the marks back, when nothing needs them any more. They are as good as none then.
    pub fn clear(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let word = size_of::<u64>() as u64;
        // Else it stays until the mount ends.
        let _ = fallocate(&self.file, flags, PIECES as u64 * word, self.pieces * word);
    }

    fn put_text(&self, at: usize, text: &[u8]) -> io::Result<()> {
        if text.len() > (TEXT - 1) * size_of::<u64>() {
            return Err(rustix::io::Errno::NAMETOOLONG.into());
        }
        for (n, part) in text.chunks(size_of::<u64>()).enumerate() {
            let mut word = [0; size_of::<u64>()];
            word[..part.len()].copy_from_slice(part);
            let word = u64::from_le_bytes(word);
            self.words.at(at + 1 + n).store(word, Ordering::Relaxed);
        }
        self.words.at(at).store(text.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn text(&self, at: usize) -> Vec<u8> {
        let len = self.words.at(at).load(Ordering::SeqCst) as usize;
        let len = len.min((TEXT - 1) * size_of::<u64>());
        let words = (0..len.div_ceil(size_of::<u64>())).map(|n| self.words.at(at + 1 + n));
        let mut text: Vec<u8> = words
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        text.truncate(len);
        text
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "one range may be all that there is"
)]
mod tests {
    use super::*;

    fn moves(blocks: u64) -> Moves {
        Moves::new(1, blocks, Path::new("/new place"), [3, 4]).unwrap()
    }

    fn again(moves: &Moves) -> Moves {
        Moves::left(moves.file().try_clone().unwrap()).unwrap()
    }

    #[test]
    fn everything_is_to_be_copied_once() {
        let moves = moves(1000);
        assert_eq!(moves.take(0, 1), [0..16]);
        assert_eq!(moves.take(500, 20), [496..528]);
        assert_eq!(moves.take(0, u64::MAX), [16..496, 528..1000]);
        assert_eq!((moves.take(0, u64::MAX), moves.marked()), (vec![], 0));
        moves.put_back(&[900..901, 999..1000]);
        assert_eq!(moves.take(0, u64::MAX), [896..912, 992..1000]);
    }

    #[test]
    fn what_is_written_is_to_be_copied_again_when_it_has_ended() {
        let moves = moves(1000);
        moves.take(0, u64::MAX);
        let other = again(&moves);
        moves.begin(&(15..17));
        moves.begin(&(990..1200));
        assert!(other.take(0, u64::MAX).is_empty() && other.marked() > 0);
        moves.end(&(15..17));
        // Taken while something else is under way there.
        moves.begin(&(0..1));
        assert_eq!(other.take(0, u64::MAX), [0..32]);
        moves.end(&(0..1));
        moves.end(&(990..1200));
        assert_eq!(other.take(0, u64::MAX), [0..16, 976..1000]);
        assert_eq!(other.marked(), 0);
        // Outside of what is moved.
        moves.begin(&(1000..1010));
        moves.end(&(1000..1010));
        assert_eq!(other.marked(), 0);
    }

    #[test]
    fn what_a_daemon_had_under_way_is_to_be_copied_again() {
        let moves = moves(1000);
        assert!(!moves.is_attached());
        moves.attach();
        moves.take(0, u64::MAX);
        moves.begin(&(100..101));
        let next = again(&moves);
        assert!(next.is_attached() && next.take(0, u64::MAX).is_empty());
        next.attach();
        assert_eq!(next.take(0, u64::MAX), [96..112]);
        next.attach();
        assert_eq!(next.marked(), 0);
    }

    /// A process that copies and dies has left nothing out, if nothing writes meanwhile.
    #[test]
    fn marks_stay_until_all_is_copied() {
        let moves = moves(1000);
        let peeked = moves.peek(0, 20);
        assert_eq!((&peeked[..], moves.marked()), (&[0..32][..], 1008));
        moves.copied(&peeked);
        assert_eq!(moves.peek(0, u64::MAX), [32..1000]);
        moves.copied(&[32..1000]);
        assert_eq!((moves.peek(0, u64::MAX), moves.marked()), (vec![], 0));
    }

    #[test]
    fn all_processes_see_the_same() {
        let moves = moves(1 << 30);
        let other = again(&moves);
        assert_eq!((other.part(), other.number()), (1, [3, 4]));
        assert_eq!(
            (other.blocks(), other.path()),
            (1 << 30, "/new place".into())
        );
        assert_eq!(other.outcome(), Outcome::Open);
        let why = "ä".repeat(9000);
        other.conclude(&Outcome::Failed(why.clone()));
        let Outcome::Failed(told) = moves.outcome() else {
            panic!("{:?}", moves.outcome())
        };
        assert!(why.starts_with(&told) && told.len() > 8000);
        other.conclude(&Outcome::Moved);
        other.tell(7, 9);
        assert_eq!((moves.outcome(), moves.told()), (Outcome::Moved, (7, 9)));
        assert_eq!((other.count_try(), moves.count_try()), (0, 1));
        moves.clear();
        assert_eq!(other.marked(), 0);
    }

    #[test]
    fn other_memory_is_refused() {
        let file = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Moves::left(file.try_clone().unwrap()).is_err());
        file.set_len(1 << 20).unwrap();
        assert!(Moves::left(file).is_err());
        let long = PathBuf::from("x".repeat(9000));
        assert!(Moves::new(1, 10, &long, [0, 0]).is_err());
    }
}
