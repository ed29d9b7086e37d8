//! What the plots are drawn with: places in a picture, text that fits, and what tells lines apart.

use maud::{Markup, PreEscaped, Render, html};
use std::fmt::Write;

/// Width of a plot. On a narrow screen that is its width in pixels, so that text keeps its size.
pub const WIDTH: f64 = 400.0;
/// Width of a character on average, at the size that the style sheet gives to text.
const CHARACTER: f64 = 7.7;
/// The same beyond Latin, Greek and Cyrillic.
const WIDE: f64 = 13.0;

/// Colours of the style sheet.
pub const COLOURS: usize = 8;
/// What is a line of its own has dashes of its own. As many as there are colours less three, so that
/// lines of the same colour have different ones.
const DASHES: [&str; 5] = ["", "7 3", "2 3", "9 3 2 3", "4 2"];
/// Shapes of points.
const SHAPES: usize = 7;

/// A place in a picture. A tenth of a pixel is enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Px(pub f64);

impl Render for Px {
    fn render_to(&self, out: &mut String) {
        let text = format!("{:.1}", self.0);
        out.push_str(match text.trim_end_matches('0').trim_end_matches('.') {
            "-0" => "0",
            text => text,
        });
    }
}

/// The class that gives a series its colour.
pub fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// The dashes of a series; none for a line in one piece.
pub fn dashes(series: usize) -> Option<&'static str> {
    Some(DASHES[series % DASHES.len()]).filter(|d| !d.is_empty())
}

/// About how wide a text is.
pub fn width(text: &str) -> f64 {
    let wide = |c: char| {
        if u32::from(c) < 0x600 {
            CHARACTER
        } else {
            WIDE
        }
    };
    text.chars().map(wide).sum()
}

/// As much of a text as has room.
pub fn fitting(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.into();
    }
    let mut out = String::new();
    let mut used = width("…");
    for c in text.chars() {
        used += width(c.encode_utf8(&mut [0; 4]));
        if used > room {
            break;
        }
        out.push(c);
    }
    out + "…"
}

/// The point of a series at a place.
pub fn point(series: usize, x: f64, y: f64) -> Markup {
    let shape: &[(f64, f64)] = match series % SHAPES {
        0 => return html! { circle cx=(Px(x)) cy=(Px(y)) r="3.5" {} },
        1 => &[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)],
        2 => &[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
        3 => &[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)],
        4 => &[(0.0, 4.4), (4.2, -3.2), (-4.2, -3.2)],
        5 => &[
            (-1.4, -4.4),
            (1.4, -4.4),
            (1.4, -1.4),
            (4.4, -1.4),
            (4.4, 1.4),
            (1.4, 1.4),
            (1.4, 4.4),
            (-1.4, 4.4),
            (-1.4, 1.4),
            (-4.4, 1.4),
            (-4.4, -1.4),
            (-1.4, -1.4),
        ],
        _ => &[(-4.4, -4.4), (4.4, 4.4), (4.4, -4.4), (-4.4, 4.4)],
    };
    let path = path(shape.iter().map(|(dx, dy)| (x + dx, y + dy)));
    html! { path d={ (path) "Z" } {} }
}

/// Straight lines from place to place.
pub fn path(places: impl IntoIterator<Item = (f64, f64)>) -> PreEscaped<String> {
    let mut out = String::new();
    for (n, (x, y)) in places.into_iter().enumerate() {
        let _ = write!(out, "{}", if n == 0 { 'M' } else { 'L' });
        Px(x).render_to(&mut out);
        out.push(' ');
        Px(y).render_to(&mut out);
    }
    PreEscaped(out)
}

/// A line from place to place.
pub fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! {
        line class=(class) x1=(Px(from.0)) y1=(Px(from.1)) x2=(Px(to.0)) y2=(Px(to.1)) {}
    }
}

/// Whiskers with ends, lengthwise.
pub fn whiskers(x: f64, from: f64, to: f64) -> Markup {
    let path = format!(
        "{}{}{}",
        path([(x, from), (x, to)]).0,
        path([(x - 2.5, from), (x + 2.5, from)]).0,
        path([(x - 2.5, to), (x + 2.5, to)]).0
    );
    html! { path class="whiskers" d=(path) {} }
}

/// Whiskers with ends, across.
pub fn whiskers_across(y: f64, from: f64, to: f64) -> Markup {
    let path = format!(
        "{}{}{}",
        path([(from, y), (to, y)]).0,
        path([(from, y - 3.0), (from, y + 3.0)]).0,
        path([(to, y - 3.0), (to, y + 3.0)]).0
    );
    html! { path class="whiskers" d=(path) {} }
}

/// A picture of this size that readers without eyes are told of by `title`.
pub fn picture(title: &str, (wide, height): (f64, f64), content: &Markup) -> Markup {
    html! {
        svg viewBox={ "0 0 " (Px(wide)) " " (Px(height)) } role="img" aria-label=(title) {
            (content)
        }
    }
}

/// What a series looks like in a plot of lines.
pub fn swatch(series: usize) -> Markup {
    html! {
        svg.swatch viewBox="0 0 34 12" aria-hidden="true" {
            g class=(colour(series)) {
                path.line stroke-dasharray=[dashes(series)] d="M1 6L33 6" {}
                g.point { (point(series, 17.0, 6.0)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_one_digit() {
        let text = |n| Px(n).render().0;
        assert_eq!(text(1.0), "1");
        assert_eq!(text(100.0), "100");
        assert_eq!(text(12.345), "12.3");
        assert_eq!((&*text(-0.01), &*text(-7.26)), ("0", "-7.3"));
        let path = path([(0.0, 1.0), (2.5, 30.0)]);
        assert_eq!(path.0, "M0 1L2.5 30");
    }

    #[test]
    fn text_is_cut_where_there_is_no_room() {
        assert_eq!(fitting("dev2-pinned", 200.0), "dev2-pinned");
        let cut = fitting("a label much too long", 60.0);
        assert!(cut.ends_with('…') && width(&cut) <= 60.0, "{cut}");
        assert_eq!(fitting("文件系统文件系统", 65.0), "文件系统…");
    }

    #[test]
    fn no_two_series_look_the_same() {
        let look = |n| (colour(n), dashes(n), point(n, 0.0, 0.0).0);
        let all: Vec<_> = (0..100).map(look).collect();
        for (n, a) in all.iter().enumerate() {
            assert!(!all[..n].contains(a), "{n}");
        }
    }
}
