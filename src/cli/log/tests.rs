//! Lines on their way, and what becomes of them when no reader takes them.

use super::*;
use std::fs;
use std::io::Read as _;

fn pen(dir: &Path) -> Pen {
    Pen::new(Output::File(LogFile::new(dir.join("log"), false, false)))
}

fn log_in(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap()
}

#[test]
fn lines_say_when_and_how_bad() {
    let said = written(Level::INFO, "all is well", false);
    let (time, rest) = said.split_once(' ').unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{said}");
    assert_eq!(rest, " INFO all is well\n");
    assert!(written(Level::ERROR, "x", true).contains("\x1b[31mERROR\x1b[0m x"));
}

#[test]
fn what_is_lost_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let mut pen = pen(&gone);
    pen.write("one\n");
    pen.lost(2);
    pen.write("two\n");
    fs::create_dir(&gone).unwrap();
    pen.write("three\n");
    pen.write("four\n");
    let text = log_in(&gone);
    let mut lines = text.lines();
    let told = lines.next().unwrap();
    assert!(
        told.contains("4 lines of the log are missing here: "),
        "{text}"
    );
    assert_eq!(lines.collect::<Vec<_>>(), ["three", "four"]);
}

/// A line that breaks off does not swallow the next one. Pipes take long lines in part.
#[test]
fn torn_lines_end() {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut pen = Pen::new(Output::Pipe(writer));
    pen.write(&format!("{}\n", "x".repeat(2 * size)));
    pen.write("full\n");
    let mut text = vec![0; size];
    fs::File::from(reader.try_clone().unwrap())
        .read_exact(&mut text)
        .unwrap();
    assert!(text.iter().all(|b| *b == b'x'));
    pen.write("next\n");
    drop(pen);
    let mut rest = String::new();
    fs::File::from(reader).read_to_string(&mut rest).unwrap();
    let lines: Vec<_> = rest.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[2]), (3, "", "next"), "{rest}");
    assert!(
        lines[1].contains("2 lines of the log are missing here"),
        "{rest}"
    );
}

#[test]
fn waiting_lines_have_a_limit() {
    let mut state = State::default();
    let long = "x".repeat(WAITING_MAX / 2);
    for _ in 0..5 {
        state.put(long.clone());
    }
    assert_eq!((state.came, state.lost, state.lines.len()), (2, 3, 2));
}

/// A thread that logs does not wait for a reader that does not read, and a thread that waits for the end gives up.
#[test]
fn a_reader_who_does_not_read_delays_nobody() {
    let queue: &'static Queue = Box::leak(Box::default());
    // No thread serves the queue: as if the thread that does were stuck in its first line.
    queue.lock().is_served = true;
    let subscriber = Registry::default().with(Lines(vec![(queue, false)]));
    tracing::subscriber::with_default(subscriber, || {
        for n in 0..100 {
            tracing::info!("line {n}");
        }
        tracing::error!(fatal = true, "the end");
    });
    assert_eq!(queue.lock().came, 101);
    queue.flush(Duration::ZERO);
}

#[test]
fn events_become_lines_of_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let queue: &'static Queue = Box::leak(Box::default());
    queue.lock().is_served = true;
    let output = Output::File(LogFile::new(dir.path().join("log"), false, false));
    thread::spawn(move || queue.serve(output));
    let subscriber = Registry::default().with(Lines(vec![(queue, false)]));
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..50 {
            tracing::warn!("again");
            tracing::error!(each = true, "each");
            tracing::info!(n = 7, "not a complaint");
        }
        tracing::error!("a\nERROR forged \x1b[2J");
        queue.flush(PATIENCE);
    });
    let text = log_in(dir.path());
    let count = |what: &str| text.lines().filter(|l| l.ends_with(what)).count();
    assert_eq!(count(" WARN again"), 1);
    assert_eq!(
        count(" WARN 49 more lines like this were left out: again"),
        1
    );
    assert_eq!(count("ERROR each"), 50);
    assert_eq!(count(" INFO not a complaint n=7"), 50);
    assert_eq!(count("ERROR a\\nERROR forged \\x1b[2J"), 1);
    assert_eq!(text.lines().count(), 103);
}

#[test]
fn a_log_is_opened_anew_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let queue: &'static Queue = Box::leak(Box::default());
    queue.lock().is_served = true;
    let output = Output::File(LogFile::new(dir.path().join("log"), false, false));
    thread::spawn(move || queue.serve(output));
    queue.lock().put("one\n".into());
    queue.flush(PATIENCE);
    fs::rename(dir.path().join("log"), dir.path().join("moved")).unwrap();
    let mut state = queue.lock();
    state.reopen = true;
    state.put("two\n".into());
    drop(state);
    queue.flush(PATIENCE);
    assert_eq!(
        fs::read_to_string(dir.path().join("moved")).unwrap(),
        "one\n"
    );
    assert_eq!(log_in(dir.path()), "two\n");
}

#[test]
fn logs_are_named_by_absolute_paths() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    fs::write(&file, "").unwrap();
    let of = |volume: &Path| destination(volume, None).unwrap();
    let log = dir.path().join("quayfs.log");
    assert_eq!(of(dir.path()), Destination::Volume(log));
    let log = dir.path().join("quayfs-volume.log");
    assert_eq!(of(&file), Destination::Beside(log));
    let log = "/var/log/quayfs-null.log".into();
    assert_eq!(of(Path::new("/dev/null")), Destination::Beside(log));
    let asked = destination(Path::new("/v"), Some(Path::new("/l"))).unwrap();
    assert_eq!(asked, Destination::Asked("/l".into()));
    let here = destination(Path::new("/v"), Some(Path::new("l"))).unwrap();
    assert!(here.path().unwrap().is_absolute());
    let asked = Destination::Asked("/l".into());
    assert_eq!(
        Destination::Stderr(Box::new(asked)).path(),
        Some("/l".into())
    );
}
