//! Where the daemon's words go.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// Name of the default log file inside the volume.
const NAME: &str = "quayfs.log";
/// A log longer than this is put aside when it is next opened; one predecessor is kept.
const LONG: u64 = 8 << 20;

/// The log file of a volume, unless another was asked for.
pub fn path(volume: &Path, asked: Option<&Path>) -> PathBuf {
    asked.map_or_else(|| volume.join(NAME), Path::to_path_buf)
}

/// Opens a log file for appending.
pub fn open(path: &Path) -> io::Result<File> {
    if path.metadata().is_ok_and(|m| m.is_file() && m.len() > LONG) {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(path, old)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Sends what the process logs to the standard error. `QUAYFS_LOG` chooses the level (default
/// `info`), in the syntax of `RUST_LOG`.
pub fn start() {
    let filter = EnvFilter::try_from_env("QUAYFS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // A second start in one process, as in tests, keeps the first.
    let _ = subscriber.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_log_grows_until_it_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let log = path(dir.path(), None);
        assert_eq!(log, dir.path().join("quayfs.log"));
        for _ in 0..2 {
            open(&log).unwrap().write_all(b"line\n").unwrap();
        }
        assert_eq!(std::fs::read(&log).unwrap(), b"line\nline\n");
        File::options()
            .write(true)
            .open(&log)
            .unwrap()
            .set_len(LONG + 1)
            .unwrap();
        drop(open(&log).unwrap());
        assert_eq!(log.metadata().unwrap().len(), 0);
        assert_eq!(
            dir.path().join("quayfs.log.old").metadata().unwrap().len(),
            LONG + 1
        );
    }

    #[test]
    fn another_log_can_be_asked_for() {
        assert_eq!(
            path(Path::new("/v"), Some(Path::new("/l"))),
            Path::new("/l")
        );
        assert!(open(Path::new("/no/such/place")).is_err());
    }
}
