//! `quayfs top`: what a mount is doing now, second by second.

mod device;
mod rates;
mod screen;

use super::args;
use super::asking::{self, Heard};
use super::exit::{FAILED, Failure};
use super::interrupted;
use super::units::span;
use super::unserved::{self, Unserved};
use crate::mount::server::wait_for;
use crate::mount::table::Entry;
use procfs::process::Process;
use quayfs_layout::BLOCK;
use quayfs_options::format_size;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
pub use rates::time;
use rates::{Look, Task, by_process, disk, rates};
use rustix::event::PollFlags;
use screen::View;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(900);
/// How long a signal may go unnoticed.
const MOMENT: Duration = Duration::from_millis(100);

/// Whether nothing will come from the terminal any more.
fn is_gone() -> io::Result<bool> {
    // Of a hang-up poll(2) tells without being asked.
    Ok(wait_for(
        io::stdin().as_fd(),
        PollFlags::empty(),
        Duration::ZERO,
    )?)
}

/// Shows it until the user has seen enough.
pub fn run(args: &args::Top) -> Result<(), Failure> {
    let entry = match &args.target {
        Some(target) => asking::mount_at(target, FAILED)?,
        None => asking::only_mount(FAILED)?,
    };
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let mnt = quayfs_shown::argument(&entry.target);
        return Err(Failure::new(
            FAILED,
            format_args!("`top` needs a terminal: `quayfs stats {mnt}` prints the numbers"),
        ));
    }
    // What cannot be shown at all is told before the screen is taken.
    if let Heard::Nothing(Unserved::Dead) = asking::hear(&entry, PATIENCE, FAILED)? {
        return Err(Failure::new(FAILED, Unserved::Dead.line(&entry)));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in interrupted::heeded() {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(Failure::with(FAILED))?;
    }
    let mut terminal = ratatui::try_init().map_err(Failure::with(FAILED))?;
    let shown = Top::new(entry).show(&mut terminal, &ended);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(Failure::with(FAILED))
}

struct Top {
    entry: Entry,
    began: Instant,
    last: Option<Look>,
    /// The last look that the daemon did not answer.
    unanswered: Option<Look>,
    /// Where the numbers of the disk are, once the volume is known.
    disk: Option<PathBuf>,
    /// That has been looked up, as far as it answers.
    looked: bool,
    names: Names,
    view: View,
}

/// Processes that tasks belong to, and their names: also of those that have ended, while they are shown.
#[derive(Default)]
struct Names(HashMap<u32, (u32, String)>);

impl Top {
    fn new(entry: Entry) -> Self {
        let view = View {
            mountpoint: quayfs_shown::path(&entry.target),
            ..View::default()
        };
        Self {
            entry,
            began: Instant::now(),
            last: None,
            unanswered: None,
            disk: None,
            looked: false,
            names: Names::default(),
            view,
        }
    }

