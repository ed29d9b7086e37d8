//! What plots show. They know nothing of benchmarks, so that any figures can be drawn. Each plot
//! makes the table of the same figures that stands below it.

use super::scale::{Scale, quantile};

/// The least and the greatest of what a figure is the median of.
pub type Range = (f64, f64);

/// A plot of one kind or another.
#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// Bars.
    Bars(Bars),
    /// Lines.
    Curves(Curves),
    /// Two figures each, and the way between them.
    Spreads(Spreads),
}

/// Figures side by side, in groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What is shown.
    pub title: String,
    /// What it is counted in.
    pub unit: String,
    /// What a reader has to know besides.
    pub note: String,
    /// Linear bars begin at zero, logarithmic ones at 1.
    pub scale: Scale,
    /// A value with a line of its own.
    pub mark: Option<f64>,
    /// Where the figures `theirs` come from, if there are any: a paper, say.
    pub theirs: String,
    /// The bars.
    pub groups: Vec<Group>,
}

/// Bars under one heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The heading; none if empty.
    pub label: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// A bar, and one to compare it with.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Number of its colour.
    pub series: usize,
    /// How long it is, if it is known.
    pub ours: Option<f64>,
    /// Ends of its whiskers.
    pub range: Option<Range>,
    /// The figure to compare it with.
    pub theirs: Option<f64>,
}

/// Lines over an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// What is shown.
    pub title: String,
    /// What a reader has to know besides.
    pub note: String,
    /// What the lines run over.
    pub x: Quantity,
    /// What goes up and down.
    pub y: Quantity,
    /// The lines.
    pub lines: Vec<Line>,
}

/// What an axis shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// Its name with its unit.
    pub name: String,
    /// How it is divided.
    pub scale: Scale,
    /// Whether exactly the values that are there are written beside it.
    pub exact: bool,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is of.
    pub label: String,
    /// Number of its colour, marker and dashes.
    pub series: usize,
    /// Its points, from the left to the right.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Along the axis.
    pub x: f64,
    /// The figure.
    pub y: f64,
    /// Ends of its whiskers.
    pub range: Option<Range>,
}

/// Pairs of figures, in groups, on a logarithmic axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Spreads {
    /// What is shown.
    pub title: String,
    /// What it is counted in.
    pub unit: String,
    /// What a reader has to know besides.
    pub note: String,
    /// What the first and the second figure are called.
    pub names: [String; 2],
    /// Headings with the rows below them.
    pub groups: Vec<(String, Vec<Spread>)>,
}

/// Two figures of the same thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// What they are of.
    pub label: String,
    /// Number of its colour.
    pub series: usize,
    /// The figures, the second not less than the first.
    pub figures: [f64; 2],
}

/// The figures of a plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Columns that say what a row is of; figures are in the others.
    pub labels: usize,
    /// Headings of all columns.
    pub head: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

/// What stands where there is no figure.
const NONE: &str = "–";

/// A figure with three digits that count, or four before the point; none is a dash.
pub fn figure(n: impl Into<Option<f64>>) -> String {
    let Some(n) = n.into().filter(|n| n.is_finite()) else {
        return NONE.into();
    };
    // Written this way it is rounded, and the exponent is that of the rounded number.
    let text = format!("{n:.2e}");
    let exponent = text.split_once('e').and_then(|(_, e)| e.parse().ok());
    let exponent: i32 = exponent.unwrap_or(0);
    let digits = |exponent: i32| (2 - exponent).max(0) as usize;
    match exponent {
        _ if n == 0.0 => "0".into(),
        ..-4 | 12.. => text,
        ..4 => format!("{n:.*}", digits(exponent)),
        4..6 => format!("{:.*}k", digits(exponent - 3), n / 1e3),
        6..9 => format!("{:.*}M", digits(exponent - 6), n / 1e6),
        9.. => format!("{:.*}G", digits(exponent - 9), n / 1e9),
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|t| (*t).to_owned()).collect()
}

impl Plot {
    /// What is shown.
    pub fn title(&self) -> &str {
        match self {
            Self::Bars(p) => &p.title,
            Self::Curves(p) => &p.title,
            Self::Spreads(p) => &p.title,
        }
    }

    /// What a reader has to know besides.
    pub fn note(&self) -> &str {
        match self {
            Self::Bars(p) => &p.note,
            Self::Curves(p) => &p.note,
            Self::Spreads(p) => &p.note,
        }
    }

