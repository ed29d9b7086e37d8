//! Which blocks of the device are read before they are asked for.
//!
//! A *place* is where a request reads, in one or more runs with little between them; a *stream* is a place where one
//! request after the other has gone on, and asked for a good part of what is there. What a stream holds, or is about
//! to, lies behind one another in *segments*.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Chunk;
use smallvec::SmallVec;

/// Sizes, in blocks unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Fewer places than these are read as they are: few requests do not cost much.
    pub places: usize,
    /// Requests whose runs are this long on average are read as they are.
    pub run: u64,
    /// What may lie between one run of a place and the next, and between a place and where the next request goes on:
    /// blocks that have been written elsewhere since.
    pub gap: u64,
    /// How often requests have gone on where a stream begins.
    pub times: u32,
    /// A stream goes on where at least one block in so many is asked for. A disk reads about so many in the time that
    /// it takes for one more request.
    pub sparse: u64,
    /// For so many requests is read what they will pass, but no less than `least` and no more than one segment, unless
    /// a single request passes more.
    pub requests: u64,
    /// The shortest segment.
    pub least: u64,
    /// The longest one.
    pub segment: u64,
    /// Streams at a time.
    pub streams: usize,
    /// Requests after which a stream that none of them has read from may be given up for another.
    pub idle: u64,
    /// Places that are remembered.
    pub ends: usize,
    /// When nothing has been read for this long, streams are given up, and all memory but what is kept ready.
    pub rest: Duration,
}

impl Limits {
    pub const MOUNT: Self = Self {
        places: 4,
        run: 64,
        gap: 32,
        times: 2,
        sparse: 3,
        requests: 4,
        least: 16,
        segment: 64,
        streams: 64,
        idle: 64,
        ends: 256,
        rest: Duration::from_secs(2),
    };
}

/// Consecutive blocks that are read ahead with one request.
#[derive(Debug)]
pub(super) struct Segment {
    pub blocks: Range<u64>,
    /// What they hold; `None` within if they have not been read and will not be.
    pub data: OnceLock<Option<Chunk>>,
}

impl Segment {
    fn new(blocks: Range<u64>) -> Arc<Self> {
        Arc::new(Self {
            blocks,
            data: OnceLock::new(),
        })
    }

    pub fn len(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    pub fn is_settled(&self) -> bool {
        self.data.get().is_some()
    }

    fn has_failed(&self) -> bool {
        self.data.get().is_some_and(Option::is_none)
    }
}

/// The segments that hold one run together.
pub(super) type Cover = SmallVec<[Arc<Segment>; 2]>;

#[derive(Debug)]
struct Held {
    segment: Arc<Segment>,
    /// Blocks that no request has asked for.
    unread: u64,
}

/// Not empty, and no segment begins before the one before it ends.
#[derive(Debug)]
struct Stream {
    held: VecDeque<Held>,
    /// Where requests have come to.
    end: End,
}

/// Where the last request ended at a place.
#[derive(Clone, Copy, Debug)]
struct End {
    block: u64,
    /// The number of that request.
    request: u64,
    /// How often requests have gone on here.
    times: u32,
    /// Blocks that they asked for, of so many that they passed; lately.
    asked: u64,
    passed: u64,
    /// What one request passes.
    step: u64,
}

impl End {
    /// Of a request that has begun here.
    fn new(all: &Range<u64>, asked: u64, request: u64) -> Self {
        Self {
            block: all.end,
            request,
            times: 0,
            asked,
            passed: all.end - all.start,
            step: all.end - all.start,
        }
    }

    /// A request has gone on up to `to`, or has come late.
    fn go_on(&mut self, to: u64, asked: u64, request: u64) {
        let passed = to.saturating_sub(self.block);
        if passed > 0 {
            self.step = (self.step + passed).div_ceil(2);
        }
        self.passed += passed;
        self.asked += asked;
        // What was long ago counts less.
        if self.passed > PASSED {
            self.passed /= 2;
            self.asked /= 2;
        }
        self.block = self.block.max(to);
        self.request = request;
        self.times = self.times.saturating_add(1);
    }
}

/// Blocks after which what was asked for of them counts half.
const PASSED: u64 = 512;

/// All streams of a device, and what is to be read for them.
#[derive(Debug)]
pub(super) struct Streams {
    limits: Limits,
    /// Length of the device.
    blocks: u64,
    streams: Vec<Stream>,
    /// Where requests have ended that no stream had anything for.
    ends: VecDeque<End>,
    queue: VecDeque<Arc<Segment>>,
    /// Counts requests.
    request: u64,
}

impl Streams {
    pub fn new(limits: Limits, blocks: u64) -> Self {
        Self {
            limits,
            blocks,
            streams: Vec::new(),
            ends: VecDeque::new(),
            queue: VecDeque::new(),
            request: 0,
        }
    }