    fn show(&mut self, terminal: &mut DefaultTerminal, ended: &AtomicBool) -> io::Result<()> {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.look();
                next = Instant::now() + EVERY;
            }
            terminal.draw(|frame| screen::draw(frame, &self.view))?;
            loop {
                // Before anything is read: reading from a terminal that is gone never ends.
                wait_for(io::stdin().as_fd(), PollFlags::IN, MOMENT)?;
                if ended.load(Ordering::Acquire) || is_gone()? {
                    return Ok(());
                }
                if event::poll(Duration::ZERO)? || Instant::now() >= next {
                    break;
                }
            }
            // Whatever else has happened, such as a new size, the screen is drawn anew.
            while event::poll(Duration::ZERO)? {
                if is_end(&event::read()?) {
                    return Ok(());
                }
            }
        }
    }

    /// Looks at the mount, and makes what is shown of it.
    fn look(&mut self) {
        let (status, silence) = match asking::hear(&self.entry, PATIENCE, FAILED) {
            Ok(Heard::Status(status)) => (status, None),
            Ok(Heard::Nothing(why)) => (unserved::facts(&self.entry), Some(why)),
            Err(failure) => {
                self.view.trouble = Some(failure.line);
                return;
            }
        };
        let text = |key: &str| quayfs_shown::text(status[key].as_str().unwrap_or_default());
        self.view.volume = text("volume");
        self.view.transport = text("transport");
        self.view.uptime = status["uptime_ms"].as_u64().unwrap_or_default() / 1000;
        self.view.trouble = silence.map(|why| why.short(&status)).or_else(|| {
            let why = status["read_only_reason"].as_str()?;
            Some(quayfs_shown::text(&format!("read-only: {why}")))
        });
        if !std::mem::replace(&mut self.looked, true) {
            let volume = status["volume"].as_str().unwrap_or_default();
            self.disk = device::find_in_time(Path::new(volume));
        }
        let new = Look {
            at: self.began.elapsed(),
            disk: self.disk.as_deref().and_then(device::read),
            status,
        };
        match silence {
            None => self.count(new),
            Some(_) => self.without_numbers(new),
        }
    }

    fn count(&mut self, new: Look) {
        self.view.facts.clear();
        self.unanswered = None;
        if let Some(old) = &self.last {
            let rates = rates(old, &new);
            self.view.processes = self.names.processes(&rates.tasks);
            self.view.rates = Some(rates);
        }
        self.last = Some(new);
    }

    /// What is known without the daemon takes the place of numbers that are not those of this second any more.
    fn without_numbers(&mut self, new: Look) {
        let old = self.unanswered.as_ref();
        self.view.facts = known(&new.status);
        self.view
            .facts
            .extend(old.map(|old| disk(old, &new)).unwrap_or_default());
        (self.view.rates, self.last) = (None, None);
        self.unanswered = Some(new);
    }
}

/// What there is to say of a mount whose daemon does not answer.
fn known(facts: &Value) -> Vec<(&'static str, String)> {
    let number = |key: &str| facts[key].as_u64();
    let up = number("uptime_ms").map(|ms| format!(", up {}", span(ms / 1000)));
    let daemon = number("pid").map(|pid| format!("process {pid}{}", up.unwrap_or_default()));
    let restarts = number("restarts").map(|n| n.to_string());
    let size = |key: &str| number(key).map(format_size);
    let blocks = |key: &str| number(key).map(|n| format_size(n * BLOCK as u64));
    let all = [
        ("daemon", daemon),
        ("restarts", restarts),
        ("room", blocks("blocks")),
        ("region", size("pmem_bytes")),
    ];
    all.into_iter()
        .filter_map(|(name, said)| Some((name, said?)))
        .collect()
}

impl Names {
    fn processes(&mut self, tasks: &[Task]) -> Vec<(String, f64)> {
        self.0
            .retain(|task, _| tasks.iter().any(|t| t.number == *task));
        by_process(tasks, |task| {
            if let Some(found) = name_of(task) {
                self.0.insert(task, found);
            }
            self.0.get(&task).cloned()
        })
    }
}

fn name_of(task: u32) -> Option<(u32, String)> {
    let status = Process::new(i32::try_from(task).ok()?)
        .ok()?
        .status()
        .ok()?;
    let process = u32::try_from(status.tgid).ok()?;
    Some((process, quayfs_shown::text(&status.name)))
}

/// Whether the user has seen enough.
fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event
    else {
        return false;
    };
    let control = modifiers.contains(KeyModifiers::CONTROL);
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c' | 'd') => control,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_and_control_c_end_it() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        for (code, modifiers, ends) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, true),
            (KeyCode::Esc, KeyModifiers::NONE, true),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
            (KeyCode::Char('c'), KeyModifiers::NONE, false),
            (KeyCode::Enter, KeyModifiers::NONE, false),
        ] {
            assert_eq!(is_end(&key(code, modifiers)), ends, "{code:?}");
        }
        assert!(!is_end(&Event::Resize(1, 1)));
    }
}