    /// Numbers series anew by their labels; those that `number` does not know stay.
    pub fn look_by(&mut self, number: impl Fn(&str) -> Option<usize>) {
        let look = |label: &str, series: &mut usize| *series = number(label).unwrap_or(*series);
        match self {
            Self::Bars(p) => {
                let bars = p.groups.iter_mut().flat_map(|g| &mut g.bars);
                bars.for_each(|b| look(&b.label, &mut b.series));
            }
            Self::Curves(p) => p
                .lines
                .iter_mut()
                .for_each(|l| look(&l.label, &mut l.series)),
            Self::Spreads(p) => {
                let spreads = p.groups.iter_mut().flat_map(|g| &mut g.1);
                spreads.for_each(|s| look(&s.label, &mut s.series));
            }
        }
    }

    /// The figures in it.
    pub fn table(&self) -> Table {
        match self {
            Self::Bars(p) => p.table(),
            Self::Curves(p) => p.table(),
            Self::Spreads(p) => p.table(),
        }
    }
}

impl Bars {
    /// All bars.
    pub fn all(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|g| &g.bars)
    }

    /// Whether any bar has one to compare it with.
    pub fn compares(&self) -> bool {
        self.all().any(|b| b.theirs.is_some())
    }

    fn table(&self) -> Table {
        let grouped = self.groups.iter().any(|g| !g.label.is_empty());
        let ranges = self.all().any(|b| b.range.is_some());
        let compares = self.compares();
        let mut head = owned(if grouped { &["", ""] } else { &[""] });
        let labels = head.len();
        head.push(self.unit.clone());
        if ranges {
            head.extend(owned(&["min", "max"]));
        }
        if compares {
            head.push(self.theirs.clone());
        }
        let mut rows = Vec::new();
        for group in &self.groups {
            for bar in &group.bars {
                let mut row = Vec::new();
                if grouped {
                    row.push(group.label.clone());
                }
                row.extend([bar.label.clone(), figure(bar.ours)]);
                if ranges {
                    row.extend([
                        figure(bar.range.map(|r| r.0)),
                        figure(bar.range.map(|r| r.1)),
                    ]);
                }
                if compares {
                    row.push(figure(bar.theirs));
                }
                rows.push(row);
            }
        }
        Table { labels, head, rows }
    }
}

impl Quantity {
    /// One whose ticks are round numbers.
    pub fn new(name: &str, scale: Scale) -> Self {
        Self {
            name: name.into(),
            scale,
            exact: false,
        }
    }

    /// A value of it, as a table writes it.
    pub fn text(&self, value: f64) -> String {
        match self.scale {
            Scale::Nines => quantile(value),
            _ if value.fract() == 0.0 && value.abs() < 1e6 => format!("{value}"),
            _ => figure(value),
        }
    }
}

/// Places along an axis up to which each has a column, and each line a row.
const FEW: usize = 8;

impl Curves {
    /// All points.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flat_map(|l| &l.points)
    }

    /// Places along the axis where there is a point, in order, each once.
    pub fn places(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self
            .points()
            .map(|p| p.x)
            .filter(|x| x.is_finite())
            .collect();
        all.sort_unstable_by(f64::total_cmp);
        all.dedup();
        all
    }

    fn table(&self) -> Table {
        let places = self.places();
        if self.points().any(|p| p.range.is_some()) {
            return self.long_table();
        }
        let at = |line: &Line, x: f64| figure(line.points.iter().find(|p| p.x == x).map(|p| p.y));
        let names = |first: String| -> Vec<String> {
            let all = self.lines.iter().map(|l| l.label.clone());
            std::iter::once(first).chain(all).collect()
        };
        let (head, rows) = if places.len() <= FEW {
            let mut head = vec![String::new()];
            head.extend(places.iter().map(|x| self.x.text(*x)));
            let row = |l: &Line| {
                let figures = places.iter().map(|x| at(l, *x));
                std::iter::once(l.label.clone()).chain(figures).collect()
            };
            (head, self.lines.iter().map(row).collect())
        } else {
            let row = |x: &f64| {
                let figures = self.lines.iter().map(|l| at(l, *x));
                std::iter::once(self.x.text(*x)).chain(figures).collect()
            };
            let rows = places.iter().map(row).collect();
            (names(self.x.name.clone()), rows)
        };
        Table {
            labels: 1,
            head,
            rows,
        }
    }

    fn long_table(&self) -> Table {
        let row = |line: &Line, p: &Point| {
            let (min, max) = (p.range.map(|r| r.0), p.range.map(|r| r.1));
            vec![
                line.label.clone(),
                self.x.text(p.x),
                figure(Some(p.y)),
                figure(min),
                figure(max),
            ]
        };
        let rows = self.lines.iter();
        Table {
            labels: 2,
            head: owned(&["", &self.x.name, &self.y.name, "min", "max"]),
            rows: rows
                .flat_map(|l| l.points.iter().map(move |p| row(l, p)))
                .collect(),
        }
    }
}

