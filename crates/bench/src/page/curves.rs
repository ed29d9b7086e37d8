//! Lines over an axis.

use super::bars::told;
use super::plot::{Curves, Line, Point, Quantity};
use super::scale::{Axis, Scale, logarithmic};
use super::svg::{Px, WIDTH, colour, dashes, line, path, picture, point, swatch, whiskers, width};
use maud::{Markup, html};

/// Height of a plot.
const HEIGHT: f64 = 250.0;
/// Its upper edge; above is the name of the axis.
const TOP: f64 = 24.0;
/// Its lower edge; below are ticks and the other axis' name.
const BOTTOM: f64 = HEIGHT - 38.0;
/// The least room for ticks at the left, so that most plots begin at the same place.
const LEAST: f64 = 36.0;
/// Between ticks and what they belong to.
const GAP: f64 = 5.0;
/// Half a tick's text sticks out.
const RIGHT: f64 = WIDTH - 14.0;
/// Room for markers within the edges.
const INNER: f64 = 10.0;
/// How far points of different lines at the same place stand apart, all together.
const APART: f64 = 14.0;

struct Frame {
    x: Axis,
    y: Axis,
    /// Where the axis begins, right of its ticks.
    left: f64,
}

fn axis(of: &Quantity, values: &[f64]) -> Axis {
    match of.scale {
        Scale::Nines => Axis::nines(values),
        Scale::Log if of.exact => Axis::log_of(values),
        Scale::Log => Axis::log(values.iter().copied()),
        Scale::Linear => Axis::linear(values.iter().copied()),
    }
}

impl Frame {
    fn new(plot: &Curves) -> Self {
        let ys = plot.points().flat_map(|p| {
            let (min, max) = p.range.unzip();
            [Some(p.y), min, max].into_iter().flatten()
        });
        let y = axis(&plot.y, &ys.collect::<Vec<_>>());
        let ticks = y.ticks.iter().map(|t| width(&t.text));
        Self {
            left: ticks.fold(LEAST, f64::max) + GAP,
            x: axis(&plot.x, &plot.places()),
            y,
        }
    }

    fn x(&self, value: f64) -> Option<f64> {
        // A linear axis shows its zero; others have room for markers at both ends.
        let left = match self.x.scale() {
            Scale::Linear => self.left,
            _ => self.left + INNER,
        };
        Some(left + self.x.place(value)? * (RIGHT - INNER - left))
    }

    fn y(&self, value: f64) -> Option<f64> {
        Some(BOTTOM - self.y.place(value)? * (BOTTOM - TOP))
    }

    fn draw(&self, plot: &Curves) -> Markup {
        // The last tick is never left out for want of room: it says how far it goes.
        let mut free = f64::INFINITY;
        let mut shown = Vec::new();
        for t in self.x.ticks.iter().rev() {
            let half = width(&t.text) / 2.0;
            if let Some(x) = self.x(t.value)
                && x + half < free
            {
                free = x - half - 4.0;
                shown.push((x, t));
            }
        }
        html! {
            @for t in &self.y.ticks {
                @if let Some(y) = self.y(t.value) {
                    (line("rule", (self.left, y), (RIGHT, y)))
                    text.dim.end x=(Px(self.left - GAP)) y=(Px(y + 4.0)) { (t.text) }
                }
            }
            @for (x, t) in shown {
                (line("axis", (x, BOTTOM), (x, BOTTOM + 4.0)))
                text.dim.middle x=(Px(x)) y=(Px(BOTTOM + 16.0)) { (t.text) }
            }
            (line("axis", (self.left, BOTTOM), (RIGHT, BOTTOM)))
            text.dim x="0" y="12" { (plot.y.name) (logarithmic(plot.y.scale)) }
            text.dim.end x=(Px(RIGHT)) y=(Px(HEIGHT - 5.0)) { (plot.x.name) (logarithmic(plot.x.scale)) }
        }
    }
}

/// Draws lines.
pub fn curves(plot: &Curves) -> Markup {
    let frame = Frame::new(plot);
    let apart = if plot.points().any(|p| p.range.is_some()) {
        (APART / plot.lines.len() as f64).min(4.0)
    } else {
        0.0
    };
    let middle = (plot.lines.len() as f64 - 1.0) / 2.0;
    let content = html! {
        (frame.draw(plot))
        @for (n, l) in plot.lines.iter().enumerate() {
            (one(plot, &frame, l, (n as f64 - middle) * apart))
        }
    };
    picture(&plot.title, (WIDTH, HEIGHT), &content)
}

fn one(plot: &Curves, frame: &Frame, line: &Line, aside: f64) -> Markup {
    let place = |p: &Point| Some((frame.x(p.x)? + aside, frame.y(p.y)?));
    // The greatest of all is no point of the curve: how far out it stands depends on the count.
    let curve = |p: &&Point| plot.x.scale != Scale::Nines || p.x < 1.0;
    let places: Vec<_> = line.points.iter().filter(curve).filter_map(place).collect();
    // Points of a dense line would hide it.
    let dense = line.points.len() > 40;
    html! {
        g class={ "curve " (colour(line.series)) } {
            @if places.len() > 1 {
                path.line stroke-dasharray=[dashes(line.series)] d=(path(places)) {}
            }
            @for (n, p) in line.points.iter().enumerate() {
                @if let (Some((x, y)), true) = (place(p), !dense || n % 16 == 0) {
                    g.point {
                        title { (told(&format!("{}, {}", line.label, plot.x.text(p.x)), Some(p.y), p.range)) }
                        @if let Some((Some(a), Some(b))) = p.range.map(|(a, b)| (frame.y(a), frame.y(b))) {
                            (whiskers(x, a, b))
                        }
                        (point(line.series, x, y))
                    }
                }
            }
        }
    }
}

/// What the lines of a plot look like.
pub fn legend(plot: &Curves) -> Markup {
    html! {
        ul.legend {
            @for l in &plot.lines {
                li { (swatch(l.series)) (l.label) }
            }
        }
    }
}
