//! The screen of `quayfs top`: made for 80 columns and 24 lines, and for more.

use super::rates::{Rates, number, time};
use crate::cli::units::span;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

/// What is on it.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Where it is mounted, as people see it.
    pub mountpoint: String,
    /// What is mounted.
    pub volume: String,
    /// The way that requests come.
    pub transport: String,
    /// How long the daemon has served, in seconds.
    pub uptime: u64,
    /// Why there are no new numbers.
    pub trouble: Option<String>,
    /// What is known in place of numbers that there are not: a name, and what there is to say.
    pub facts: Vec<(&'static str, String)>,
    /// The numbers; none before there are two looks.
    pub rates: Option<Rates>,
    /// Names of processes, and their requests in a second.
    pub processes: Vec<(String, f64)>,
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let rows = [
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(header(view), head);
    let columns = [Constraint::Length(42), Constraint::Min(0)];
    let [left, right] = Layout::horizontal(columns).areas(body);
    match &view.rates {
        Some(rates) => {
            frame.render_widget(kinds(rates), left);
            sidebar(frame, right, rates, &view.processes);
        }
        None if !view.facts.is_empty() => frame.render_widget(instead(view), body),
        None => frame.render_widget(Paragraph::new("counting..."), left),
    }
    let keys = Line::from("q quit    numbers of the last second; `quayfs stats` has all of them");
    frame.render_widget(Paragraph::new(keys), foot);
}

/// What is known without the daemon.
fn instead(view: &View) -> Paragraph<'_> {
    let line = |(name, said): &(&str, String)| Line::from(format!("{name:<11}{said}"));
    let mut lines = vec![Line::from(
        "no numbers, but what is known without the daemon:",
    )];
    lines.extend(view.facts.iter().map(line));
    Paragraph::new(lines)
}

fn header(view: &View) -> Paragraph<'_> {
    let up = span(view.uptime);
    let place = format!("{}  {}", view.mountpoint, view.volume);
    let second = match &view.trouble {
        Some(why) => Line::styled(why.as_str(), BAD),
        None => Line::from(format!("by {}, up {up}", view.transport)),
    };
    Paragraph::new(vec![Line::styled(place, BOLD), second])
}

fn kinds(rates: &Rates) -> Table<'_> {
    let rows = rates.kinds.iter().map(|k| {
        let most = k.most.map_or_else(|| "> 17 s".into(), time);
        let cells = [
            k.name.clone(),
            format!("{:>6}", number(k.rate)),
            format!("{:>8}", time(k.mean)),
            format!("{most:>8}"),
        ];
        Row::new(cells)
    });
    let widths = [
        Constraint::Length(14),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    let titles = ["REQUEST", "   /S", "    MEAN", "   99% <"];
    Table::new(rows, widths).header(Row::new(titles).style(HEAD))
}

fn sidebar(frame: &mut Frame<'_>, area: Rect, rates: &Rates, processes: &[(String, f64)]) {
    let facts = rates.facts.iter();
    let mut lines: Vec<Line<'_>> = facts
        .map(|(name, said)| Line::from(format!("{name:<11}{said}")))
        .collect();
    // What is left of the screen; on a small one, processes are named rather than the last facts.
    let room = usize::from(area.height).saturating_sub(lines.len() + 1);
    let named = processes.len().min(room.max(3));
    lines.truncate(usize::from(area.height).saturating_sub(named + 1));
    lines.push(Line::styled("PROCESS                      /S", HEAD));
    for (name, rate) in &processes[..named] {
        let name: String = name.chars().take(24).collect();
        lines.push(Line::from(format!("{name:<25}{:>6}", number(*rate))));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use super::super::rates::rates;
    use super::super::rates::tests::looks;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let (old, new) = looks();
        View {
            mountpoint: "/mnt/q".into(),
            volume: "/srv/vol".into(),
            transport: "dev".into(),
            uptime: 61,
            trouble: None,
            facts: Vec::new(),
            rates: Some(rates(&old, &new)),
            processes: (1..9).map(|n| (format!("tar {n}"), f64::from(n))).collect(),
        }
    }

    /// The lines of a screen of this size.
    fn drawn(view: &View, (width, height): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height)
            .map(|y| line(y).trim_end().to_string())
            .collect()
    }

    #[test]
    fn all_is_on_a_screen_of_24_lines() {
        let lines = drawn(&view(), (80, 24));
        assert_eq!(lines[0], "/mnt/q  /srv/vol");
        assert_eq!(lines[1], "by dev, up 1 min 1 s");
        let left = |y: usize| lines[y].chars().take(42).collect::<String>();
        let right = |y: usize| lines[y].chars().skip(42).collect::<String>();
        assert_eq!(
            left(2).trim_end(),
            "REQUEST           /S      MEAN    99% <"
        );
        assert_eq!(
            left(3).trim_end(),
            "write             100   3.0 us   4.1 us"
        );
        assert_eq!(right(2), "write      1 MiB/s");
        let text = lines.join("\n");
        for word in [
            "absorbed",
            "disk write",
            "busy 50%",
            "PROCESS",
            "tar 1",
            "q quit",
        ] {
            assert!(text.contains(word), "{word}\n{text}");
        }
    }

    /// `make pictures` makes it anew.
    #[test]
    fn the_picture_in_the_documents_has_all_of_it() {
        let picture = include_str!("../../../docs/pictures/top.svg");
        let (old, new) = looks();
        let rates = rates(&old, &new);
        let facts = rates.facts.iter().map(|(name, _)| *name);
        for word in facts.chain(["REQUEST", "/S", "MEAN", "PROCESS", "q quit"]) {
            assert!(picture.contains(word), "{word}");
        }
    }

    #[test]
    fn trouble_is_told_and_the_last_numbers_stay() {
        let trouble = View {
            trouble: Some("the daemon is gone".into()),
            ..view()
        };
        let lines = drawn(&trouble, (80, 24));
        assert_eq!(lines[1], "the daemon is gone");
        assert!(lines[3].starts_with("write"));
    }

    #[test]
    fn what_is_known_without_the_daemon_takes_the_place_of_numbers() {
        let unserved = View {
            trouble: Some("the daemon is stopped".into()),
            facts: vec![("daemon", "process 7".into())],
            rates: None,
            ..view()
        };
        let lines = drawn(&unserved, (80, 24));
        assert_eq!(lines[1], "the daemon is stopped");
        assert_eq!(lines[3], "daemon     process 7");
        assert!(!lines.iter().any(|l| l.contains("PROCESS")), "{lines:?}");
    }

    #[test]
    fn a_small_screen_shows_less() {
        for size in [(1, 1), (20, 5), (42, 10), (80, 3), (200, 60)] {
            drawn(&view(), size);
            drawn(&View::default(), size);
        }
        let lines = drawn(&view(), (80, 12));
        assert!(lines.iter().any(|l| l.contains("tar 3")), "{lines:?}");
    }
}