    /// Takes note of a request for runs of blocks, and returns what has been read of it or is about to be: the index
    /// of a run, and the segments that it lies in. What is to be read next is in the queue afterwards.
    pub fn request(&mut self, runs: &[Range<u64>]) -> Vec<(usize, Cover)> {
        let mut covered = Vec::new();
        let mut order: SmallVec<[usize; 32]> = (0..runs.len()).collect();
        order.sort_unstable_by_key(|i| runs[*i].start);
        let blocks: u64 = runs.iter().map(|r| r.end - r.start).sum();
        let gap = self.limits.gap;
        let places = || order.chunk_by(|a, b| runs[*b].start <= runs[*a].end + gap);
        let long = self.limits.run * runs.len() as u64 <= blocks;
        if long || places().count() < self.limits.places {
            return covered;
        }
        self.request += 1;
        for place in places() {
            let (Some(first), Some(last)) = (place.first(), place.last()) else {
                continue;
            };
            let all = runs[*first].start..runs[*last].end;
            let asked = place.iter().map(|i| runs[*i].end - runs[*i].start).sum();
            if let Some(at) = self.find(all.start) {
                for &i in place {
                    if let Some(cover) = self.streams[at].take(&runs[i]) {
                        covered.push((i, cover));
                    }
                }
                self.go_on(at, all.end, asked);
            } else {
                let mut end = End::new(&all, asked, self.request);
                if let Some(before) = self.forget_end(all.start) {
                    end = before;
                    end.go_on(all.end, asked, self.request);
                }
                let goes_on = end.times >= self.limits.times && self.is_dense(&end);
                if !(goes_on && self.begin(end)) {
                    self.remember(end);
                }
            }
        }
        covered
    }

    /// Segments that are to be read now, of `most` blocks together, which is more than one segment has. Those of
    /// streams that have been given up are left out, unless a request waits for them.
    pub fn next(&mut self, most: u64) -> Vec<Arc<Segment>> {
        let mut batch = Vec::new();
        let mut room = most;
        while let Some(segment) = self.queue.front() {
            let wanted = Arc::strong_count(segment) > 1;
            if wanted && segment.len() > room {
                break;
            }
            let Some(segment) = self.queue.pop_front() else {
                break;
            };
            if wanted {
                room -= segment.len();
                batch.push(segment);
            }
        }
        batch
    }

