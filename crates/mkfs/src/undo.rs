//! What a mkfs has made, and takes away again if it does not come to its end.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use quayfs_sync::Mutex;

/// Remembers what was made. Shared with the thread that may interrupt: each thing is made and noted under one lock.
#[derive(Default)]
pub struct Undo(Mutex<State>);

#[derive(Default)]
struct State {
    made: Vec<Made>,
    settled: bool,
}

enum Made {
    Directory(PathBuf),
    /// Held open, so that no other file gets its inode number: a file of that name with another number is not ours.
    Entry(PathBuf, File),
}

impl Undo {
    /// Makes a directory and what is missing above it.
    pub(super) fn directory(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<_> = path
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && fs::symlink_metadata(dir).is_err())
            .collect();
        for dir in missing.into_iter().rev() {
            let mut state = self.0.lock();
            fs::create_dir(dir)?;
            state.made.push(Made::Directory(dir.into()));
        }
        Ok(())
    }

    /// Makes an empty file, mode 0600.
    pub(super) fn file(&self, path: &Path) -> io::Result<File> {
        let mut state = self.0.lock();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        note(&mut state, path)?;
        Ok(file)
    }

    /// Makes a link.
    pub(super) fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        symlink(target, path)?;
        note(&mut state, path)
    }

    /// The last step: nothing is undone while it runs, nor after it has succeeded.
    pub(super) fn conclude<T, E>(&self, step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut state = self.0.lock();
        let result = step();
        state.settled = result.is_ok();
        result
    }

    /// Removes what was made, unless all of it was.
    pub fn roll_back(&self) {
        self.0.lock().roll_back();
    }

    /// [`Undo::roll_back`], then `end`, which is not called if all was made and is to end the process: until it
    /// returns nothing more is made.
    pub fn interrupt(&self, end: impl FnOnce()) {
        let mut state = self.0.lock();
        if !state.settled {
            state.roll_back();
            end();
        }
    }
}

fn note(state: &mut State, path: &Path) -> io::Result<()> {
    let held = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(path)?;
    state.made.push(Made::Entry(path.into(), held));
    Ok(())
}

fn number(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl State {
    fn roll_back(&mut self) {
        if self.settled {
            return;
        }
        // There is nothing to do about what cannot be removed, and there was an error before.
        for made in self.made.drain(..).rev() {
            match made {
                Made::Directory(path) => {
                    let _ = fs::remove_dir(path);
                }
                Made::Entry(path, held) => {
                    let (now, then) = (fs::symlink_metadata(&path), held.metadata());
                    if let (Ok(now), Ok(then)) = (now, then)
                        && number(&now) == number(&then)
                    {
                        let _ = fs::remove_file(path);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let undo = Undo::default();
        fs::write(at("old"), "").unwrap();
        assert!(undo.file(&at("old")).is_err());
        undo.directory(&at("a/b")).unwrap();
        undo.directory(&at("a/c")).unwrap();
        undo.file(&at("a/b/file")).unwrap();
        undo.file(&at("replaced")).unwrap();
        undo.link(&at("old"), &at("a/link")).unwrap();
        fs::write(at("a/c/theirs"), "").unwrap();
        fs::rename(at("old"), at("replaced")).unwrap();
        undo.roll_back();
        assert!(at("replaced").exists() && at("a/c/theirs").exists());
        assert!(!at("a/b").exists() && fs::symlink_metadata(at("a/link")).is_err());
        // Once more there is nothing to do.
        undo.roll_back();
        assert!(at("a/c/theirs").exists());
    }

    /// File systems give a number that is free to the next file.
    #[test]
    fn what_has_come_in_its_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let undo = Undo::default();
        drop(undo.file(&file).unwrap());
        fs::remove_file(&file).unwrap();
        fs::write(&file, "theirs").unwrap();
        undo.roll_back();
        assert_eq!(fs::read(&file).unwrap(), b"theirs");
    }

    #[test]
    fn nothing_is_undone_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let undo = Undo::default();
        undo.file(&file).unwrap();
        assert_eq!(undo.conclude(|| Err::<(), _>(7)), Err(7));
        assert_eq!(undo.conclude(|| Ok::<_, ()>(7)), Ok(7));
        undo.roll_back();
        undo.interrupt(|| panic!("interrupted after the end"));
        assert!(file.exists());
    }

    #[test]
    fn an_interruption_comes_with_everything_undone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let undo = Undo::default();
        undo.file(&file).unwrap();
        let mut gone = false;
        undo.interrupt(|| gone = !file.exists());
        assert!(gone);
    }
}
