//! Bars, and pairs of figures, one below the other: each has its name at its left.

use super::plot::{Bar, Bars, Range, Spread, Spreads, figure};
use super::scale::{Axis, Scale};
use super::svg::{Px, WIDTH, colour, fitting, line, picture, point, whiskers_across, width};
use maud::{Markup, html};

/// Height of a bar with what is between it and the next.
const ROW: f64 = 21.0;
/// Height of a bar.
const THICK: f64 = 12.0;
/// Height of the bar to compare it with.
const THIN: f64 = 9.0;
/// Height of a heading.
const HEADING: f64 = 23.0;
/// The widest that names get in a picture as wide as others.
const NAMES: f64 = 140.0;
/// What a picture is wider by where names are longer, and what they get of it.
const MORE: f64 = WIDTH;
/// Room for figures, in a column at the right: behind whiskers they would seem to be their ends.
const FIGURE: f64 = 54.0;
/// Room for ticks below.
const FOOT: f64 = 22.0;

/// Where names end, bars begin, the axis ends and the picture ends.
struct Frame {
    names: f64,
    left: f64,
    right: f64,
    wide: f64,
    axis: Axis,
}

/// Whether the names of bars need a picture of the whole width of the page.
pub fn are_wide(plot: &Bars) -> bool {
    plot.all().any(|b| width(&b.label) > NAMES)
}

impl Frame {
    fn new<'a>(labels: impl Iterator<Item = &'a str>, axis: Axis) -> Self {
        let names = labels.map(width).fold(0.0, f64::max);
        let (names, wide) = if names > NAMES {
            (names.min(NAMES + MORE), WIDTH + MORE)
        } else {
            (names, WIDTH)
        };
        Self {
            names,
            left: names + 8.0,
            right: wide - FIGURE,
            wide,
            axis,
        }
    }

    fn x(&self, value: f64) -> Option<f64> {
        let place = self.axis.place(value)?;
        Some(self.left + place * (self.right - self.left))
    }

    /// The axis below, with a line upwards at each tick that has room for its text.
    fn ticks(&self, height: f64) -> Markup {
        let mut free = f64::NEG_INFINITY;
        let shown = self.axis.ticks.iter().filter_map(|t| {
            let x = self.x(t.value)?;
            let half = width(&t.text) / 2.0;
            let has_room = x - half > free;
            if has_room {
                free = x + half + 4.0;
            }
            has_room.then_some((x, t))
        });
        html! {
            @for (x, t) in shown {
                (line("rule", (x, 0.0), (x, height)))
                text.dim.middle x=(Px(x)) y=(Px(height + 15.0)) { (t.text) }
            }
        }
    }

    fn name(&self, label: &str, y: f64) -> Markup {
        html! { text.end x=(Px(self.names)) y=(Px(y + 4.0)) { (fitting(label, self.names)) } }
    }
}

/// The heading of rows that begin at `top`.
fn heading(label: &str, frame: &Frame, top: f64) -> Markup {
    html! {
        @if !label.is_empty() {
            text.group x="0" y=(Px(top - 6.0)) { (fitting(label, frame.wide)) }
        }
    }
}

/// Draws bars.
pub fn bars(plot: &Bars) -> Markup {
    let figures = |b: &Bar| {
        let (min, max) = b.range.unzip();
        [b.ours, b.theirs, min, max].into_iter().flatten()
    };
    let values: Vec<f64> = plot.all().flat_map(figures).chain(plot.mark).collect();
    let axis = match plot.scale {
        // Bars of ratios begin at 1.
        Scale::Log => Axis::log(values.into_iter().chain([1.0])),
        _ => Axis::linear(values),
    };
    let frame = Frame::new(plot.all().map(|b| &*b.label), axis);
    let row = if plot.compares() {
        ROW + THIN + 6.0
    } else {
        ROW
    };
    let sizes = plot.groups.iter().map(|g| (&*g.label, g.bars.len()));
    let (tops, height) = stacked(sizes, row);
    let zero = if plot.scale == Scale::Log { 1.0 } else { 0.0 };
    let content = html! {
        (frame.ticks(height))
        @for (group, top) in plot.groups.iter().zip(tops) {
            (heading(&group.label, &frame, top))
            @for (n, bar) in group.bars.iter().enumerate() {
                (one(&frame, bar, top + n as f64 * row, zero))
            }
        }
        @if let Some(x) = frame.x(zero) { (line("axis", (x, 0.0), (x, height))) }
        @if let Some(x) = plot.mark.and_then(|m| frame.x(m)) {
            (line("mark", (x, 0.0), (x, height)))
        }
    };
    picture(&plot.title, (frame.wide, height + FOOT), &content)
}

