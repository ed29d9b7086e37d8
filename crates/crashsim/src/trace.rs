//! All crashes of a run.

use crate::budget::Budget;
use crate::cursor::Cursor;
use crate::event::{Event, InFlight, Kind, Medium, Ordering, OrderingKind};
use crate::image::CrashImage;
use crate::pages::Pages;
use crate::recorder::Base;
use crate::select::{Selection, selections};
use crate::state::Granule;
use quayfs_pmem::Backend;
use rustc_hash::{FxHashSet, FxHasher};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A run that was recorded.
pub struct Trace {
    base: Base,
    events: Arc<Vec<Event>>,
    /// How many of the first events only lead to where crashes are of interest.
    from: usize,
    backend: Backend,
}

/// A moment of a run: after so many events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point(usize);

impl Point {
    /// How many events there were by then.
    pub fn events(self) -> usize {
        self.0
    }
}

impl Trace {
    pub(crate) fn new(base: Base, events: Arc<Vec<Event>>, from: usize, backend: Backend) -> Self {
        Self {
            base,
            events,
            from,
            backend,
        }
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many of the events change what is on a medium.
    pub fn stores(&self) -> usize {
        let changes = |e: &&Event| matches!(e.kind, Kind::Store { .. } | Kind::DeviceWrite { .. });
        self.events.iter().filter(changes).count()
    }

    /// A number that runs have in common that did the same to the same media in the same order, and
    /// others hardly ever. Threads count by the order of their first events.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (self.base.pmem.hash(), self.base.device.hash()).hash(&mut hasher);
        let mut threads = Vec::new();
        for event in &*self.events {
            let known = threads.iter().position(|t| *t == event.thread);
            let thread = known.unwrap_or(threads.len());
            if known.is_none() {
                threads.push(event.thread);
            }
            (thread, event.site, &event.kind).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The moments at which a crash may leave something else than just before, or has more
    /// acknowledged: all but those after a flush of lines, which by itself promises nothing.
    pub fn points(&self) -> impl Iterator<Item = Point> + use<> {
        let events = self.events.clone();
        (0..=events.len())
            .filter(move |at| {
                let last = at.checked_sub(1).map(|last| &events[last].kind);
                !matches!(last, Some(Kind::Flush { .. }))
            })
            .map(Point)
    }

    /// The places that order things: flushes, fences, drains and device flushes, each once, in the
    /// order of their first appearance.
    pub fn orderings(&self) -> Vec<Ordering> {
        let mut all: Vec<Ordering> = Vec::new();
        for ordering in self.events.iter().filter_map(ordering) {
            if !all.contains(&ordering) {
                all.push(ordering);
            }
        }
        all
    }

    /// The same run by a program that forgot one of the places that order things.
    pub fn without(&self, forgotten: Ordering) -> Self {
        let keep = |e: &&Event| ordering(e) != Some(forgotten);
        Self {
            base: self.base.clone(),
            events: Arc::new(self.events.iter().filter(keep).cloned().collect()),
            from: self.events[..self.from].iter().filter(keep).count(),
            backend: self.backend,
        }
    }

    /// The moments, where crashes are of interest, just before something that was in flight is settled,
    /// and what settles it.
    pub fn fences(&self) -> Vec<(Point, Ordering)> {
        let mut cursor = Cursor::new(&self.base, self.backend);
        let mut fences = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            let before = cursor.in_flight();
            cursor.advance(event);
            if let Some(ordering) = ordering(event)
                && number >= self.from
                && cursor.in_flight() < before
            {
                fences.push((Point(number), ordering));
            }
        }
        fences
    }

    /// The images of one moment. This goes through the run from its start; for all moments use
    /// [`Trace::explore`].
    pub fn images(&self, point: Point, budget: &Budget) -> Images {
        let mut cursor = Cursor::new(&self.base, self.backend);
        for event in &self.events[..point.0] {
            cursor.advance(event);
        }
        self.images_at(&cursor, budget)
    }

    /// What is not settled at a moment, in the order in which it was done. After an acknowledgement
    /// this is what was forgotten.
    pub fn in_flight(&self, point: Point) -> Vec<InFlight> {
        let mut cursor = Cursor::new(&self.base, self.backend);
        for event in &self.events[..point.0] {
            cursor.advance(event);
        }
        let mut numbers: Vec<usize> = granules(&cursor)
            .iter()
            .flat_map(|g| g.events().collect::<Vec<_>>())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
            .into_iter()
            .filter_map(|number| in_flight(&self.events[number]))
            .collect()
    }

    /// The images of all moments from [`Recorder::crash_from_here`] on, each content once for the
    /// same acknowledgements.
    ///
    /// [`Recorder::crash_from_here`]: crate::Recorder::crash_from_here
    pub fn explore(&self, budget: &Budget) -> Explore<'_> {
        let from = self.from;
        Explore {
            trace: self,
            budget: *budget,
            cursor: Cursor::new(&self.base, self.backend),
            points: Box::new(self.points().skip_while(move |point| point.0 < from)),
            images: None,
            seen: FxHashSet::default(),
            looked: BTreeSet::new(),
            acked: 0,
        }
    }