    /// Whether [`Streams::next`] has something.
    pub fn has_next(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The number of the last request.
    pub fn requests(&self) -> u64 {
        self.request
    }

    /// Gives up the streams that have, or are about to have, one of these blocks.
    pub fn forget(&mut self, blocks: &Range<u64>) {
        let has = |s: &Stream| s.start() < blocks.end && blocks.start < s.end();
        while let Some(at) = self.streams.iter().position(has) {
            // A reader that goes on there is still known.
            let end = self.streams.swap_remove(at).end;
            self.remember(end);
        }
    }

    /// Gives up all streams.
    pub fn clear(&mut self) {
        self.streams.clear();
        self.ends.clear();
        for segment in self.queue.drain(..) {
            let _ = segment.data.set(None);
        }
    }

    /// The stream that has this block, or ends shortly before it. Of those that do, the one that begins last: what
    /// another one has read behind its own end belongs to this one.
    fn find(&self, block: u64) -> Option<usize> {
        let gap = self.limits.gap;
        let streams = self.streams.iter().enumerate();
        let these = streams.filter(|(_, s)| s.start() <= block && block <= s.end() + gap);
        these.max_by_key(|(_, s)| s.start()).map(|(i, _)| i)
    }

    /// Where an earlier request ended, if it is shortly before this block. It is forgotten.
    fn forget_end(&mut self, block: u64) -> Option<End> {
        let (gap, now) = (self.limits.gap, self.request);
        let end = self
            .ends
            .iter()
            .position(|end| end.request < now && end.block <= block && block <= end.block + gap);
        end.and_then(|i| self.ends.remove(i))
    }

    fn remember(&mut self, end: End) {
        if self.ends.len() == self.limits.ends {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    fn is_dense(&self, end: &End) -> bool {
        end.asked * self.limits.sparse >= end.passed
    }

    /// A stream from there on, if there may be one more and none has what it would.
    fn begin(&mut self, end: End) -> bool {
        let Limits { least, streams, .. } = self.limits;
        // At first no more than what has been asked for so far.
        let len = end.asked.clamp(least, self.low(&end));
        let covers = |s: &Stream| s.start() < end.block + len && end.block < s.end();
        if self.streams.iter().any(covers) {
            return false;
        }
        if self.streams.len() == streams {
            self.give_up_idle();
        }
        if self.streams.len() == streams {
            return false;
        }
        let held = self
            .segment(end.block, len)
            .map(|held| VecDeque::from([held]));
        let begun = held.map(|held| Stream { held, end });
        let any = begun.is_some();
        self.streams.extend(begun);
        any
    }

    /// When so few blocks are left before the end of a stream, more is read.
    fn low(&self, end: &End) -> u64 {
        let Limits {
            requests,
            least,
            segment,
            ..
        } = self.limits;
        (requests * end.step).clamp(least, segment).max(end.step)
    }

    /// Gives up streams that no request has read from for a while.
    pub fn give_up_idle(&mut self) {
        let (now, idle) = (self.request, self.limits.idle);
        self.streams.retain(|s| s.end.request + idle >= now);
    }

    /// A request has come up to this block in a stream, or has come late.
    fn go_on(&mut self, at: usize, to: u64, asked: u64) {
        let stream = &mut self.streams[at];
        stream.end.go_on(to, asked, self.request);
        let end = stream.end;
        let low = self.low(&end);
        // What lies between, where a request was faster, has been read.
        let mut next = self.streams[at].end().max(end.block);
        if next - end.block < low && !self.is_dense(&end) {
            self.streams.swap_remove(at);
            self.remember(end);
            return;
        }
        while next - end.block < low {
            let Some(held) = self.segment(next, low) else {
                break;
            };
            next = held.segment.blocks.end;
            self.streams[at].held.push_back(held);
        }
        // Requests that follow each other may come in another order.
        let late = low.max(self.limits.segment);
        let stream = &mut self.streams[at];
        while stream
            .held
            .front()
            .is_some_and(|held| held.unread == 0 || held.segment.blocks.end + late <= end.block)
        {
            stream.held.pop_front();
        }
        if stream.held.is_empty() {
            self.streams.swap_remove(at);
        }
    }

    /// Queues so many blocks from here on, as far as a segment and the device go.
    fn segment(&mut self, block: u64, len: u64) -> Option<Held> {
        let end = (block + len.min(self.limits.segment)).min(self.blocks);
        if end <= block {
            return None;
        }
        let segment = Segment::new(block..end);
        self.queue.push_back(Arc::clone(&segment));
        let unread = segment.len();
        Some(Held { segment, unread })
    }
}

impl Stream {
    fn start(&self) -> u64 {
        self.held.front().map_or(0, |h| h.segment.blocks.start)
    }

    fn end(&self) -> u64 {
        self.held.back().map_or(0, |h| h.segment.blocks.end)
    }

    /// The segments that a run lies in, if they are all there, or about to be.
    fn take(&mut self, run: &Range<u64>) -> Option<Cover> {
        let mut cover = Cover::new();
        let mut missing = run.end - run.start;
        for held in &mut self.held {
            let blocks = &held.segment.blocks;
            let part = run.start.max(blocks.start)..run.end.min(blocks.end);
            if !part.is_empty() {
                let len = part.end - part.start;
                held.unread = held.unread.saturating_sub(len);
                if !held.segment.has_failed() {
                    missing -= len;
                    cover.push(Arc::clone(&held.segment));
                }
            }
        }
        (missing == 0).then_some(cover)
    }
}

#[cfg(test)]
mod tests;