/// Where the first row of each group begins, below its heading, and where the last one ends.
fn stacked<'a>(groups: impl Iterator<Item = (&'a str, usize)>, row: f64) -> (Vec<f64>, f64) {
    let mut y = 0.0;
    let tops = groups
        .map(|(label, rows)| {
            let top = y + if label.is_empty() { 0.0 } else { HEADING };
            y = top + rows as f64 * row;
            top
        })
        .collect();
    (tops, y)
}

fn one(frame: &Frame, bar: &Bar, top: f64, zero: f64) -> Markup {
    let middle = top + ROW / 2.0;
    let base = frame.x(zero).unwrap_or(frame.left);
    let end = bar.ours.and_then(|v| frame.x(v));
    let theirs = bar.theirs.and_then(|v| frame.x(v));
    // A logarithmic axis has no zero: whiskers to it go as far as they can.
    let ends = bar.range;
    let ends = ends.and_then(|(a, b)| Some((frame.x(a).unwrap_or(frame.left), frame.x(b)?)));
    html! {
        g class=(colour(bar.series)) {
            title { (told(&bar.label, bar.ours, bar.range)) }
            (frame.name(&bar.label, middle))
            @if let Some(x) = end {
                rect.bar x=(Px(x.min(base))) y=(Px(middle - THICK / 2.0))
                    width=(Px((x - base).abs())) height=(Px(THICK)) {}
            }
            @if let Some((a, b)) = ends { (whiskers_across(middle, a, b)) }
            text.end x=(Px(frame.wide)) y=(Px(middle + 4.0)) { (figure(bar.ours)) }
            @if let Some(x) = theirs {
                @let y = middle + THICK / 2.0 + 2.0;
                rect.theirs x=(Px(x.min(base))) y=(Px(y)) width=(Px((x - base).abs()))
                    height=(Px(THIN)) {}
                text.dim.end x=(Px(frame.wide)) y=(Px(y + THIN + 1.0)) { (figure(bar.theirs)) }
            }
        }
    }
}

/// What a pointer over a figure is told.
pub fn told(label: &str, found: Option<f64>, range: Option<Range>) -> String {
    let found = figure(found);
    match range {
        Some((min, max)) => format!("{label}: {found} ({}..{})", figure(min), figure(max)),
        None => format!("{label}: {found}"),
    }
}

/// Draws pairs of figures.
pub fn spreads(plot: &Spreads) -> Markup {
    let rows = || plot.groups.iter().flat_map(|g| &g.1);
    let axis = Axis::log(rows().flat_map(|s| s.figures));
    let frame = Frame::new(rows().map(|s| &*s.label), axis);
    let sizes = plot.groups.iter().map(|g| (&*g.0, g.1.len()));
    let (tops, height) = stacked(sizes, ROW);
    let content = html! {
        (frame.ticks(height))
        @for ((label, spreads), top) in plot.groups.iter().zip(tops) {
            (heading(label, &frame, top))
            @for (n, s) in spreads.iter().enumerate() {
                (pair(&frame, s, top + (n as f64 + 0.5) * ROW))
            }
        }
    };
    picture(&plot.title, (frame.wide, height + FOOT), &content)
}

fn pair(frame: &Frame, s: &Spread, y: f64) -> Markup {
    let [first, second] = s.figures.map(figure);
    html! {
        g class=(colour(s.series)) {
            title { (s.label) ": " (first) ", " (second) }
            (frame.name(&s.label, y))
            @if let [Some(from), Some(to)] = s.figures.map(|f| frame.x(f)) {
                (line("line", (from, y), (to, y)))
                g.point { (point(0, from, y)) }
                g.hollow { (point(1, to, y)) }
                text x=(Px(to + 8.0)) y=(Px(y + 4.0)) { (second) }
            }
        }
    }
}
