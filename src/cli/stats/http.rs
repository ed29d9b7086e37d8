//! Numbers over HTTP, to this machine only: a GET, one answer, the end of the connection.
//!
//! One connection after the other is served, each within seconds, so a client that says nothing is no more than a pause.
//! This is all that a scraper needs, and less than any library of servers brings along.

use super::openmetrics::CONTENT_TYPE;
use crate::cli::exit::{FAILED, Failure, USAGE, say, warn};
use crate::cli::interrupted;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a client may take to ask, and to take each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most of a request that is read.
const REQUEST_MAX: usize = 8 << 10;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of this machine, not to be reached from others.
    Tcp(SocketAddr),
}

impl Place {
    /// Reads `unix:PATH` or a loopback address with a port.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("unix: names no path".into()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("`{text}` is neither unix:PATH nor ADDRESS:PORT, as 127.0.0.1:9641")
        })?;
        match address.ip().is_loopback() {
            true => Ok(Self::Tcp(address)),
            false => Err(format!(
                "{address} can be reached from other machines, and nobody is asked who they are: only 127.0.0.1 and [::1]"
            )),
        }
    }
}

enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// A connection, whatever it came by.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Listener {
    fn open(place: &Place) -> io::Result<Self> {
        let listener = match place {
            Place::Tcp(address) => Self::Tcp(TcpListener::bind(address)?),
            Place::Unix(path) => {
                clear(path)?;
                Self::Unix(UnixListener::bind(path)?, path.clone())
            }
        };
        match &listener {
            Self::Unix(l, _) => l.set_nonblocking(true)?,
            Self::Tcp(l) => l.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    fn name(&self) -> io::Result<String> {
        Ok(match self {
            Self::Unix(_, path) => format!("unix:{}", quayfs_shown::path(path)),
            Self::Tcp(l) => format!("http://{}/metrics", l.local_addr()?),
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(l, _) => l.as_fd(),
            Self::Tcp(l) => l.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(l, _) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(false)?;
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
                Box::new(s)
            }
            Self::Tcp(l) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(false)?;
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
                Box::new(s)
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket that no process listens to any more. Whatever else is there stays, and is in the way.
fn clear(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let is_left =
        || UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
    match is_socket && is_left() {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

/// Answers until SIGINT, SIGTERM or SIGHUP comes. `metrics` is asked anew each time.
pub fn serve(place: &str, metrics: impl Fn() -> Result<String, Failure>) -> Result<(), Failure> {
    let place = Place::parse(place).map_err(Failure::with(USAGE))?;
    let failed = |e: io::Error| Failure::new(FAILED, e);
    let (end, wake) = UnixStream::pair().map_err(failed)?;
    for signal in interrupted::heeded() {
        let wake = wake.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, wake).map_err(failed)?;
    }
    let listener = Listener::open(&place)
        .map_err(|e| Failure::new(FAILED, format_args!("cannot listen there: {e}")))?;
    say(format_args!(
        "listening: {}",
        listener.name().map_err(failed)?
    ));
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN),
            PollFd::new(&end, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(failed(e.into())),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        match listener.accept() {
            // A client that goes away is its own affair.
            Ok(stream) => drop(answer(stream, &metrics)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => {
                warn(format_args!("a connection was lost: {e}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn answer(
    mut stream: impl Stream,
    metrics: &impl Fn() -> Result<String, Failure>,
) -> io::Result<()> {
    let request = read_head(&mut stream)?;
    let (status, kind, body) = respond(&request, metrics);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = match request.starts_with(b"HEAD ") {
        true => "",
        false => &body,
    };
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    stream.flush()
}

/// A request up to its empty line; what follows is not looked at.
fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + PATIENCE;
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < REQUEST_MAX {
        if Instant::now() > until {
            return Err(ErrorKind::TimedOut.into());
        }
        match stream.read(&mut piece)? {
            0 => break,
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    Ok(head)
}

/// Status line, type and content of the answer.
fn respond(
    request: &[u8],
    metrics: &impl Fn() -> Result<String, Failure>,
) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return ("400 Bad Request", PLAIN, "not a request\n".into());
    };
    if !version.starts_with("HTTP/1.") {
        return (
            "505 HTTP Version Not Supported",
            PLAIN,
            "HTTP/1.1 is spoken\n".into(),
        );
    }
    if !matches!(method, "GET" | "HEAD") {
        return ("405 Method Not Allowed", PLAIN, "only GET\n".into());
    }
    match target.split('?').next().unwrap_or_default() {
        "/" | "/metrics" => match metrics() {
            Ok(text) => ("200 OK", CONTENT_TYPE, text),
            Err(failure) => {
                let why = format!("{}\n", failure.line);
                ("503 Service Unavailable", PLAIN, why)
            }
        },
        _ => ("404 Not Found", PLAIN, "see /metrics\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for (text, place) in [
            ("unix:/run/q", Place::Unix("/run/q".into())),
            ("127.0.0.1:9641", Place::Tcp(([127, 0, 0, 1], 9641).into())),
            ("127.9.9.9:0", Place::Tcp(([127, 9, 9, 9], 0).into())),
            ("[::1]:80", Place::Tcp("[::1]:80".parse().unwrap())),
        ] {
            assert_eq!(Place::parse(text), Ok(place));
        }
        for text in [
            "0.0.0.0:80",
            "[::]:80",
            "192.0.2.1:80",
            "9641",
            "localhost",
            "unix:",
            "",
        ] {
            assert!(Place::parse(text).is_err(), "{text}");
        }
    }

    /// The first line of the answer to a request, and its content.
    fn asked(request: &str) -> (String, String) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(request.as_bytes()).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        answer(theirs, &|| Ok("numbers\n".into())).unwrap();
        let mut text = String::new();
        ours.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let line = head.lines().next().unwrap();
        let of = |line: &str| line.strip_prefix("Content-Length: ").map(str::to_string);
        let len: usize = head.lines().find_map(of).unwrap().parse().unwrap();
        assert!(body.is_empty() || body.len() == len, "{text}");
        (line.to_string(), body.to_string())
    }

    #[test]
    fn requests_are_answered_and_others_refused() {
        for (request, line, body) in [
            (
                "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                "HTTP/1.1 200 OK",
                "numbers\n",
            ),
            (
                "GET /metrics?a=b HTTP/1.0\r\n\r\n",
                "HTTP/1.1 200 OK",
                "numbers\n",
            ),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK", ""),
            (
                "GET /x HTTP/1.1\r\n\r\n",
                "HTTP/1.1 404 Not Found",
                "see /metrics\n",
            ),
            (
                "POST / HTTP/1.1\r\n\r\n",
                "HTTP/1.1 405 Method Not Allowed",
                "only GET\n",
            ),
            ("GET /", "HTTP/1.1 400 Bad Request", "not a request\n"),
            ("", "HTTP/1.1 400 Bad Request", "not a request\n"),
        ] {
            let (got, content) = asked(request);
            assert_eq!(
                (got.as_str(), content.as_str()),
                (line, body),
                "{request:?}"
            );
        }
        let endless = format!("{:x<REQUEST_MAX$}", "GET /");
        assert_eq!(asked(&endless).0, "HTTP/1.1 400 Bad Request");
    }

    #[test]
    fn a_socket_that_is_left_over_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::Unix(dir.path().join("s"));
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::open(&place).unwrap();
        assert!(Listener::open(&place).is_err(), "one that is listened to");
        drop(first);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(Listener::open(&place).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }
}