    fn images_at(&self, cursor: &Cursor, budget: &Budget) -> Images {
        let granules = granules(cursor);
        Images {
            backend: self.backend,
            events: self.events.clone(),
            point: cursor.at,
            pmem: cursor.pmem.base.clone(),
            device: cursor.device.base.clone(),
            acked: cursor.acked.clone(),
            selections: selections(&granules, budget, cursor.at),
            granules,
        }
    }
}

fn ordering(event: &Event) -> Option<Ordering> {
    let kind = match &event.kind {
        Kind::Flush { .. } => OrderingKind::Flush,
        Kind::Fence => OrderingKind::Fence,
        Kind::Drain | Kind::DrainSettled => OrderingKind::Drain,
        Kind::DeviceFlush => OrderingKind::DeviceFlush,
        Kind::Store { .. } | Kind::Settle(_) | Kind::DeviceWrite { .. } => return None,
        Kind::Mark(_) | Kind::Death => return None,
    };
    Some(Ordering {
        kind,
        site: event.site,
    })
}

fn granules(cursor: &Cursor) -> Vec<Granule> {
    let pmem = Granule::all(&cursor.pmem, Medium::Pmem);
    pmem.chain(Granule::all(&cursor.device, Medium::Device))
        .collect()
}

fn in_flight(event: &Event) -> Option<InFlight> {
    let (medium, off, bytes) = match &event.kind {
        Kind::Store { off, bytes, .. } => (Medium::Pmem, *off, bytes),
        Kind::DeviceWrite { off, bytes, .. } => (Medium::Device, *off, bytes),
        _ => return None,
    };
    Some(InFlight {
        medium,
        off,
        len: bytes.len() as u64,
        site: event.site,
    })
}

impl fmt::Display for Trace {
    /// Lists all events.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, event) in self.events.iter().enumerate() {
            writeln!(f, "{number:6} {event}")?;
        }
        Ok(())
    }
}

/// The images of one moment; equal ones may come more than once.
pub struct Images {
    backend: Backend,
    events: Arc<Vec<Event>>,
    point: usize,
    pmem: Pages,
    device: Pages,
    acked: Arc<Vec<u64>>,
    granules: Vec<Granule>,
    selections: Box<dyn Iterator<Item = Selection>>,
}

impl Images {
    fn image(&self, selection: Selection) -> CrashImage {
        let (mut pmem, mut device) = (self.pmem.clone(), self.device.clone());
        let (mut to_pmem, mut to_device) = (pmem.writer(), device.writer());
        let mut lost = Vec::new();
        let mut first = 1;
        for granule in &self.granules {
            let writer = match granule.medium {
                Medium::Pmem => &mut to_pmem,
                Medium::Device => &mut to_device,
            };
            granule.write(&granule.select(&selection, first), writer, |event| {
                lost.push(event)
            });
            if matches!(selection, Selection::Way(_)) {
                first *= granule.ways().unwrap_or(1);
            }
        }
        to_pmem.finish();
        to_device.finish();
        lost.sort_unstable();
        lost.dedup();
        CrashImage {
            backend: self.backend,
            pmem,
            device,
            acked: self.acked.clone(),
            events: self.events.clone(),
            point: self.point,
            selection,
            lost,
        }
    }
}

impl Iterator for Images {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        let selection = self.selections.next()?;
        Some(self.image(selection))
    }
}

impl Explore<'_> {
    /// Whether there was an image of this moment, or of one before it that only flushes of lines
    /// separate from it and that leaves the same, therefore.
    pub fn has_image(&self, point: Point) -> bool {
        let events = &self.trace.events;
        let mut at = point.0;
        while at > 0 && matches!(events[at - 1].kind, Kind::Flush { .. }) {
            at -= 1;
        }
        self.looked.contains(&at)
    }
}

/// The images of all moments of a [`Trace`].
pub struct Explore<'a> {
    trace: &'a Trace,
    budget: Budget,
    cursor: Cursor,
    points: Box<dyn Iterator<Item = Point>>,
    images: Option<Images>,
    /// The contents that came since the last mark.
    seen: FxHashSet<u64>,
    /// The moments of which there was at least one image, new or like one before.
    looked: BTreeSet<usize>,
    acked: usize,
}

impl Iterator for Explore<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        loop {
            let fresh = self.images.as_mut().and_then(|images| {
                images.find(|image| {
                    self.looked.insert(image.point());
                    self.seen.insert(image.fingerprint())
                })
            });
            if fresh.is_some() {
                return fresh;
            }
            self.images = None;
            let point = self.points.next()?;
            while self.cursor.at < point.0 {
                self.cursor.advance(&self.trace.events[self.cursor.at]);
            }
            if self.cursor.acked.len() != self.acked {
                self.acked = self.cursor.acked.len();
                self.seen.clear();
            }
            self.images = Some(self.trace.images_at(&self.cursor, &self.budget));
        }
    }
}