impl Spreads {
    fn table(&self) -> Table {
        let mut rows = Vec::new();
        for (label, spreads) in &self.groups {
            for s in spreads {
                let figures = s.figures.map(|f| figure(Some(f)));
                let mut row = vec![label.clone(), s.label.clone()];
                row.extend(figures);
                rows.push(row);
            }
        }
        let [first, second] = &self.names;
        Table {
            labels: 2,
            head: owned(&["", "", first, second]),
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(table: &Table) -> Vec<String> {
        let rows = std::iter::once(&table.head).chain(&table.rows);
        rows.map(|r| r.join("|")).collect()
    }

    fn bar(label: &str, ours: Option<f64>, range: Option<Range>, theirs: Option<f64>) -> Bar {
        Bar {
            label: label.into(),
            series: 0,
            ours,
            range,
            theirs,
        }
    }

    fn bars(label: &str, bars: Vec<Bar>) -> Bars {
        Bars {
            title: "t".into(),
            unit: "ops/s".into(),
            note: String::new(),
            scale: Scale::Linear,
            mark: None,
            theirs: "paper".into(),
            groups: vec![Group {
                label: label.into(),
                bars,
            }],
        }
    }

    #[test]
    fn a_table_has_the_columns_that_there_are_figures_for() {
        let plain = bars("", vec![bar("a", Some(1.5), None, None)]);
        assert_eq!(cells(&plain.table()), ["|ops/s", "a|1.50"]);
        let all = bars(
            "4 threads",
            vec![
                bar("a", Some(20_000.0), Some((1.0, 2.0)), Some(3.0)),
                bar("b", None, None, None),
            ],
        );
        assert_eq!(
            cells(&all.table()),
            [
                "||ops/s|min|max|paper",
                "4 threads|a|20.0k|1.00|2.00|3.00",
                "4 threads|b|–|–|–|–"
            ]
        );
    }

    fn curves(points: &[&[Point]], scale: Scale) -> Curves {
        let line = |(n, points): (usize, &&[Point])| Line {
            label: format!("l{n}"),
            series: n,
            points: points.to_vec(),
        };
        Curves {
            title: "t".into(),
            note: String::new(),
            x: Quantity::new("x", scale),
            y: Quantity::new("y", Scale::Linear),
            lines: points.iter().enumerate().map(line).collect(),
        }
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, range: None }
    }

    #[test]
    fn figures_have_three_digits() {
        for (n, text) in [
            (0.0, "0"),
            (0.000_012_34, "1.23e-5"),
            (0.042_34, "0.0423"),
            (0.9996, "1.00"),
            (9.999, "10.0"),
            (31.41, "31.4"),
            (4981.2, "4981"),
            (9_999.9, "10.0k"),
            (133_412.0, "133k"),
            (999_999.0, "1.00M"),
            (12_345_678.0, "12.3M"),
            (2.5e9, "2.50G"),
            (1e15, "1.00e15"),
            (-31.41, "-31.4"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(figure(n), text, "{n}");
        }
        assert_eq!(figure(None), "–");
    }

    #[test]
    fn few_places_are_columns_and_many_are_rows() {
        let few = curves(
            &[&[point(0.5, 1.0), point(0.99, 2.0)], &[point(1.0, 3.0)]],
            Scale::Nines,
        );
        assert_eq!(
            cells(&few.table()),
            ["|p50|p99|max", "l0|1.00|2.00|–", "l1|–|–|3.00"]
        );
        let many: Vec<Point> = (0..9).map(|n| point(f64::from(n), 5.0)).collect();
        let many = cells(&curves(&[&many, &[]], Scale::Linear).table());
        assert_eq!(
            (many.len(), &*many[0], &*many[9]),
            (10, "x|l0|l1", "8|5.00|–")
        );
    }

    #[test]
    fn ranges_have_columns() {
        let range = Some((1.0, 3.0));
        let p = Point {
            x: 4.0,
            y: 2.0,
            range,
        };
        assert_eq!(
            cells(&curves(&[&[p]], Scale::Log).table()),
            ["|x|y|min|max", "l0|4|2.00|1.00|3.00"]
        );
    }
}
